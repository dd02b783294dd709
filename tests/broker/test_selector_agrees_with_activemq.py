"""Over STOMP our evaluator selects what ActiveMQ delivers: the same selectors, the same messages.

Every property is a string there, so this is the rule of `strings_as_numbers` (JMS 2.0 section 3.8, J178).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import stomp

from airflow_provider_jmsjca import ConfigurationError, JmsMessage, Selector
from tests.servers.broker import Broker

DEADLINE = 20.0

# Headers of STOMP by message; `key` tells which message it is.
MESSAGES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "plain": {},
        "small": {"n": "3", "w": "2.5", "region": "eu", "flag": "true", "name": "alpha"},
        "large": {"n": "3000000000", "w": "1e3", "region": "us", "flag": "FALSE", "name": "100%"},
        "negative": {"n": "-5", "w": "-0.5", "region": "EU", "flag": "TRUE", "name": "it's"},
        "fraction": {"n": "3.5", "w": ".5", "region": "eu-west", "flag": "yes", "name": "a_b"},
        "words": {"n": "abc", "w": "x", "region": "", "flag": "false", "q": "NaN", "name": "al\u00e4pha"},
        "padded": {"n": "007", "w": " 7 ", "region": "e", "flag": "1", "name": "alphabet", "m": "7"},
        "signed": {"n": "+3", "w": "+3.0", "region": "asia", "flag": " true", "name": "A%"},
        "suffixed": {"n": "3L", "w": "3d", "region": "e_u", "flag": "True", "name": "line"},
        "hurried": {"n": "9", "priority": "9", "type": "order", "correlation-id": "c1", "persistent": "true"},
        "huge": {"n": "99999999999999999999", "w": "1e999", "type": "3", "correlation-id": "c'2"},
    }
)

AGREED = (
    # Text
    "region = 'eu'",
    "region <> 'eu'",
    "NOT (region = 'eu')",
    "region = ''",
    "region = 'EU'",
    "name = 'it''s'",
    "region IN ('eu', 'us')",
    "region NOT IN ('eu', 'us')",
    "n IN ('3', '+3')",
    "region IS NULL",
    "region IS NOT NULL",
    "NOT (region IS NULL)",
    "region LIKE 'e%'",
    "region LIKE 'e_'",
    "region NOT LIKE 'e%'",
    "region LIKE 'e!_u' ESCAPE '!'",
    "name LIKE '%!%' ESCAPE '!'",
    "name LIKE 'al%a'",
    "name LIKE '%ph%'",
    "name LIKE '_'",
    "name LIKE '%'",
    "region LIKE '%-%'",
    "region LIKE ''",
    "n LIKE '3%'",
    # A string beside an exact number
    "n = 3",
    "3 = n",
    "n <> 3",
    "NOT (n = 3)",
    "n <= 3",
    "n = 7",
    "n = -5",
    "n = 3L",
    "n = 3000000000",
    "n <> 3000000000",
    "n = 0x3",
    "n = 03",
    "flag = 1",
    "flag <> 1",
    # A string beside an approximate number
    "n = 3.0",
    "n = 3.5",
    "n > 2.5",
    "n <> 3.5",
    "NOT (n > 2.5)",
    "w = 2.5",
    "w > 0.4",
    "w < 1E1",
    "w = 1000.0",
    "w = 7.",
    "w >= .5",
    "w = 3.0",
    "w <= -0.5",
    # Ranges
    "n BETWEEN 2.5 AND 3.5",
    # Booleans
    "flag = TRUE",
    "flag = FALSE",
    "flag <> TRUE",
    "flag <> FALSE",
    "flag = 'true'",
    "flag",
    "NOT flag",
    "flag OR region = 'us'",
    "TRUE",
    "FALSE",
    "NOT FALSE",
    # Two properties
    "m < n",
    "m <> n",
    "region < name",
    "n > w",
    # Logic with unknown
    "missing = 'x'",
    "NOT (missing = 'x')",
    "missing > 1",
    "missing = 1 AND n > 1",
    "NOT (missing = 1 OR n > 5)",
    "missing NOT IN ('x')",
    "missing NOT LIKE 'x'",
    "missing NOT BETWEEN 1 AND 2",
    "n > 1 AND (region = 'eu' OR w < 0)",
    # Arithmetic on numbers, which only headers and literals are
    "n = 1 + 2",
    "n = 7 / 2",
    "5--3 = 8",
    "n > 2 * 2 - 1",
    "n = -(2 - 5)",
    "JMSPriority * 2 = 18",
    "JMSPriority / 2 = 4.5",
    "missing + 1 = 2",
    # Headers
    "JMSPriority = 9",
    "JMSPriority > 4",
    "JMSPriority = '9'",
    "JMSPriority LIKE '9'",
    "JMSPriority NOT LIKE '9'",
    "JMSPriority IN ('9')",
    "JMSType = 'order'",
    "JMSType = 3",
    "JMSType IS NULL",
    "JMSCorrelationID = 'c1'",
    "JMSCorrelationID LIKE 'c%'",
    "JMSCorrelationID = 'c''2'",
    "JMSDeliveryMode = 'PERSISTENT'",
    "JMSDeliveryMode = 'NON_PERSISTENT'",
    "JMSTimestamp > 0",
    "JMSTimestamp IS NOT NULL",
    "JMSMessageID LIKE 'ID:%'",
    # Case and layout
    "region='eu'and n>2",
    "Region = 'eu'",
    "region In ('eu') oR n beTween 9 and 9",
    "\tregion\n=\r\n'eu' ",
)

# Beside a whole number ActiveMQ reads no text that is a fraction, or too large for its 32 bits: it is sent a
# double, which finds them.
WHOLE = (
    "n > 2",
    "2 < n",
    "n < 4",
    "n >= 3",
    "NOT (n > 2)",
    "n > -10",
    "n > 2999999999",
    "n < 3000000001",
    "w = 3",
    "n BETWEEN 3 AND 9",
    "n NOT BETWEEN 3 AND 9",
    "NOT (n BETWEEN 3 AND 9)",
    "w BETWEEN -1 AND 3",
    "missing IS NULL AND n > 1",
    "missing = 1 OR n > 1",
    "NOT (missing = 1 AND n > 5)",
    "n > 1 AND region = 'eu' OR w < 0",
)

# Where ActiveMQ departs from JMS we don't follow: the selector, what ActiveMQ delivers, what we select.
DIFFERENT: Mapping[str, tuple[set[str], set[str]]] = MappingProxyType(
    {
        # A literal in front of a missing property is not equal to it, rather than unknown.
        "'eu' <> region": (
            {
                "plain",
                "large",
                "negative",
                "fraction",
                "words",
                "padded",
                "signed",
                "suffixed",
                "hurried",
                "huge",
            },
            {"large", "negative", "fraction", "words", "padded", "signed", "suffixed"},
        ),
        # So it is with a property in front of a missing one.
        "region <> missing": (
            {"small", "large", "negative", "fraction", "words", "padded", "signed", "suffixed"},
            set(),
        ),
        # Two missing properties are equal.
        "missing = absent": (set(MESSAGES), set()),
        "m = n": ({"plain"}, set()),
        # Doubles are compared as objects: NaN is equal to itself and above everything else.
        "q > 1.5": ({"words"}, set()),
        # A comment.
        "5--3\n = 5": (set(MESSAGES), set()),
        # Text and a number added are text: '3' + 1 is '31'.
        "m + 1 = 71": ({"padded"}, set()),
    }
)

# Both refuse these.
REFUSED = (
    "region = ",
    "region > 'eu'",
    "n BETWEEN 'a' AND 'b'",
    "region LIKE 3",
    "region IN ()",
    "region IN (1, 2)",
    "(n = 1",
    "n == 1",
    "n != 1",
    "'eu'",
    "3",
    "region LIKE 'x' ESCAPE 'ab'",
    "flag > TRUE",
)


class Inbox(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """Collects the frames of one connection, by subscription."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.frames: dict[str, list[Any]] = {}
        self.receipts: set[str] = set()
        self.errors: list[str] = []

    def on_message(self, frame: Any) -> None:
        with self.changed:
            self.frames.setdefault(frame.headers["subscription"], []).append(frame)
            self.changed.notify_all()

    def on_receipt(self, frame: Any) -> None:
        with self.changed:
            self.receipts.add(frame.headers["receipt-id"])
            self.changed.notify_all()

    def on_error(self, frame: Any) -> None:
        with self.changed:
            self.errors.append(frame.headers.get("message", ""))
            self.changed.notify_all()

    def wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + DEADLINE
        with self.changed:
            if not self.changed.wait_for(condition, deadline - time.monotonic()):
                pytest.fail(f"no {what} within {DEADLINE} s; errors: {self.errors}")


