"""What the scheduler says to messages that wait for their runs, in a real metadata database."""

# ruff: noqa: PLC0415 - the scheduler's side is imported after the home is set

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_jmsjca import ConfigurationError, JmsAcknowledgeOperator
from tests.airflow.task_runs import execute_on_event, serialized, word_of
from tests.internals.triggers import message_outcome, outcome_key

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # The scheduler's side loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
DONE = {"acknowledged": True}
INSTANCE = SimpleNamespace(dag_id="shop", run_id="shop_1")


class Runs:
    """An asset event, and the runs that have consumed it."""

    def __init__(self, payload: dict[str, Any]) -> None:
        from airflow import settings
        from airflow.models.asset import AssetEvent, AssetModel

        self.session = settings.Session()
        asset = AssetModel(name="orders", uri="orders", group="asset")
        self.session.add(asset)
        self.session.flush()
        self.asset_id = asset.id
        self.event = AssetEvent(asset_id=asset.id, extra={"from_trigger": True, "payload": payload})
        self.session.add(self.event)
        self.session.flush()

    def start(self, name: str, run_type: str = "asset_triggered") -> Any:
        from airflow.models.dagrun import DagRun
        from airflow.utils.types import DagRunType

        run = DagRun(
            dag_id=name, run_id=f"{name}_1", run_type=DagRunType(run_type), state="running",
            run_after=datetime.now(UTC),
        )  # fmt: skip
        run.consumed_asset_events.append(self.event)
        self.session.add(run)
        self.session.flush()
        return run

    def end(self, run: Any, state: str) -> None:
        """End a run as the scheduler does."""
        run.state = state
        self.session.flush()
        run.notify_dagrun_state_changed(msg=state)

    def word(self, token: str = "t1") -> Any:
        return self.kept(outcome_key(token))

    def kept(self, key: str) -> Any:
        from airflow.state import AssetScope, get_state_backend

        found = get_state_backend().get(AssetScope(asset_id=self.asset_id), key, session=self.session)
        return None if found is None else json.loads(found)


@pytest.fixture
def runs() -> Any:
    found = Runs({"event": "message", "hold": {"token": "t1"}})
    yield found
    found.session.rollback()
    found.session.close()


def test_a_run_that_succeeds_acknowledges(runs: Runs) -> None:
    run = runs.start("shop")
    runs.end(run, "running")
    assert runs.word() is None
    runs.end(run, "success")
    assert runs.word() == DONE
    assert runs.kept("jms-heard") == {"t1": DONE}


def test_a_run_that_fails_rolls_back_and_clearing_it_changes_nothing(runs: Runs) -> None:
    run = runs.start("shop")
    runs.end(run, "failed")
    failed = {"acknowledged": False, "why": "DAG shop failed in run shop_1"}
    assert runs.word() == failed
    runs.end(run, "running")
    runs.end(run, "success")
    assert runs.word() == failed


@pytest.mark.parametrize("is_readable", [True, False])
def test_the_failed_task_and_its_exception_are_in_the_outcome(
    monkeypatch: pytest.MonkeyPatch, *, is_readable: bool
) -> None:
    """A held message becomes a dead letter with this reason; it goes back also if the exception is lost."""
    from airflow.models.dagrun import DagRun
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG, Asset
    from airflow.utils.session import create_session
    from sqlalchemy import select

    def fail() -> None:
        raise ValueError("no article 7, password=of-yesterday\nsecond line")

    asset, payload = Asset("orders"), held("jms-hold.a")
    with DAG("shop", schedule=[asset]) as dag:
        # The second task has no try: it fails because of the first.
        PythonOperator(task_id="load", python_callable=fail) >> PythonOperator(
            task_id="never", python_callable=fail
        )
    run_id = execute_on_event(dag, "load", asset, payload).run.run_id
    with create_session() as session:
        # At the end of a failed run, `dag.test()` calls listeners with a run outside of a session.
        run = session.scalar(select(DagRun).where(DagRun.run_id == run_id))
        assert run is not None
        if not is_readable:
            _refuse_states_of_tasks(monkeypatch)
        run.notify_dagrun_state_changed(msg="failed")
    why = word_of(payload)["why"]
    if not is_readable:
        assert why == f"task load of DAG shop failed in run {run_id}"
        return
    assert why.startswith(
        f"task load of DAG shop failed in run {run_id}: ValueError: no article 7, password="
    )
    assert "of-yesterday" not in why
    assert "second line" not in why


