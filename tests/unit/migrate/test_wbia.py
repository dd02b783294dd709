"""The properties of a WBIA connector as an activation: I3-I17, I48, I49."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.migrate.descriptor import read_descriptor, spec_of
from tests.unit.core.texts import ANY_TEXT

_ALL = """
ApplicationName=JMSConnector
InputDestination=A;topic://B; queue://C
PollQuantity=2
InProgressDestination=P
InDoubtEvents=FailOnStartUp
ContainerManagedEvents=
DuplicateEventElimination=true
ArchiveDestination=archive
ErrorDestination=error
UnsubscribedDestination=unsubscribed
ReplyToDestination=replies
MessageResponseResultProperty=result
ConfigurationMetaObject=MO
DataHandlerConfigMO=DH
DataHandlerMimeType=text/xml
OutputDestination=OUT
RestartRetryCount=3
RestartRetryInterval=1
RequestQueue=JMSConnector/REQUESTQUEUE
ControllerStoreAndForwardMode=true
AgentTraceLevel=5
jms.Password=hunter2
"""


def _imported(text: str) -> tuple[ActivationSpec, tuple[str, ...]]:
    found = read_descriptor(properties={"c.properties": text})
    return spec_of(found), found.notes[found.choose()]


def test_every_property_becomes_an_option_or_a_note_i48_i49() -> None:
    """I3, I4, I5, I9, I10, I17, I19, I25, I26, I28, I30, I39, I45."""
    found = read_descriptor(properties={"c.properties": _ALL.replace("topic://B", "queue://B")})
    assert spec_of(found) == ActivationSpec(
        name="JMSConnector",
        destination=["queue://A", "queue://B", "queue://C"],
        poll_quantity=2,
        in_progress_destination="P",
        in_doubt_events="fail_on_startup",
        duplicate_event_elimination=True,
        use_store=True,
        archive_destination="archive",
        error_destination="error",
        unsubscribed_destination="unsubscribed",
        reply_to_destination="replies",
        message_response_result_property="result",
    )
    notes = found.notes["JMSConnector"]
    assert [note.partition(":")[0] for note in notes] == [
        "ConfigurationMetaObject", "DataHandlerConfigMO", "DataHandlerMimeType", "OutputDestination",
        "RestartRetryCount", "RestartRetryInterval", "RequestQueue", "ControllerStoreAndForwardMode",
        "destination",
    ]  # fmt: skip
    assert notes[0] == "ConfigurationMetaObject: no effect: mapping is Python code"
    assert notes[-1].startswith("destination: A: WBIA doesn't say whether")
    assert found.dropped == ("c.properties > AgentTraceLevel, jms.Password",)
    assert "hunter2" not in repr(found)


def test_container_managed_events_need_the_source_queue_that_is_usual_i16_i48() -> None:
    text = "InputDestination=queue://IN\nErrorDestination=E\nContainerManagedEvents=JMS\nPollQuantity=25\n"
    spec, notes = _imported(f"{text}ApplicationName=Shop\n")
    assert (spec.container_managed_events, spec.source_queue) == ("jms", "Shop/SOURCEQUEUE")
    assert notes == ("poll_quantity: no effect with one destination: messages are pushed",)
    with pytest.raises(ConfigurationError, match="source_queue: missing"):
        _imported(text)


def test_a_setting_that_would_act_differently_is_noted_i14_i28() -> None:
    """WBIA discards failed events, and knows doubt only by the in-progress destination."""
    spec, notes = _imported("InputDestination=topic://IN\nInDoubtEvents=LogError\n")
    assert spec.destinations == (Destination.topic("IN"),)
    assert spec.in_doubt_events == "reprocess"
    assert [note.partition(",")[0].partition(" no ")[0] for note in notes] == [
        "in_doubt_events: dropped: without in_progress_destination or use_store",
        "error_destination: not set; WBIA discards an event that fails",
    ]


@pytest.mark.parametrize(
    "form",
    [
        '<x:property name="{}" value="{}"/>',
        '<x:Property Name="{}"><x:Value> {} </x:Value></x:Property>',
        "<property><name>{}</name><value>{}</value></property>",
    ],
)
def test_an_xml_file_has_names_and_values_i49(form: str) -> None:
    properties = "".join(
        form.format(*each)
        for each in (
            ("ApplicationName", "Shop"),
            ("AdminInQueue", "secret-looking"),
            ("InputDestination", "queue://IN"),
            ("ErrorDestination", "discard"),
        )
    )
    text = f'<x:Connector xmlns:x="urn:x"><x:standard>{properties}</x:standard></x:Connector>'
    assert ActivationSpec.from_xml(text) == ActivationSpec(
        name="Shop", destination="queue://IN", error_destination="discard"
    )
    assert read_descriptor(text).dropped == ("Connector > AdminInQueue",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("InputDestination=\n", "destination: missing"),
        ("PollQuantity=5\n", "c.properties: no activation found"),
        ("InputDestination=queue://q\nPollQuantity=many\n", "poll_quantity: got 'many'"),
        ("a=\\u12\n", "c.properties: line 1: broken escape"),
    ],
)
def test_refuses(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        _imported(text)


_LINES = st.sampled_from(
    [
        "InputDestination=",
        "PollQuantity=",
        "DuplicateEventElimination=true",
        "ErrorDestination=",
        "\n",
        ";",
        "q",
    ]
)


@settings(deadline=None)
@given(ANY_TEXT | st.lists(_LINES, max_size=12).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert _imported(text)[0].destination
