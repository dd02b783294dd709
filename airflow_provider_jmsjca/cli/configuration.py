"""The commands `airflow jms explain` and `airflow jms import`, and reading of files with activation specs."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_jmsjca.cli.commands import echo, one_line_errors, print_rows
from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.activation.document import LONGEST_TEXT, parse_document
from airflow_provider_jmsjca.core.configuration.explain import display, explain
from airflow_provider_jmsjca.core.configuration.layers import Layer
from airflow_provider_jmsjca.core.configuration.url import LOOKUP, ConnectionUrl
from airflow_provider_jmsjca.core.options import Level, option_by_field, read_value
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.destinations import with_lookups
from airflow_provider_jmsjca.hooks.jms import JmsHook, resolve_levels
from airflow_provider_jmsjca.migrate.descriptor import Descriptor, read_descriptor, spec_of
from airflow_provider_jmsjca.transports import refuse_unknown_scheme
from airflow_provider_jmsjca.transports.settings import check_url
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import check_name

_PROPERTIES = ".properties"


@one_line_errors
def explain_command(args: argparse.Namespace) -> None:
    """Print each effective option with its value (secrets masked), origin and default.

    Then report contradictions between the levels, and addresses or objects that cannot be resolved.
    """
    activation = None if args.activation is None else activation_layer(Path(args.activation), args.name)
    named = _connection_of(activation)
    conn_id = args.conn_id or named
    resolved = resolve_levels(None if conn_id is None else JmsHook(conn_id), activation)
    print_rows([dataclasses.asdict(row) for row in explain(resolved, only_set=args.only_set)], args.output)
    if named is not None and named != conn_id:
        echo(f"note: {_connection_note(named, conn_id)}")
    if resolved.url is not None:
        check_url(resolved.url)
    if activation is not None:
        spec = with_lookups(ActivationSpec.from_resolved(resolved))
        if resolved.url is not None and resolved.url.scheme.startswith("stomp"):
            for reference in spec.destination_references:
                check_name(reference.resolve({}))


@one_line_errors
def import_command(args: argparse.Namespace) -> None:
    """Print the activation spec of another product's configuration files as YAML.

    Comments in the YAML list the files' other settings: of the resource adapter, of connection factories, and
    of destinations. Notes on standard error name:

    - settings without effect in this package,
    - differences in behaviour, and steps that are left to the user,
    - parts of the files that were not read,
    - further activations, if `--name` selects one.
    """
    descriptor = _descriptor(*map(Path, args.files))
    # Printed at the end, so that a failing command writes nothing to a file to which it is redirected.
    printed: list[str] = []
    notes: list[str] = []
    if descriptor.activations:
        spec = spec_of(descriptor, args.name)
        printed.append(spec.to_yaml(secrets=args.secrets))
        notes.extend((*spec.without_effect, *descriptor.notes[descriptor.choose(args.name)]))
        notes.extend(_transport_notes(spec.connection_url))
    if descriptor.destinations:
        printed.append("# destinations, for [jmsjca]\n")
    for name, destination in descriptor.destinations.items():
        printed.append(_comment(f"destination.{name} = {destination}"))
    for title, fields in (
        ("connector, for [jmsjca]", descriptor.connector),
        *(
            (f"{name}, for an Airflow connection", found)
            for name, found in descriptor.connection_factories.items()
        ),
    ):
        printed.append(_comments(title, fields, secrets=args.secrets))
        urls = (text for spelling, text in fields.items() if _names(spelling, "connection_url"))
        notes.extend(note for url in urls for note in _transport_notes(url))
    notes.extend(f"dropped, not read here: {dropped}" for dropped in descriptor.dropped)
    notes.extend(
        f"not printed: activation {name!r}, see --name"
        for name in descriptor.activations
        if args.name is not None and name != args.name
    )
    sys.stdout.write("".join(printed))
    for note in dict.fromkeys(notes):
        echo(f"note: {note}")


def _comments(title: str, fields: Mapping[str, str], *, secrets: bool) -> str:
    lines: list[str] = []
    for spelling, given in fields.items():
        option = option_by_field(spelling)
        if option is None:
            lines.append(f"{spelling}: unknown option")
        elif (value := read_value(option, given, spelling)) is not None:
            shown = str(value) if secrets else display(option, value)
            first, *others = shown.splitlines() or [""]
            lines += [f"{option.name} = {first}", *(f"    {other}" for other in others)]
    return "".join(map(_comment, (title, *lines))) if lines else ""


def _comment(line: str) -> str:
    """Return a text as one comment line in YAML. Escaping keeps names in it from beginning a new line."""
    return f"# {escaped(line)}\n"


def _names(spelling: str, name: str) -> bool:
    option = option_by_field(spelling)
    return option is not None and option.name == name


def _transport_notes(url: str | None) -> Iterator[str]:
    scheme = ConnectionUrl.parse(url).scheme if url else LOOKUP
    if scheme != LOOKUP:
        try:
            refuse_unknown_scheme(scheme)
        except ConfigurationError as error:
            yield str(error)


def activation_layer(path: Path, name: str | None) -> Layer:
    """Return the activation spec in a file as a configuration level.

    Args:
        path: The file: YAML or JSON, or a deployment descriptor if its suffix is `.xml`.
        name: Name of the activation, if a descriptor has several.

    Raises:
        ConfigurationError: The file cannot be read, or is no activation spec.
    """
    fields = (
        _descriptor(path).activation(name)
        if path.suffix == ".xml"
        else parse_document(_text(path, _read(path)))
    )
    return Layer(level=Level.ACTIVATION, source=f"activation {path.name}", fields=fields)


def _descriptor(*files: Path) -> Descriptor:
    properties = [file for file in files if file.suffix == _PROPERTIES]
    others = [file for file in files if file.suffix != _PROPERTIES]
    return read_descriptor(
        *map(_read, others),
        titles=[str(file) for file in others],
        properties={file.name: _text(file, _read(file)) for file in properties},
    )


def _connection_of(activation: Layer | None) -> str | None:
    """Return the Airflow connection that an activation names; `None` if it names none."""
    fields = {} if activation is None else activation.fields
    named = (
        value
        for name, value in fields.items()
        if (found := option_by_field(name)) and found.name == "jms_conn_id"
    )
    return next((str(value) for value in named if value), None)


def _connection_note(named: str, shown: str | None) -> str:
    """Return a note that a DAG will use another connection than the one shown."""
    try:
        JmsHook.get_connection(named)
        undefined = ""
    except AirflowNotFoundException:
        undefined = ", which is not defined in Airflow"
    return (
        f"the activation names connection {named!r}{undefined}. Above are the values with {shown!r}; a task "
        f"takes {named!r}, unless its own jms_conn_id names another"
    )


def _read(path: Path) -> bytes:
    """Return the content of a file; if it is too long, only its beginning.

    The beginning is one byte longer than is accepted, so that the caller refuses it.
    """
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_TEXT + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror or error}") from error


def _text(path: Path, given: bytes) -> str:
    try:
        return given.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not valid UTF-8: invalid byte at offset {error.start}") from error