def _refuse_states_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.state import TaskScope, get_state_backend

    backend = type(get_state_backend())
    get = backend.get

    def refuse(self: Any, scope: Any, key: str, **options: Any) -> Any:
        if isinstance(scope, TaskScope):
            raise OSError("the backend is away")
        return get(self, scope, key, **options)

    monkeypatch.setattr(backend, "get", refuse)


def test_of_several_runs_all_have_to_succeed(runs: Runs) -> None:
    one, other = runs.start("one"), runs.start("other")
    runs.end(one, "success")
    assert runs.word() is None
    runs.end(other, "success")
    assert runs.word() == DONE


def test_of_several_runs_one_fails_for_all(runs: Runs) -> None:
    one, other = runs.start("one"), runs.start("other")
    runs.end(one, "failed")
    assert runs.word() == {"acknowledged": False, "why": "DAG one failed in run one_1"}
    runs.end(other, "success")
    assert runs.word()["acknowledged"] is False


@pytest.mark.parametrize(
    ("state", "word"),
    [("success", DONE), ("failed", {"acknowledged": False, "why": "DAG shop failed in run shop_1"})],
)
def test_a_run_that_somebody_marks_by_hand_has_ended(state: str, word: Any) -> None:
    """As the button of the web interface does, while the run's task waits."""
    from airflow.api_fastapi.core_api.datamodels.dag_run import DagRunMutableStates
    from airflow.api_fastapi.core_api.services.public.dag_run import patch_dag_run_state
    from airflow.models.dagbag import DBDagBag
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG

    with DAG("shop", schedule=None) as dag:
        EmptyOperator(task_id="wait")
    serialized(dag)
    runs = Runs({"event": "message", "hold": {"token": "t1"}})
    run = runs.start("shop")
    stored_dag = DBDagBag().get_latest_version_of_dag("shop", session=runs.session)
    assert stored_dag is not None
    patch_dag_run_state(dag=stored_dag, dag_run=run, state=DagRunMutableStates(state), session=runs.session)
    runs.session.commit()
    assert (run.state, runs.word()) == (state, word)
    runs.session.close()


def test_the_word_is_part_of_the_transaction_that_ends_the_run(runs: Runs) -> None:
    run = runs.start("shop")
    runs.session.commit()
    runs.end(run, "success")
    runs.session.rollback()
    assert runs.word() is None
    assert run.state == "running"


@pytest.mark.parametrize(
    "payload", [{"event": "message"}, {"hold": 3}, {"hold": {"token": 5}}, {"hold": {}}, {"hold": None}]
)
def test_other_events_and_runs_are_left_alone(payload: dict[str, Any]) -> None:
    runs = Runs(payload)
    runs.end(runs.start("shop"), "success")
    runs.end(runs.start("hand", "manual"), "success")
    from airflow.models.asset_state_store import AssetStateStoreModel

    assert runs.session.query(AssetStateStoreModel).count() == 0
    runs.session.rollback()


def held(*keys: str) -> dict[str, Any]:
    return {
        "event": "message",
        "jms_conn_id": "jms",
        "hold": {"token": "t2", "of": len(keys), "keys": list(keys)},
    }


def stored(runs: Runs, payload: dict[str, Any], *, by_hand: bool = False, **more: Any) -> dict[str, Any]:
    """Store an event as the triggerer does; return what is kept of its messages then."""
    from airflow.assets.manager import AssetManager
    from airflow.models.asset import AssetModel
    from airflow.models.asset_state_store import AssetStateStoreModel

    asset = runs.session.get(AssetModel, runs.asset_id)
    extra = {"from_trigger": True, "payload": payload} | ({"from_rest_api": True} if by_hand else {})
    AssetManager.register_asset_change(asset=asset, extra=extra, session=runs.session, **more)
    rows = runs.session.query(AssetStateStoreModel)
    return {row.key: json.loads(row.value) for row in rows}


def test_what_waits_is_recorded_in_the_transaction_that_stores_the_event(runs: Runs) -> None:
    from airflow.models.asset_state_store import AssetStateStoreModel

    before = time.time()
    found = stored(runs, held("jms-hold.a", "jms-hold.b"))
    assert found.pop("jms-held")["keys"] == ["jms-hold.a", "jms-hold.b"]
    assert {key: (each["token"], each["of"]) for key, each in found.items()} == {
        "jms-hold.a": ("t2", 2),
        "jms-hold.b": ("t2", 2),
    }
    assert all(before <= each["since"] <= time.time() for each in found.values())
    runs.session.rollback()
    assert runs.session.query(AssetStateStoreModel).count() == 0


