"""`JmsRequestOperator`, over an in-memory broker and over real ones."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk.lineage import HookLineageCollector
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import (
    ConfigurationError,
    Destination,
    JmsHook,
    JmsMessage,
    JmsRequestOperator,
    MemoryBroker,
    Outgoing,
    TransientBrokerError,
    message_from_event,
)
from tests.airflow.answering import service
from tests.airflow.task_runs import run_task
from tests.internals.assets import jms
from tests.internals.spool import DeduplicationWindow, SpoolBatch, prune
from tests.internals.triggers import JmsListenTrigger
from tests.servers.broker import Broker as RealBroker

Make = Callable[..., JmsRequestOperator]
# Operators load half of Airflow, whose dependencies warn about each other.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def attempt(number: int = 1, run: str = "monday") -> Any:
    instance = SimpleNamespace(dag_id="dag", run_id=run, task_id="ask", map_index=-1, try_number=number)
    return {"ti": instance, "task_instance": instance}


def put(server_queue: str, *messages: JmsMessage, conn_id: str = "jms_test") -> None:
    with JmsHook(conn_id).get_conn() as connection, connection.session() as session:
        destination = Destination.queue(server_queue)
        session.send_all(Outgoing(destination=destination, message=each) for each in messages)


@pytest.fixture
def request_(server: MemoryBroker, tmp_path: Path) -> Make:
    del server

    def make(**arguments: Any) -> JmsRequestOperator:
        given: dict[str, Any] = {
            "destination": "ask", "reply_to": "answers", "message": "how much?", "jms_conn_id": "jms_test",
            "response_timeout": 20, "poke_interval": 0.1, "spool_path": str(tmp_path / "spool"),
        }  # fmt: skip
        return JmsRequestOperator(task_id="ask", **given | arguments)

    return make


def body(value: Any) -> object:
    return message_from_event(json.loads(json.dumps(value))).body


def request_id(server: MemoryBroker) -> str:
    """Return the correlation id of the request that waits on the queue."""
    (found,) = {each.correlation_id for each in server.messages("ask")}
    assert found is not None
    return found


def of_task(correlation_id: str | None, name: str) -> bool:
    """Tell whether an id is a task's, and ends in a code of 128 bits."""
    return re.fullmatch(rf"{re.escape(name)}/[0-9a-f]{{32}}", correlation_id or "") is not None


def held(server: MemoryBroker, queue: str) -> list[object]:
    return [message.body for message in server.messages(queue)]


def fire(deferred: TaskDeferred) -> dict[str, Any]:
    _, arguments = json.loads(json.dumps(deferred.trigger.serialize()))

    async def run() -> list[dict[str, Any]]:
        return [event.payload async for event in JmsListenTrigger(**arguments).run()]

    (payload,) = asyncio.run(asyncio.wait_for(run(), 30))
    return payload


# -- the answer ---------------------------------------------------------------------------------------------


def test_the_answer_is_returned_and_those_of_others_stay_i32(server: MemoryBroker, request_: Make) -> None:
    put(
        "answers",
        replace(JmsMessage.text("somebody else's"), correlation_id="other"),
        JmsMessage.text("none's"),
    )
    with service() as asked:
        value = request_().execute(attempt())
    assert body(value) == "answer to how much?"
    (request,) = asked
    assert of_task(request.correlation_id, "dag/monday/ask/-1")
    assert request.reply_to == Destination.queue("answers")
    assert (value["event"], value["destination"]) == ("answer", "queue://answers")
    assert (value["correlation_id"], value["result"]) == (request.correlation_id, None)
    assert held(server, "answers") == ["somebody else's", "none's"]


