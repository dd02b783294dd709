"""Whatever the levels say, they are resolved or refused: J31-J48, J68-J80, J113, J143."""

from __future__ import annotations

import contextlib
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.explain import explain
from airflow_provider_jmsjca.core.configuration.precedence import (
    Layer,
    Level,
    Resolved,
    SourceKind,
    call_layer,
    connector_layer,
    resolve,
)
from airflow_provider_jmsjca.core.options import OPTIONS
from airflow_provider_jmsjca.errors import ConfigurationError

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))

_LEVELS = (Level.CONNECTOR, Level.CONNECTION_FACTORY, Level.ACTIVATION)
_SPELLINGS = {
    level: [spelling for option in OPTIONS if option.allowed_at(level) for _, spelling in option.spellings()]
    for level in _LEVELS
}
_KEYS = [key for option in OPTIONS for key in option.key]
_TEXTS = st.sampled_from(
    ["", "1", "-1", "true", "cc", "sync", "1:1", "3:move(queue:d)", "queue://q", "lookup://a", "30s", "x"]
)
_PAIRS = st.lists(
    st.tuples(st.sampled_from([*_KEYS, "username", "password", "prefetch", "verify", "own"]), _TEXTS),
    max_size=3,
)
_URLS = st.one_of(
    _PAIRS.map(lambda pairs: "stomp://h:1?" + "&".join(f"{key}={value}" for key, value in pairs)),
    st.sampled_from(
        ["lookup://a", "lookup://b?JMSJCA.NoXA=true", "lookup://gone", "stomp://u:p@h,i", "h", ""]
    ),
    st.text(max_size=12),
)
_OPTIONS = st.one_of(
    _PAIRS.map(lambda pairs: "\n".join(f"{key}={value}" for key, value in pairs)),
    _PAIRS.map(lambda pairs: "JMSJCA.sep=," + ",".join(f"{key}={value}" for key, value in pairs)),
    st.text(max_size=12),
)
_VALUES = _TEXTS | st.text(max_size=6) | st.integers(-2, 99) | st.booleans() | st.none()


def layers(level: Level) -> st.SearchStrategy[Layer]:
    """Return what such a level may say, right or wrong."""
    fields = st.dictionaries(st.sampled_from([*_SPELLINGS[level], "bogus"]), _VALUES, max_size=3)
    address = st.fixed_dictionaries({}, optional={"connection_url": _URLS, "options": _OPTIONS})
    return st.builds(
        lambda one, two: Layer(level=level, source=level.label, fields=one | two), fields, address
    )


def _explained(resolved: Resolved, given_levels: set[Level]) -> None:
    for value in resolved.values.values():
        assert value.origin.level in given_levels
        assert value.origin.place is not SourceKind.DEFAULT
    assert {row.option for row in explain(resolved, only_set=True)} >= set(resolved.values)
    with contextlib.suppress(ConfigurationError):
        assert ActivationSpec.from_resolved(resolved).destination


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.tuples(*(layers(level) for level in _LEVELS)),
    st.fixed_dictionaries({"a": layers(Level.CONNECTION_FACTORY), "b": layers(Level.CONNECTION_FACTORY)}),
    st.sampled_from([None, "bob", "stomp://other?username=u", "lookup://a", "x://"]) | st.text(max_size=8),
)
def test_any_levels_are_resolved_or_refused(
    given_layers: tuple[Layer, ...], connections: dict[str, Layer], username: str | None
) -> None:
    """Each value in force names a level that was given; without one level, nothing is of that level."""
    chosen = [*given_layers, call_layer(username, "secret")] if username is not None else given_layers[1:]
    with contextlib.suppress(ConfigurationError):
        resolved = resolve(chosen, connections)
        _explained(resolved, {layer.level for layer in chosen} | {Level.CONNECTION_FACTORY})


_VARIABLES = st.sampled_from(
    [
        f"JMSJCA_{name}"
        for name in ("NOXA", "ACC", "STRICT", "CONNECTIONURL", "USERNAME", "OPTIONS", "NOPE", "")
    ]
    + ["JMSJCA_CONNECTION_URL", "JMSJCA_USRNAME", "HOME", "jmsjca_noxa"]
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*_SPELLINGS[Level.CONNECTOR], "destination.x", "parameter.y", "bogus"]),
        _TEXTS | _URLS,
        max_size=4,
    ),
    st.dictionaries(_VARIABLES, _TEXTS | _URLS | _OPTIONS, max_size=3),
)
def test_any_section_and_environment_are_read_or_refused(
    section: dict[str, str], environment: dict[str, str]
) -> None:
    """Entries of `[jmsjca]` and environment variables."""
    with contextlib.suppress(ConfigurationError):
        _explained(resolve([connector_layer(section, environment)]), {Level.CONNECTOR})
