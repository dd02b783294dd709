# The front door: `make help` says what there is. A machine needs Python 3.11 or newer with pip, and make.

# Where it is set every process compiles Airflow and Spark anew, for seconds each.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first Python that is new enough; name another with `make PYTHON=/path/to/python ...`.
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3; do \
  if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then echo $$each; break; fi; done)
# One of each version, on PATH or kept by pyenv; name others with `make PYTHONS="/path/to/one /path/to/another" pythons`.
PYTHONS ?= $(shell for minor in 3.11 3.12 3.13; do \
  for each in python$$minor $$(pyenv root 2> /dev/null)/versions/$$minor.*/bin/python; do \
    if $$each -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$$minor')" 2> /dev/null; then echo $$each; break; fi; \
  done; done)

TOOLS := .run/tools
VENV := .venv
BIN := $(VENV)/bin
UV := $(TOOLS)/bin/uv
# uv uses the Python it is given: it never brings one of its own.
UV_ENVIRONMENT := UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV=$(CURDIR)/$(VENV)
PYTHON_IS_FIT = @test -n "$(PYTHON)" || { echo 'error: no Python 3.11 or newer on PATH; install one, or name it: make PYTHON=/path/to/python' >&2; exit 1; }; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { echo 'error: $(PYTHON) is not Python 3.11 or newer' >&2; exit 1; }
# Tells one Python from another, also through an environment that was made with it.
IDENTITY := import sys; print(*sys.version_info[:3], sys.base_prefix)
# Processes share the tests, each with brokers of its own.
PROCESSES ?= 2
# Twice as many share all of them, for some wait; each needs 2 GiB and the machine some.
MANY := import os; print(max(2, min(2 * $(PROCESSES), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 3 // 2**30)))
PYTEST := python -m pytest --durations=15
SHARED := --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
ONCE ?=
TESTS := python -m $(if $(ONCE),pytest,tests.second_run) --durations=15 $(SHARED)
# Every warning is an error: a broken link, a page that nothing leads to, a docstring that can't be read.
SITE_OF = $(IN_VENV) AIRFLOW_HOME=$(CURDIR)/.run/site-airflow sphinx-build --quiet --fail-on-warning --keep-going --jobs 2 -d .run/site-doctrees
SITE = $(SITE_OF) docs .run/site
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
test: lint  ## Lint, then every test, on real brokers; up to 3 tests with kills are run again and named, unless ONCE=1
	@$(IN_VENV) python -m tests.servers.short_lived
	$(IN_VENV) $(TESTS) --numprocesses "$$($(BIN)/python -c '$(MANY)')"

.PHONY: unit
unit: setup  ## The tests that take seconds and need no server
	$(IN_VENV) python -m pytest tests/unit

.PHONY: pythons
pythons: $(UV)  ## The unit and contract tests (in memory) on each Python 3.11 to 3.13 that is found
	@test -n "$(strip $(PYTHONS))" || { echo 'error: no Python 3.11, 3.12 or 3.13 found; name some: make PYTHONS="/path/to/python ..." pythons' >&2; exit 1; }
	@echo "Pythons:" $(PYTHONS)
	@failed=; for each in $(PYTHONS); do \
	  where=.run/pythons/$$($$each -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  $(MAKE) --no-print-directory PYTHON="$$each" VENV="$$where" in-memory || failed+=" $$each"; \
	done; \
	test -z "$$failed" || { echo "error: failed on$$failed" >&2; exit 1; }

# What `pythons` runs on each of them.
.PHONY: in-memory
in-memory: setup
	@$(BIN)/python --version
	$(IN_VENV) $(PYTEST) $(SHARED) tests/unit
	$(IN_VENV) $(PYTEST) tests/contract -k memory

.PHONY: lint
lint: setup  ## Format, rules, types, imports, generated pages
	@$(MAKE) --no-print-directory --jobs $(PROCESSES) rules types site

.PHONY: rules
rules:
	$(IN_VENV) ruff format --check
	$(IN_VENV) ruff check
	$(IN_VENV) lint-imports
	$(IN_VENV) python -m tests.docs --check

.PHONY: types
types:
	$(IN_VENV) mypy

.PHONY: site
site:
	$(SITE)

.PHONY: fuzz
fuzz: setup  ## 100,000 generated inputs for each parser (hours of two cores)
	JMSJCA_EXAMPLES=100000 $(IN_VENV) $(PYTEST) --numprocesses $(PROCESSES) tests/unit --timeout=0 --durations=0 -k "test_any_"

MODULES ?=
.PHONY: mutants
mutants: setup  ## Small changes of the core that no test notices; `make mutants MODULES=core/redelivery/tracker.py` (half an hour or more for all)
	@$(UV_ENVIRONMENT) $(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .run/mutants/venv
	@VIRTUAL_ENV=$(CURDIR)/.run/mutants/venv $(UV) pip sync --quiet --require-hashes requirements/mutants.txt
	@$(IN_VENV) python -m tests.mutants $(MODULES)

.PHONY: demo
demo: setup  ## The whole way on real flights: queue, DAG, Spark table, dead letters
	@$(IN_VENV) python -m example_dags.demo

.PHONY: bench
bench: setup  ## Messages per second beside rivals, a triggerer, a million messages into Spark tables, and the goals (35 minutes)
	@$(IN_VENV) python -m tests.bench
	@$(IN_VENV) python -m tests.bench --airflow
	@$(IN_VENV) python -m tests.bench --spark

.PHONY: soak
soak: setup  ## Memory over a million messages; fails if it grows by more than 5 MiB
	@$(IN_VENV) python -m tests.bench --soak 1000000

.PHONY: chaos
chaos: setup  ## The kill -9 tests and the hostile brokers at full size, and a real YARN (an hour and a half on 2 cores)
	@$(IN_VENV) python -m tests.servers.short_lived
	JMSJCA_CHAOS=full $(IN_VENV) $(PYTEST) $(SHARED) --numprocesses $$((2 * $(PROCESSES))) tests/chaos tests/hostile/test_hostile_broker.py tests/airflow/operators/test_yarn.py

.PHONY: docs
docs: setup  ## Generate the reference pages, and build the site into .run/site
	@$(IN_VENV) python -m tests.docs
	$(SITE)

.PHONY: screenshots
screenshots: setup  ## Take the docs' pictures of Airflow's pages anew, in Chromium
	@$(IN_VENV) python -m tests.docs.screenshots
	@JMSJCA_PICTURES="$(CURDIR)/docs/pictures" $(IN_VENV) python -m pytest -q tests/airflow/page/test_chromium.py -k pictures

.PHONY: linkcheck
linkcheck: setup  ## Ask the servers of Airflow's and Spark's documentation for the pages that ours link to (needs a network)
	$(SITE_OF) -b linkcheck docs .run/linkcheck

.PHONY: lock
lock: $(UV)  ## Bring requirements/*.txt up to date with pyproject.toml
	$(UV) pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 requirements/bootstrap.in -o requirements/bootstrap.txt
	$(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 requirements/mutants.in -o requirements/mutants.txt
	$(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --all-extras --group dev pyproject.toml -o requirements/dev.txt

.PHONY: dist
dist: setup  ## Build into dist/: the package, its sources, and the job library for Spark clusters
	$(IN_VENV) python -m build --no-isolation
	$(IN_VENV) python -m build --no-isolation --wheel --outdir dist job

.PHONY: clean
clean:  ## Stop what `make brokers` started; delete .venv, .run and caches
	@if [ -x $(BIN)/python ] && [ -d .run/brokers ]; then $(BIN)/python -m tests.servers down; fi
	rm -rf $(VENV) .run dist spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(UV): requirements/bootstrap.txt
	$(PYTHON_IS_FIT)
	@$(PYTHON) -m pip --version > /dev/null 2>&1 || { echo 'error: $(PYTHON) has no pip; install it (on Debian: apt-get install python3-pip)' >&2; exit 1; }
	@mkdir -p $(TOOLS)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --upgrade --target $(TOOLS) --require-hashes -r $<
	@touch $@

# Where a Python is named, the environment is made anew if it is another one's.
ifneq ($(origin PYTHON),file)
ifneq ($(shell $(BIN)/python -c '$(IDENTITY)' 2> /dev/null),$(shell $(PYTHON) -c '$(IDENTITY)' 2> /dev/null))
$(VENV)/.stamp: another-python
endif
endif
.PHONY: another-python
another-python:
	$(PYTHON_IS_FIT)
	rm -rf $(VENV)

$(VENV)/.stamp: $(UV) requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(UV_ENVIRONMENT) $(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
	$(UV_ENVIRONMENT) $(UV) pip sync --quiet --require-hashes requirements/dev.txt
	$(UV_ENVIRONMENT) $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