@pytest.mark.parametrize(
    "payload",
    [{"event": "message"}, {"hold": {"token": "t2"}}, {"hold": {"token": "t2", "keys": "a"}}, held()],
)
def test_of_other_events_nothing_is_recorded(runs: Runs, payload: dict[str, Any]) -> None:
    assert stored(runs, payload) == {}


def test_of_messages_that_wait_no_more_nothing_is_said(runs: Runs) -> None:
    """Their run was cleared after its end: nobody would delete the word."""
    from airflow.models.asset import AssetEvent
    from airflow.state import AssetScope, get_state_backend

    stored(runs, held("jms-hold.a", "jms-hold.b"))
    runs.event = runs.session.query(AssetEvent).order_by(AssetEvent.id.desc()).first()
    run = runs.start("shop")
    store, scope = get_state_backend(), AssetScope(asset_id=runs.asset_id)
    store.delete(scope, "jms-hold.a", session=runs.session)
    # That message has come again in another event.
    store.set(scope, "jms-hold.b", json.dumps({"token": "t3", "of": 1, "since": 0}), session=runs.session)
    runs.end(run, "success")
    assert runs.word("t2") is None
    store.set(scope, "jms-hold.b", json.dumps({"token": "t2", "of": 1, "since": 0}), session=runs.session)
    runs.end(run, "success")
    assert runs.word("t2") == DONE


def test_the_number_of_an_event_is_noted_in_the_transaction_that_stores_it(runs: Runs) -> None:
    receipt = {"key": "jms-stored.a", "stream": "s", "number": 1}
    event = {"event": "message", "jms_conn_id": "jms", "receipt": receipt}
    assert stored(runs, event) == {"jms-stored.a": {"s": [[1, 1]]}}
    assert stored(runs, event | {"receipt": receipt | {"number": 2}}) == {"jms-stored.a": {"s": [[1, 2]]}}
    forged = event | {"receipt": receipt | {"number": 3}}
    assert stored(runs, forged, by_hand=True) == {"jms-stored.a": {"s": [[1, 2]]}}
    runs.session.rollback()


def test_of_two_events_of_one_message_the_runs_of_both_speak(runs: Runs) -> None:
    """A triggerer was believed dead while it lived: its event is stored after that of its successor."""
    from airflow.models.asset import AssetEvent

    successor, slow = held("jms-hold.a"), held("jms-hold.a")
    slow["hold"]["token"] = "t1"
    stored(runs, successor)
    event = runs.session.query(AssetEvent).order_by(AssetEvent.id.desc()).first()
    assert stored(runs, slow)["jms-hold.a"]["also"] == ["t2"]
    runs.event = event
    runs.end(runs.start("shop"), "success")
    assert runs.word("t2") == DONE


@pytest.mark.parametrize(
    ("payload", "asked_again"),
    [({"event": "ready", "jms_conn_id": "jms"}, True), ({"event": "other"}, False)],
)
def test_an_event_asks_anew_for_a_run_that_is_not_made_yet(
    runs: Runs, payload: dict[str, Any], asked_again: bool
) -> None:
    """Airflow's scheduler gives a run the events up to the time at which it was asked for."""
    from airflow.models.asset import AssetDagRunQueue, AssetEvent, AssetModel
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel

    earlier = datetime(2026, 1, 1, tzinfo=UTC)
    runs.session.add(DagBundleModel(name="files"))
    runs.session.flush()
    runs.session.add(DagModel(dag_id="shop", bundle_name="files"))
    other = AssetModel(name="other", uri="other", group="asset")
    runs.session.add(other)
    runs.session.flush()
    for asset_id in (runs.asset_id, other.id):
        asked = AssetDagRunQueue(asset_id=asset_id, target_dag_id="shop", created_at=earlier)
        runs.session.add(asked)
    runs.session.flush()
    stored(runs, payload)
    runs.session.flush()
    runs.session.expire_all()
    event = runs.session.query(AssetEvent).order_by(AssetEvent.id.desc()).first()
    found = {each.asset_id: each.created_at for each in runs.session.query(AssetDagRunQueue)}
    assert (found[runs.asset_id] >= event.timestamp) is asked_again
    assert found[other.id] == earlier


