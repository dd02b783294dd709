"""The connection form: J41-J45, J113."""

from __future__ import annotations

import json

from airflow_provider_jmsjca.core.connection_form import connection_form


def test_fields_as_airflow_has_them() -> None:
    fields = {field.name: field.conn_field() for field in connection_form()}
    assert fields["connect_timeout"] == {
        "label": "Connect timeout (seconds)",
        "description": "Bound on the whole of TCP, TLS and log-in, for each host.",
        "schema": {"type": ["number", "null"], "default": 15},
    }
    assert fields["key_password"]["schema"] == {"type": ["string", "null"], "format": "password"}
    assert fields["verify"]["schema"] == {"type": ["boolean", "null"], "default": True}
    assert fields["options"]["schema"] == {"type": ["string", "null"], "format": "multiline"}
    assert {"client_id", "idle_timeout", "prefetch", "ca_file", "server_name"} <= set(fields)
    json.dumps(fields)