def test_an_answer_planted_before_the_request_is_not_taken(
    server: MemoryBroker, request_: Make, tmp_path: Path
) -> None:
    """Whoever plants it knows the names, and how ids are made, and has a spool of its own."""
    with service():
        elsewhere = request_(spool_path=str(tmp_path / "attacker")).execute(attempt())["correlation_id"]
    guesses = ["dag/monday/ask/-1", "dag/monday/ask/-1/", elsewhere, elsewhere.upper()]
    put("answers", *(replace(JmsMessage.text("forged"), correlation_id=each) for each in guesses))
    with service():
        value = request_().execute(attempt())
    assert body(value) == "answer to how much?"
    assert held(server, "answers") == ["forged"] * len(guesses)


@pytest.mark.usefixtures("metadata")
def test_a_task_run_asks_and_is_woken_by_the_answer(server: MemoryBroker, request_: Make) -> None:
    with service() as asked:
        outcome = run_task(lambda: request_(deferrable=True, message={"article": 4711}))
    assert outcome.state == TaskInstanceState.SUCCESS
    assert body(outcome.value) == 'answer to {"article": 4711}'
    assert len(asked) == 1
    assert server.depth("answers") == 0


def test_a_deferred_task_asks_once_and_finds_its_answer_by_the_id(
    server: MemoryBroker, request_: Make
) -> None:
    operator = request_(deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(attempt())
    put("answers", replace(JmsMessage.text("late"), correlation_id=request_id(server)))
    value = request_(deferrable=True).resume(attempt(), fire(deferred.value))
    assert body(value) == "late"
    assert len(held(server, "ask")) == 1


def test_a_selector_finds_the_answer_in_place_of_the_id_i41_i42(server: MemoryBroker, request_: Make) -> None:
    put(
        "answers",
        JmsMessage.text("of 16", {"orderId": 16}),
        JmsMessage.text("of 17", {"orderId": 17}),
        JmsMessage.text("of 17 again", {"orderId": 17}),
    )
    operator = request_(response_selector="orderId = {{ params.order }}", params={"order": 17})
    operator.render_template_fields({"params": {"order": 17}})
    assert body(operator.execute(attempt())) == "of 17"
    assert held(server, "answers") == ["of 16", "of 17 again"]


def test_a_blank_selector_takes_no_answer_but_the_one_to_this_request(
    server: MemoryBroker, request_: Make
) -> None:
    """A template may have become blank."""
    put("answers", JmsMessage.text("to somebody else", correlation_id="theirs"))
    with service():
        assert body(request_(response_selector=" ").execute(attempt())) == "answer to how much?"
    assert held(server, "answers") == ["to somebody else"]


def test_an_id_with_quotes_is_the_id_and_nothing_else_i40(server: MemoryBroker, request_: Make) -> None:
    put("answers", JmsMessage.text("forged"))
    with service():
        value = request_(correlation_id="x' OR 'a' = 'a").execute(attempt())
    assert body(value) == "answer to how much?"
    assert held(server, "answers") == ["forged"]


def test_an_id_may_be_a_number_which_a_template_makes_of_digits(request_: Make) -> None:
    """The answer has it as text, as brokers and the other side do."""
    with service():
        value = request_(correlation_id=17).execute(attempt())
    assert (body(value), value["correlation_id"]) == ("answer to how much?", "17")


@pytest.mark.parametrize("argument", ["correlation_id", "response_selector"])
def test_what_is_no_text_is_refused_before_anything_is_sent(
    server: MemoryBroker, request_: Make, argument: str
) -> None:
    with pytest.raises(AirflowFailException, match=f"{argument} is .'x'., of type list; expected text"):
        request_(**{argument: ["x"]}).execute(attempt())
    assert held(server, "ask") == []


# -- attempts -----------------------------------------------------------------------------------------------


def test_a_retry_takes_the_answer_that_came_meanwhile_and_asks_nobody(
    server: MemoryBroker, request_: Make
) -> None:
    with pytest.raises(
        AirflowException, match=r"no answer to request 'dag/monday/ask/-1/.*' arrived at answers"
    ):
        request_(response_timeout=0.3).execute(attempt())
    assert len(held(server, "ask")) == 1
    put("answers", replace(JmsMessage.text("late"), correlation_id=request_id(server)))
    value = request_().execute(attempt(2))
    assert body(value) == "late"
    assert len(held(server, "ask")) == 1
    assert server.depth("answers") == 0
    assert request_().execute(attempt(3)) == value  # the answer is on file


def test_a_retry_without_an_answer_asks_again_with_the_same_id(server: MemoryBroker, request_: Make) -> None:
    for number in (1, 2):
        with pytest.raises(AirflowException):
            request_(response_timeout=0.3).execute(attempt(number))
    assert of_task(request_id(server), "dag/monday/ask/-1")
    assert len(held(server, "ask")) == 2


@pytest.mark.parametrize("own", [None, "mine"])
def test_a_repeated_request_is_dropped_by_the_broker_where_asked(
    server: MemoryBroker, request_: Make, own: str | None
) -> None:
    for run, number in (("monday", 1), ("monday", 2), ("tuesday", 1)):
        with pytest.raises(AirflowException, match="no answer"):
            request_(response_timeout=0.3, deduplicate=True, correlation_id=own).execute(attempt(number, run))
    found = [each.correlation_id for each in server.messages("ask")]
    assert len(found) == 2
    for each, run in zip(found, ("monday", "tuesday"), strict=True):
        assert each == own or of_task(each, f"dag/{run}/ask/-1")


def test_a_cleared_task_whose_answer_was_pruned_asks_anew(request_: Make, tmp_path: Path) -> None:
    everything = DeduplicationWindow(count=0, age=timedelta(0))
    with service() as asked:
        first = request_().execute(attempt())
        prune(tmp_path / "spool", older_than=timedelta(0), collected=True, horizon=everything)
        second = request_().execute(attempt(2))
    assert of_task(first["correlation_id"], "dag/monday/ask/-1")
    assert of_task(second["correlation_id"], "dag/monday/ask/-1/1")
    assert len(asked) == 2


def test_an_attempt_that_dies_after_the_answer_is_sealed_leaves_it_to_the_next(
    server: MemoryBroker, request_: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = SpoolBatch.complete
    monkeypatch.setattr(SpoolBatch, "complete", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with service() as asked:
        with pytest.raises(KeyboardInterrupt):
            request_().execute(attempt())
        monkeypatch.setattr(SpoolBatch, "complete", complete)
        # The same try number: Airflow doesn't count every death.
        assert body(request_().execute(attempt())) == "answer to how much?"
    assert len(asked) == 1
    assert server.depth("answers") == 0


@pytest.mark.parametrize("failed", [False, True])
def test_an_answer_that_nobody_returned_is_named_by_the_next_request(
    request_: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, failed: bool
) -> None:
    """Also that of a request sent anew after an answer that said no, whose batch has a number more."""
    monkeypatch.setattr(JmsRequestOperator, "log", logging.getLogger("ask"))
    results = iter(["FAIL", "SUCCESS", "SUCCESS"] if failed else ["SUCCESS", "SUCCESS"])

    def make() -> JmsRequestOperator:
        return request_(result_property="Result")

    with service(lambda _: JmsMessage.text("yes", {"Result": next(results)})):
        if failed:
            with pytest.raises(AirflowFailException):
                make().execute(attempt())
        with monkeypatch.context() as patch:
            patch.setattr(SpoolBatch, "complete", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                make().execute(attempt(2))
        assert body(make().execute(attempt(2, "tuesday"))) == "yes"
    [line] = [each for each in caplog.messages if "was never finished: 1 acknowledged" in each]
    assert line.startswith(f"Batch dag~~monday~~ask{'~231' if failed else ''}~~-1 was")
    assert "clear task 'ask' of run 'monday' of DAG 'dag': it continues that batch" in line


# -- lineage ------------------------------------------------------------------------------------------------


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[list[str], list[str]]]:
    """What was noted since the last call, inputs and outputs: a task that was deferred is another process."""
    collector = HookLineageCollector()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(jms, "get_hook_lineage_collector", lambda: collector)

    def since() -> tuple[list[str], list[str]]:
        nonlocal collector
        found, collector = collector.collected_assets, HookLineageCollector()  # type: ignore[no-untyped-call]
        return [each.asset.uri for each in found.inputs], [each.asset.uri for each in found.outputs]

    return since


def test_each_process_that_brings_an_answer_notes_both_queues(
    server: MemoryBroker, request_: Make, noted: Callable[[], tuple[list[str], list[str]]]
) -> None:
    both = [f"jms://{server.name}/queue/answers"], [f"jms://{server.name}/queue/ask"]
    with pytest.raises(TaskDeferred) as deferred:
        request_(deferrable=True).execute(attempt())
    assert noted() == ([], both[1])
    with service():
        request_(deferrable=True).resume(attempt(), fire(deferred.value))
    assert noted() == both
    request_().execute(attempt(2))
    assert noted() == both


# -- failure ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fatal", "kind"), [(False, AirflowException), (True, AirflowFailException)])
def test_no_answer_in_time_i38_i54(request_: Make, fatal: bool, kind: type[Exception]) -> None:
    with pytest.raises(AirflowException, match=r"within 0\.3 s") as caught:
        request_(response_timeout=0.3, timeout_fatal=fatal).execute(attempt())
    assert type(caught.value) is kind


def test_a_deferred_task_without_an_answer_fails_when_time_is_up_i54(request_: Make) -> None:
    operator = request_(deferrable=True, response_timeout=1.5)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(attempt())
    event = fire(deferred.value)
    assert event["event"] == "deadline"
    with pytest.raises(AirflowException, match="no answer to request"):
        request_(deferrable=True, response_timeout=1.5).resume(attempt(), event)


def test_without_a_timeout_it_waits_a_minute_i50(request_: Make) -> None:
    operator = JmsRequestOperator(task_id="ask", destination="ask", reply_to="answers", message="x")
    assert operator.response_timeout == operator.timeout == 60
    with pytest.raises(ConfigurationError, match="response_timeout is -1; expected seconds above 0"):
        request_(response_timeout=-1)


def test_an_answer_that_says_no_fails_the_task_and_a_cleared_one_asks_anew_i45_i46(request_: Make) -> None:
    results = iter(["FAIL", "SUCCESS"])

    def answer(request: JmsMessage) -> JmsMessage:
        return JmsMessage.text(f"about {request.correlation_id}", {"Result": next(results)})

    with service(answer) as asked:
        with pytest.raises(AirflowFailException, match="failed: about dag/monday/ask/-1"):
            request_(result_property="Result").execute(attempt())
        value = request_(result_property="Result").execute(attempt(2))
        assert request_(result_property="Result").execute(attempt(3)) == value
    first, second = asked
    assert of_task(first.correlation_id, "dag/monday/ask/-1")
    assert of_task(second.correlation_id, "dag/monday/ask/-1/1")
    assert (body(value), value["result"]) == (f"about {second.correlation_id}", "SUCCESS")


def test_a_failed_request_is_skipped_with_soft_fail(request_: Make) -> None:
    with (
        service(lambda _: JmsMessage.text("no", {"Result": "VALDUPES"})),
        pytest.raises(AirflowSkipException),
    ):
        request_(result_property="Result", soft_fail=True).execute(attempt())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "reschedule"}, "expected deferrable=True"),
        ({"reply_to": "topic://answers"}, "JmsRequestOperator waits on a queue, not on topic://answers"),
        ({"message": None}, "None is not a message"),
        ({"priority": 11}, "priority is 11"),
        ({"response_selector": "a = "}, "selector"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_is_sent_i47(
    server: MemoryBroker, request_: Make, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(AirflowFailException, match=words):
        request_(**arguments).execute(attempt())
    assert server.depth("ask") == 0


def test_a_broker_that_is_away_is_tried_again_i47(server: MemoryBroker, request_: Make) -> None:
    server.kill()
    with pytest.raises(TransientBrokerError):
        request_().execute(attempt())
    server.restart()
    with service():
        assert body(request_().execute(attempt(2))) == "answer to how much?"


@pytest.mark.parametrize(
    "name", ["peek", "message_selector", "predicate", "fail_on", "max_messages", "timeout"]
)
def test_arguments_of_a_sensor_that_mean_nothing_here_are_refused(request_: Make, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is not allowed"):
        request_(**{name: 1})


# -- real brokers -------------------------------------------------------------------------------------------


def real_connection(broker: RealBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Airflow connection `jms_real` leads to a broker."""
    host, port = broker.address()
    fields = {
        "conn_type": "jms",
        "host": host,
        "port": port,
        "login": broker.username,
        "password": broker.password,
    }
    monkeypatch.setenv("AIRFLOW_CONN_JMS_REAL", json.dumps(fields))


@pytest.mark.parametrize("product", ["activemq", "artemis", "rabbitmq"])
@pytest.mark.parametrize("deferrable", [False, True])
def test_real_brokers_bring_each_task_its_answer(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    product: str,
    deferrable: bool,
) -> None:
    real_connection(request.getfixturevalue(product), monkeypatch)
    ask, answers = uuid.uuid4().hex, uuid.uuid4().hex

    def make() -> JmsRequestOperator:
        return JmsRequestOperator(
            task_id="ask", jms_conn_id="jms_real", destination=f"queue://{ask}", reply_to=f"queue://{answers}",
            message="how much?", response_timeout=60, poke_interval=0.2, deferrable=deferrable,
            spool_path=str(tmp_path / "spool"),
        )  # fmt: skip

    def run(name: str) -> object:
        try:
            return body(make().execute(attempt(run=name)))
        except TaskDeferred as deferred:
            return body(make().resume(attempt(run=name), fire(deferred)))

    def answer(message: JmsMessage) -> JmsMessage:
        return JmsMessage.text(f"to {message.correlation_id}")

    put(
        answers,
        replace(JmsMessage.text("somebody else's"), correlation_id="dag/sunday/ask/-1"),
        conn_id="jms_real",
    )
    with service(answer, conn_id="jms_real", queue=ask) as asked:
        found = [run(name) for name in ("it's monday", "tuesday")]
    for each, name in zip(found, ("dag/it's monday/ask/-1", "dag/tuesday/ask/-1"), strict=True):
        assert of_task(str(each).removeprefix("to "), name)
    assert len(asked) == 2
    with JmsHook("jms_real").get_conn() as connection, connection.session() as session:
        left = session.receive(f"queue://{answers}", timeout=10)
        assert left is not None
        assert left.body == "somebody else's"
        assert session.receive(f"queue://{answers}", timeout=0.3) is None


@pytest.mark.parametrize("product", ["activemq", "artemis", "rabbitmq"])
def test_real_brokers_drop_a_repeated_request_or_refuse_to(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product: str
) -> None:
    real_connection(request.getfixturevalue(product), monkeypatch)
    ask, answers = uuid.uuid4().hex, uuid.uuid4().hex

    def run(number: int) -> None:
        JmsRequestOperator(
            task_id="ask", jms_conn_id="jms_real", destination=f"queue://{ask}", reply_to=f"queue://{answers}",
            message="how much?", response_timeout=0.3, poke_interval=0.1, deduplicate=True,
            spool_path=str(tmp_path / "spool"),
        ).execute(attempt(number, run=ask))  # fmt: skip

    words = "no answer" if product == "artemis" else "deduplicate=True needs the capability"
    for number in (1, 2):
        with pytest.raises(AirflowException, match=words):
            run(number)
    with JmsHook("jms_real").get_conn() as connection, connection.session() as session:
        if product == "artemis":
            assert session.receive(f"queue://{ask}", timeout=30) is not None
        assert session.receive(f"queue://{ask}", timeout=0.3) is None
