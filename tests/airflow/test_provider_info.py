from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow._shared.module_loading import import_string
from airflow.configuration import conf
from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

import airflow_provider_jmsjca
from tests.internals.provider import get_provider_info

DISTRIBUTION = "airflow-provider-jmsjca"
SCHEMAS = Path(airflow.__file__).parent


def _installed() -> bool:
    entries = importlib.metadata.entry_points(group="apache_airflow_provider")
    return any(entry.dist is not None and entry.dist.name == DISTRIBUTION for entry in entries)


needs_installation = pytest.mark.skipif(
    not _installed(), reason="needs the distribution installed (make install), for its entry point"
)


def test_it_is_valid_by_airflows_schema() -> None:
    info = get_provider_info()
    jsonschema.validate(info, json.loads((SCHEMAS / "provider_info.schema.json").read_text()))
    assert info["package-name"] == DISTRIBUTION


def test_its_connection_type_is_valid_by_airflows_schema_of_provider_files() -> None:
    """The form's fields are described there only."""
    schema = json.loads((SCHEMAS / "provider.yaml.schema.json").read_text())
    part = schema["properties"]["connection-types"] | {"definitions": schema.get("definitions", {})}
    jsonschema.validate(get_provider_info()["connection-types"], part)


def test_every_module_and_class_it_names_can_be_imported() -> None:
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for module in info[kind][0]["python-modules"]:
            importlib.import_module(module)
    hook = import_string(info["connection-types"][0]["hook-class-name"])
    assert hook.conn_type == info["connection-types"][0]["connection-type"]
    assert [import_string(name).__name__ for name in info["notifications"]] == ["JmsNotifier"]
    assert [import_string(name).scheme for name in info["queues"]] == ["jms"]
    (uris,) = info["asset-uris"]
    assert all(callable(import_string(path)) for what, path in uris.items() if what != "schemes")


@pytest.mark.parametrize(("kind", "ending"), [("operators", "Operator"), ("sensors", "Sensor")])
def test_it_names_the_module_of_each_public_operator_and_sensor(kind: str, ending: str) -> None:
    (found,) = get_provider_info()[kind]
    public = [name for name in airflow_provider_jmsjca.__all__ if name.endswith(ending)]
    modules = {getattr(airflow_provider_jmsjca, name).__module__ for name in public}
    assert modules == {*found["python-modules"]}


def test_the_form_has_the_options_of_a_connection_and_hides_secrets() -> None:
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    assert fields["client_id"]["label"] == "Client id"
    assert fields["heart_beat"]["schema"]["type"] == ["number", "null"]
    assert fields["verify"]["schema"]["default"] is True
    assert fields["key_password"]["schema"]["format"] == "password"
    assert all(field["description"].endswith((".", ")")) for field in fields.values())


@needs_installation
def test_airflow_knows_the_connection_type_and_our_configuration_section() -> None:
    hook: Any = ProvidersManagerTaskRuntime().hooks["jms"]
    assert hook.hook_name == "JMS"
    manager = ProvidersManager()
    assert manager.field_behaviours["jms"]["relabeling"]["host"] == "Host or URL"
    assert "extra__jms__client_id" in manager.connection_form_widgets
    assert conf.get("jmsjca", "spool_path") == ""


@needs_installation
def test_airflow_knows_the_notifier() -> None:
    assert "airflow_provider_jmsjca.notifications.jms.JmsNotifier" in ProvidersManager().notification


@needs_installation
def test_airflow_providers_list_shows_it() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "list", "--output", "json"],
        env=os.environ, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    providers = {row["package_name"]: row for row in json.loads(shown.stdout)}
    assert providers[DISTRIBUTION]["version"] == "0.1.0"


def test_the_form_begins_with_what_most_need_and_shows_nothing_without_effect() -> None:
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    assert list(fields)[:4] == ["tls", "ca_file", "client_id", "prefetch"]
    assert list(fields)[-1] == "options"
    assert "producer_pooling" not in fields  # J42: read from the extra JSON, and changes nothing
    assert "no meaning" not in str(fields)
    assert fields["tls"]["schema"]["default"] is False


@needs_installation
def test_airflow_keeps_the_order_of_the_form() -> None:
    widgets = [name for name in ProvidersManager().connection_form_widgets if "__jms__" in name]
    assert widgets[0] == "extra__jms__tls"
    assert widgets[-1] == "extra__jms__options"