@pytest.mark.parametrize("state", ["success", "failed"])
@pytest.mark.parametrize(
    ("is_paused", "seconds", "waits", "asked_again"),
    [
        (False, 1, False, True),
        (True, 1, False, False),
        (None, 1, False, False),
        (False, -1, False, False),
        (False, 1, True, False),
    ],
    ids=["missed", "the DAG is paused", "the DAG is gone", "nothing came", "somebody asks already"],
)
def test_at_its_end_a_run_asks_for_what_was_missed_while_it_was_made(
    runs: Runs, *, state: str, is_paused: bool | None, seconds: int, waits: bool, asked_again: bool
) -> None:
    """On SQLite the scheduler may delete what an event has asked meanwhile."""
    from airflow.models.asset import AssetDagRunQueue, AssetEvent
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel

    earlier = datetime(2026, 1, 1, tzinfo=UTC)
    runs.session.add(DagBundleModel(name="files"))
    runs.session.flush()
    if is_paused is not None:
        runs.session.add(DagModel(dag_id="shop", bundle_name="files", is_paused=is_paused))
        runs.session.flush()
    if waits:
        asked = AssetDagRunQueue(asset_id=runs.asset_id, target_dag_id="shop", created_at=earlier)
        runs.session.add(asked)
    run = runs.start("shop")
    runs.event.timestamp = earlier
    missed = run.run_after + timedelta(seconds=seconds)
    runs.session.add(AssetEvent(asset_id=runs.asset_id, extra={}, timestamp=missed))
    runs.end(run, state)
    runs.session.flush()
    found = [each.created_at > earlier for each in runs.session.query(AssetDagRunQueue)]
    assert found == [asked_again] * (asked_again or waits)


def test_an_event_that_a_task_passes_on_is_no_trigger_s(runs: Runs) -> None:
    instance = SimpleNamespace(task_id="t", dag_id="d", run_id="r", map_index=-1)
    assert stored(runs, held("jms-hold.a"), task_instance=instance) == {}


def test_a_run_of_an_event_that_was_made_again_says_nothing(runs: Runs) -> None:
    """By a task that passed it on, or over Airflow's API: the message waits for the runs of the first."""
    from airflow.models.asset import AssetEvent

    first, extra = runs.event, dict(runs.event.extra)
    passed_on = AssetEvent(asset_id=runs.asset_id, extra=extra, source_task_id="t", source_dag_id="d")
    by_hand = AssetEvent(asset_id=runs.asset_id, extra={**extra, "from_rest_api": True})
    runs.session.add_all([passed_on, by_hand])
    waiting = runs.start("shop")
    for name, event in {"passed_on": passed_on, "by_hand": by_hand}.items():
        runs.event = event
        runs.end(runs.start(f"{name}_good"), "success")
        runs.end(runs.start(f"{name}_bad"), "failed")
    assert runs.word() is None
    assert stored(runs, held("jms-hold.a"), by_hand=True) == {}
    runs.event = first
    runs.end(waiting, "success")
    assert runs.word() == DONE


def test_a_task_says_nothing_of_events_that_were_made_again() -> None:
    from airflow.sdk import Asset

    asset, store, extra = Asset("orders"), AssetStore(), {"payload": {"hold": {"token": "a"}}}
    events = [stored_event(extra, source_task_id="t"), stored_event({**extra, "from_rest_api": True})]
    context: Any = {"triggering_asset_events": {asset: events}, "asset_state_store": {asset: store}}
    assert JmsAcknowledgeOperator(task_id="say", asset=asset).execute(context) == 0
    assert store == {}


def stored_event(extra: Any, source_task_id: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(extra=extra, source_task_id=source_task_id)


class AssetStore(dict[str, Any]):
    def set(self, key: str, value: Any) -> None:
        self[key] = value


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        ("acknowledge", DONE),
        ("roll_back", {"acknowledged": False, "why": "task say of DAG shop rolled it back in run shop_1"}),
    ],
)
def test_a_task_says_it_for_every_event_and_the_first_word_counts(outcome: str, word: Any) -> None:
    from airflow.sdk import Asset

    asset, store = Asset("orders"), AssetStore({outcome_key("b"): {"acknowledged": True, "left": 2}})
    extras = [{"payload": {"hold": {"token": token}}} for token in "ab"] + [{"payload": {}}, None]
    context: Any = {
        "triggering_asset_events": {asset: [stored_event(extra) for extra in extras]},
        "asset_state_store": {asset: store},
        "ti": INSTANCE,
    }
    operator = JmsAcknowledgeOperator(task_id="say", asset=asset, outcome=outcome)
    assert operator.execute(context) == 2
    assert store.pop("jms-heard") == {"a": word}
    assert store == {outcome_key("a"): word, outcome_key("b"): {"acknowledged": True, "left": 2}}
    assert operator.inlets == [asset]


