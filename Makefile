# The front door: `make help` says what there is. A machine needs Python 3.11 or newer with pip, and make.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first Python that is new enough; name another with `make PYTHON=/path/to/python ...`.
PYTHON ?= $(shell for each in python3.11 python3; do \
  if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then echo $$each; break; fi; done)

TOOLS := .run/tools
VENV := .venv
BIN := $(VENV)/bin
UV := $(TOOLS)/bin/uv
# uv uses the Python it is given: it never brings one of its own.
UV_ENVIRONMENT := UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV=$(CURDIR)/$(VENV)
TIERS := $(wildcard tests/contract tests/broker tests/airflow tests/spark tests/chaos)
# Most tests wait more than they work: processes share them, each with brokers of its own.
PROCESSES ?= 2
PYTEST := python -m pytest --durations=15
SHARED := --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
# Real brokers and kills on a busy machine: what fails is run once more by itself, after its first report.
pytest_twice = bash -c '$(PYTEST) $(SHARED) $(1) || { \
  echo "Once more what failed above. What passes now depends on timing and wants mending all the same."; \
  $(PYTEST) $(1) --last-failed --last-failed-no-failures none; }'
# `airflow` and `spark-submit` are found there too.
IN_VENV := PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: help
help:  ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.stamp  ## Make .venv with everything pinned (the other targets do it by themselves)

.PHONY: brokers
brokers: setup  ## Start ActiveMQ, Artemis and RabbitMQ, and leave them running
	@$(IN_VENV) python -m tests.servers up

.PHONY: brokers-down
brokers-down: setup  ## Stop them
	@$(IN_VENV) python -m tests.servers down

.PHONY: test
test: lint  ## Lint, then every test, on real brokers
	$(IN_VENV) $(PYTEST) $(SHARED) tests/unit
	$(IN_VENV) $(call pytest_twice,$(TIERS))

.PHONY: unit
unit: setup  ## The tests that take seconds and need no server
	$(IN_VENV) python -m pytest tests/unit

.PHONY: lint
lint: setup  ## Format, rules, types, imports, generated pages
	$(IN_VENV) ruff format --check
	$(IN_VENV) ruff check
	$(IN_VENV) mypy
	$(IN_VENV) lint-imports
	$(IN_VENV) python -m tests.docs --check

.PHONY: fuzz
fuzz: setup  ## 100,000 generated inputs for each parser (hours of two cores)
	JMSJCA_EXAMPLES=100000 $(IN_VENV) $(PYTEST) --numprocesses $(PROCESSES) tests/unit --timeout=0 --durations=0 -k "test_any_"

.PHONY: demo
demo: setup  ## The whole way on real flights: queue, DAG, Spark table, dead letters
	@$(IN_VENV) python -m example_dags.demo

.PHONY: bench
bench: setup  ## Messages per second beside a plain loop and the Java clients, and the goals (10 minutes)
	@$(IN_VENV) python -m tests.bench

.PHONY: soak
soak: setup  ## Memory over a million messages; fails if it grows by more than 5 MiB
	@$(IN_VENV) python -m tests.bench --soak 1000000

.PHONY: chaos
chaos: setup  ## The kill -9 tests at full size (half an hour on 2 cores)
	JMSJCA_CHAOS=full $(IN_VENV) $(PYTEST) $(SHARED) tests/chaos

.PHONY: docs
docs: setup  ## Generate the reference pages, and check the rest
	@$(IN_VENV) python -m tests.docs

.PHONY: lock
lock: $(UV)  ## Bring requirements/*.txt up to date with pyproject.toml
	$(UV) pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 requirements/bootstrap.in -o requirements/bootstrap.txt
	$(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --all-extras --group dev pyproject.toml -o requirements/dev.txt

.PHONY: clean
clean:  ## Stop what `make brokers` started; delete .venv, .run and caches
	@if [ -x $(BIN)/python ] && [ -d .run/brokers ]; then $(BIN)/python -m tests.servers down; fi
	rm -rf $(VENV) .run dist spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(UV): requirements/bootstrap.txt
	@test -n "$(PYTHON)" || { echo 'error: no Python 3.11 or newer on PATH; install one, or name it: make PYTHON=/path/to/python' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { echo 'error: $(PYTHON) is not Python 3.11 or newer' >&2; exit 1; }
	@$(PYTHON) -m pip --version > /dev/null 2>&1 || { echo 'error: $(PYTHON) has no pip; install it (on Debian: apt-get install python3-pip)' >&2; exit 1; }
	@mkdir -p $(TOOLS)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --upgrade --target $(TOOLS) --require-hashes -r $<
	@touch $@

$(VENV)/.stamp: $(UV) requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(UV_ENVIRONMENT) $(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
	$(UV_ENVIRONMENT) $(UV) pip sync --quiet --require-hashes requirements/dev.txt
	$(UV_ENVIRONMENT) $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
