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
from airflow.configuration import conf
from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from airflow_provider_jmsjca.get_provider_info import get_provider_info

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
    module, _, name = info["connection-types"][0]["hook-class-name"].rpartition(".")
    hook = getattr(importlib.import_module(module), name)
    assert hook.conn_type == info["connection-types"][0]["connection-type"]


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
def test_airflow_providers_list_shows_it() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "list", "--output", "json"],
        env=os.environ, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    providers = {row["package_name"]: row for row in json.loads(shown.stdout)}
    assert providers[DISTRIBUTION]["version"] == "0.1.0"


def test_the_form_says_what_has_no_meaning_here_j42() -> None:
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    said = {
        name: field["description"]
        for name, field in fields.items()
        if "no meaning here" in field["description"]
    }
    assert said == {
        "producer_pooling": "Keep closed producers with their session for the next use. Default: false. "
        "Accepted, no meaning here: a session sends without a producer object, so there is nothing to keep."
    }