class Line:
    """A STOMP connection to the broker on which selectors are tried out by browsing."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self.inbox = Inbox()
        self.queue = queue
        self._count = 0
        self.connection = stomp.Connection12([broker.address()], heartbeats=(0, 0))
        self.connection.set_listener("inbox", self.inbox)
        self.connection.connect(broker.username, broker.password, wait=True)

    def send(self, key: str, headers: Mapping[str, str]) -> None:
        receipt = f"send-{key}"
        self.connection.send(f"/queue/{self.queue}", "x", headers={**headers, "key": key}, receipt=receipt)
        self.inbox.wait(lambda: receipt in self.inbox.receipts, f"receipt for {key}")

    def browse(self, selector: str | None = None) -> list[Any] | None:
        """Return the frames that the broker selects; `None` if it refuses the selector."""
        self._count += 1
        number = f"browse-{self._count}"
        errors = len(self.inbox.errors)
        headers = {"browser": "true"} | ({"selector": selector} if selector is not None else {})
        self.connection.subscribe(f"/queue/{self.queue}", number, ack="client", headers=headers)

        def ended() -> bool:
            frames = self.inbox.frames.get(number, [])
            return len(self.inbox.errors) > errors or any(
                frame.headers.get("browser") == "end" for frame in frames
            )

        self.inbox.wait(ended, f"end of browsing with {selector!r}")
        if len(self.inbox.errors) > errors:
            return None
        self.connection.unsubscribe(number)
        return [frame for frame in self.inbox.frames[number] if frame.headers.get("browser") != "end"]


@pytest.fixture(scope="module")
def line(activemq: Broker) -> Iterator[Line]:
    line = Line(activemq, f"selectors.{time.time_ns()}")
    for key, headers in MESSAGES.items():
        line.send(key, headers)
    yield line
    line.connection.disconnect()


@pytest.fixture(scope="module")
def messages(line: Line) -> dict[str, JmsMessage]:
    """The messages as a STOMP transport reads them from the frames, all properties strings."""
    frames = line.browse()
    assert frames is not None
    headers = {"message-id", "destination", "subscription", "expires", "priority", "timestamp", "persistent"}
    headers |= {"correlation-id", "type", "content-length", "redelivered"}
    return {
        frame.headers["key"]: JmsMessage.text(
            frame.body,
            {name: value for name, value in frame.headers.items() if name not in headers},
            message_id=frame.headers["message-id"],
            correlation_id=frame.headers.get("correlation-id"),
            type=frame.headers.get("type"),
            timestamp=int(frame.headers["timestamp"]),
            priority=int(frame.headers["priority"]),
            persistent=frame.headers.get("persistent") == "true",
        )
        for frame in frames
    }


def ours(selector: str, messages: Mapping[str, JmsMessage]) -> set[str]:
    parsed = Selector.parse(selector, strings_as_numbers=True)
    return {key for key, message in messages.items() if parsed.matches(message)}


def theirs(selector: str, line: Line) -> set[str] | None:
    frames = line.browse(selector)
    return None if frames is None else {frame.headers["key"] for frame in frames}


def test_every_message_arrived(messages: dict[str, JmsMessage]) -> None:
    assert set(messages) == set(MESSAGES)


def test_there_are_enough_selectors_to_mean_something() -> None:
    assert len(set(AGREED)) >= 60


@pytest.mark.parametrize("selector", AGREED)
def test_we_select_what_activemq_delivers(selector: str, line: Line, messages: dict[str, JmsMessage]) -> None:
    assert ours(selector, messages) == theirs(selector, line)


@pytest.mark.parametrize("selector", ["NOT region = 'us'", "TRUE = flag", "n - 1 = 2", "n * 2 > 2"])
def test_activemq_stops_delivering_without_an_error(selector: str, activemq: Broker, line: Line) -> None:
    """The broker neither answers nor ends the browsing; `Selector.portable` heals the first two."""
    other = Line(activemq, line.queue)
    other.connection.subscribe(
        f"/queue/{line.queue}", "stuck", ack="client", headers={"browser": "true", "selector": selector}
    )
    with other.inbox.changed:
        other.inbox.changed.wait_for(lambda: other.inbox.frames or other.inbox.errors, timeout=2)
    assert (other.inbox.frames, other.inbox.errors) == ({}, [])
    other.connection.disconnect()


@pytest.mark.parametrize("selector", WHOLE)
def test_activemq_passes_over_text_beside_a_whole_number(
    selector: str, line: Line, messages: dict[str, JmsMessage]
) -> None:
    assert ours(selector, messages) != theirs(selector, line)


@pytest.mark.parametrize("selector", AGREED + WHOLE)
def test_the_portable_spelling_means_the_same_to_activemq(
    selector: str, line: Line, messages: dict[str, JmsMessage]
) -> None:
    assert theirs(Selector.parse(selector).portable, line) == ours(selector, messages)


@pytest.mark.parametrize(
    "selector",
    [
        "NOT region = 'us'",  # there NOT binds tighter, and the comparison with text then stops deliveries
        "NOT n > 2",
        "TRUE = flag",
        "'eu' <> region",
        "missing = null",
        "region <> NULL AND n = 3",
        "NOT region IS NULL",
        "NOT region LIKE 'e%'",
        "NOT region IN ('eu')",
        "5--3 = n + 0 OR n = 5 - -4",
    ],
)
def test_the_portable_spelling_heals_what_activemq_reads_differently(
    selector: str, line: Line, messages: dict[str, JmsMessage]
) -> None:
    """J182 among them: `missing = null`."""
    assert theirs(Selector.parse(selector).portable, line) == ours(selector, messages)


@pytest.mark.parametrize("selector", DIFFERENT)
def test_the_documented_differences_are_still_there(
    selector: str, line: Line, messages: dict[str, JmsMessage]
) -> None:
    assert (theirs(selector, line), ours(selector, messages)) == DIFFERENT[selector]


@pytest.mark.parametrize("selector", REFUSED)
def test_what_we_refuse_activemq_refuses(selector: str, line: Line) -> None:
    with pytest.raises(ConfigurationError, match="message selector, position"):
        Selector.parse(selector, strings_as_numbers=True)
    assert theirs(selector, line) is None


def test_activemq_refuses_the_comparison_with_null_that_jmsjca_documents(line: Line) -> None:
    """J182: we read `sub = null` as `sub IS NULL`, and `Selector.portable` spells it so."""
    assert theirs("missing = null", line) is None