def test_a_task_rolls_single_messages_back_and_the_run_decides_about_the_others(runs: Runs) -> None:
    from airflow.sdk import Asset

    asset, store = Asset("orders"), AssetStore()
    hold = {"token": "t1", "of": 2, "keys": []}
    messages = [{"message": {"message_id": "good"}}, {"headers": {"message_id": "bad"}}]
    extra = {"payload": {"event": "batch", "jms_conn_id": "jms", "messages": messages, "hold": hold}}
    other = {"payload": {"message": {"message_id": "other"}, "hold": {"token": "t2"}}}
    context: Any = {
        "triggering_asset_events": {asset: [stored_event(extra), stored_event(other)]},
        "asset_state_store": {asset: store},
        "ti": INSTANCE,
    }
    refuse = JmsAcknowledgeOperator(
        task_id="refuse", asset=asset, outcome="roll_back", message_ids=["bad", "unknown"]
    )
    assert refuse.execute(context) == 1
    word = store[outcome_key("t1")]
    assert (message_outcome(word, "good"), message_outcome(word, "bad")) == (
        None,
        "task refuse of DAG shop rolled it back in run shop_1",
    )
    assert outcome_key("t2") not in store
    from airflow.state import AssetScope, get_state_backend

    scope = AssetScope(asset_id=runs.asset_id)
    get_state_backend().set(scope, outcome_key("t1"), json.dumps(word), session=runs.session)
    runs.end(runs.start("shop"), "success")
    assert message_outcome(runs.word(), "good") is True
    assert message_outcome(runs.word(), "bad") == "task refuse of DAG shop rolled it back in run shop_1"


def test_a_task_says_nothing_of_messages_that_wait_no_more() -> None:
    from airflow.sdk import Asset

    asset, store = Asset("orders"), AssetStore({"jms-hold.b": {"token": "b"}})
    extras = [{"payload": {"hold": {"token": each, "of": 1, "keys": [f"jms-hold.{each}"]}}} for each in "ab"]
    context: Any = {
        "triggering_asset_events": {asset: [stored_event(extra) for extra in extras]},
        "asset_state_store": {asset: store},
        "ti": INSTANCE,
    }
    assert JmsAcknowledgeOperator(task_id="say", asset=asset).execute(context) == 2
    assert store.pop("jms-heard") == {"b": DONE}
    assert store == {"jms-hold.b": {"token": "b"}, outcome_key("b"): DONE}


def test_a_task_of_another_dag_file_refers_to_the_asset() -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG, Asset

    asset, payload = Asset("orders"), held("jms-hold.a")
    with DAG("watching", schedule=[asset]) as watching:
        EmptyOperator(task_id="nothing")
    serialized(watching)
    reference = Asset.ref(name="orders")
    with DAG("acting", schedule=[reference]) as acting:
        JmsAcknowledgeOperator(task_id="say", asset=reference)
    outcome = execute_on_event(acting, "say", asset, payload)
    assert (outcome.value, word_of(payload)) == (1, DONE)


@pytest.mark.parametrize("asset", ["orders", None, 3, ["orders"]])
def test_what_is_no_asset_is_refused_when_the_dag_is_parsed(asset: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected the Asset whose watcher has the trigger"):
        JmsAcknowledgeOperator(task_id="say", asset=asset)


def test_another_word_is_refused() -> None:
    from airflow.sdk import Asset
    from airflow.sdk.exceptions import AirflowFailException

    operator = JmsAcknowledgeOperator(task_id="say", asset=Asset("orders"), outcome="perhaps")
    with pytest.raises(AirflowFailException, match="outcome is 'perhaps'; expected one of 'acknowledge'"):
        operator.execute({})


_START = """
import gc, sys
from airflow.jobs.job import Job

def loaded():
    return "airflow_provider_jmsjca.triggers.activation" in sys.modules

Job()
print(loaded(), gc.get_freeze_count() > 0)
import airflow.cli.commands.triggerer_command
Job()
print(loaded(), gc.get_freeze_count() > 0)
"""


def test_a_triggerer_has_the_triggers_before_its_loop_starts_and_others_do_not_load_them() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _START], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.splitlines()[-2:] == ["False False", "True True"], ran.stdout + ran.stderr
