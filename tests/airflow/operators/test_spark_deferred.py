"""`JmsToSparkSubmitOperator(deferrable=True)`: submit, leave the worker, come back."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import JmsToSparkSubmitOperator
from tests.airflow.conftest import Publish
from tests.airflow.task_runs import run_task
from tests.airflow.triggers.waiting import until
from tests.internals.hooks import ClusterAwayError, SparkApplication, kubernetes_client
from tests.internals.triggers import JmsSparkApplicationTrigger
from tests.servers.kubernetes import stand_in_kubernetes
from tests.servers.yarn import StandInYarn, stand_in_yarn

Make = Callable[..., JmsToSparkSubmitOperator]
HANGS = (sys.executable, "-c", "import time; time.sleep(600)")
CLUSTER = {"deploy_mode": "cluster"}
FAILS = (sys.executable, "-c", "raise SystemExit(3)")
pytestmark = [
    pytest.mark.usefixtures("server"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


@pytest.fixture
def yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInYarn]:
    with stand_in_yarn(tmp_path / "yarn") as yarn:
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn.address}
        connect(monkeypatch, "yarn", extra)
        monkeypatch.setenv("PATH", str(yarn.path), prepend=os.pathsep)
        yield yarn


def connect(monkeypatch: pytest.MonkeyPatch, host: str, extra: dict[str, Any]) -> None:
    fields = {"conn_type": "spark", "host": host, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps(fields))


@pytest.fixture
def load(tmp_path: Path) -> Make:
    def make(**arguments: Any) -> JmsToSparkSubmitOperator:
        given: dict[str, Any] = {
            "jms_conn_id": "jms_test", "destination": "queue://orders", "idle_time": 0.5,
            "spool_path": str(tmp_path / "spool"), "spark_conn_id": "spark_test", "deferrable": True,
            "poll_interval": 0.1,
            "application_args": ["--table", str(tmp_path / "table"), "--schema", "id LONG NOT NULL"],
        }  # fmt: skip
        return JmsToSparkSubmitOperator(task_id="load", **given | arguments)

    return make


def attempt() -> Any:
    instance = SimpleNamespace(
        dag_id="dag", run_id="monday", task_id="load", map_index=-1, try_number=1, xcom_push=lambda *_: None
    )
    return {"ti": instance, "task_instance": instance}


def deferred(operator: JmsToSparkSubmitOperator) -> JmsSparkApplicationTrigger:
    """Return the trigger as the triggerer has it."""
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(attempt())
    path, arguments = json.loads(json.dumps(caught.value.trigger.serialize()))
    assert path.endswith(".JmsSparkApplicationTrigger")
    return JmsSparkApplicationTrigger(**arguments)


def fire(trigger: JmsSparkApplicationTrigger) -> dict[str, Any]:
    async def run() -> list[dict[str, Any]]:
        return [event.payload async for event in trigger.run()]

    (payload,) = asyncio.run(asyncio.wait_for(run(), 120))
    return payload


@pytest.mark.usefixtures("metadata")
@pytest.mark.timeout(900)
def test_a_job_on_the_cluster_stores_the_batch_while_no_worker_is_held(
    yarn: StandInYarn, publish: Publish, load: Make, tmp_path: Path
) -> None:
    publish(*(json.dumps({"id": number}) for number in range(5)), "no JSON")
    outcome = run_task(load)
    assert outcome.state == TaskInstanceState.SUCCESS, yarn.log(yarn.submitted[0])
    assert outcome.value["stored"] == {str(tmp_path / "table"): 5}
    assert (outcome.value["rejected"], outcome.value["dead_lettered"]) == (1, 1)
    assert pq.read_table(tmp_path / "table").num_rows == 5
    (name,) = yarn.submitted
    arguments = yarn.arguments(name)
    assert "spark.yarn.submit.waitAppCompletion=false" in arguments
    assert arguments[arguments.index("--deploy-mode") + 1] == "cluster"


def test_a_retry_waits_for_the_application_that_still_runs(
    yarn: StandInYarn, publish: Publish, load: Make
) -> None:
    yarn.drive(*HANGS)
    publish('{"id": 1}')
    first = deferred(load())
    again = deferred(load())  # the worker died before Airflow knew of the deferral
    assert again.application == first.application
    assert len(yarn.submitted) == 1


def test_a_forged_note_leads_to_no_other_resource_manager(
    yarn: StandInYarn, publish: Publish, load: Make, tmp_path: Path
) -> None:
    """It would get a Kerberos ticket, or make the worker ask servers that only the worker can reach."""
    yarn.drive(*HANGS)
    publish('{"id": 1}')
    first = deferred(load())
    (note,) = (tmp_path / "spool").rglob("driver-*.json")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        forged = {**first.application, "place": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        note.write_text(json.dumps(forged))
        again = deferred(load())
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert again.application == first.application


def test_an_application_that_fails_fails_the_task_and_a_retry_submits_anew(
    yarn: StandInYarn, publish: Publish, load: Make
) -> None:
    yarn.drive(*FAILS)
    publish('{"id": 1}')
    event = fire(deferred(load()))
    assert event["how"] == "FINISHED, final status FAILED: User application exited with status 3"
    with pytest.raises(AirflowException, match=r"exited with status 3\), and batch .* is not done"):
        load().resume(attempt(), event)
    assert len(yarn.submitted) == 1
    deferred(load())
    assert len(yarn.submitted) == 2


def test_a_killed_driver_is_noticed(yarn: StandInYarn, publish: Publish, load: Make) -> None:
    yarn.drive(*HANGS)
    publish('{"id": 1}')
    trigger = deferred(load())
    yarn.kill(yarn.submitted[0])
    assert "status 137" in fire(trigger)["how"]


def test_an_application_that_ended_without_a_batch_is_no_success(
    yarn: StandInYarn, publish: Publish, load: Make
) -> None:
    yarn.drive(sys.executable, "-c", "")
    publish('{"id": 1}')
    event = fire(deferred(load()))
    with pytest.raises(AirflowException, match=r"final status SUCCEEDED\), and batch .* is not done"):
        load().resume(attempt(), event)


def test_while_the_resource_manager_is_away_nothing_is_submitted_twice(
    yarn: StandInYarn, publish: Publish, load: Make, caplog: pytest.LogCaptureFixture
) -> None:
    yarn.drive(*HANGS)
    publish('{"id": 1}')
    trigger = deferred(load())
    yarn.away = True
    with pytest.raises(ClusterAwayError, match="answers 503"):
        load().execute(attempt())
    assert len(yarn.submitted) == 1

    async def run() -> dict[str, Any]:
        task = asyncio.ensure_future(trigger._ended())
        await until(lambda: "; retrying" in caplog.text)
        yarn.away, yarn.forgets = False, True
        return await task

    assert asyncio.run(asyncio.wait_for(run(), 60))["how"] == "YARN has no record of it any more"
    assert caplog.text.count("; retrying") == 1


@pytest.mark.timeout(900)
def test_on_kubernetes_a_driver_is_known_by_its_pod_and_gets_the_job_library(
    monkeypatch: pytest.MonkeyPatch, publish: Publish, load: Make, tmp_path: Path
) -> None:
    playing(monkeypatch, "Running")
    monkeypatch.setattr(spark_submit, "kube_client", kubernetes_client(), raising=False)
    publish('{"id": 1}')
    conf = {
        "spark.kubernetes.container.image": "spark",
        "spark.kubernetes.file.upload.path": (tmp_path / "uploaded").as_uri(),
    }
    with stand_in_kubernetes() as kubernetes:
        extra = {"deploy-mode": "cluster", "namespace": "data-jobs"}
        connect(monkeypatch, f"k8s://{kubernetes.address}", extra)
        # Its name has what the name of each driver's pod ends in.
        trigger = deferred(load(conf=conf, spark_arguments={"name": "my-driver-job"}))
    (pod,) = kubernetes.of_kind("Pod")
    assert trigger.application == {
        "cluster": "kubernetes",
        "name": pod["metadata"]["name"],
        "place": "data-jobs",
        "kerberos": False,
    }
    arguments = pod["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--manifest") + 1].endswith("/manifest.json")
    (properties,) = (each["data"]["spark.properties"] for each in kubernetes.of_kind("ConfigMap"))
    assert "/jms-job.zip" in properties
    uploaded = {path.name for path in (tmp_path / "uploaded").glob("*/*")}
    assert {"jms-job.zip", "messages_to_table.py"} <= uploaded


@pytest.mark.parametrize(
    ("extra", "conf", "words"),
    [
        ({}, {}, "expected its namespace as `namespace` in the extra"),
        ({"namespace": "n"}, {"spark.kubernetes.submission.waitAppCompletion": "true"}, "got true"),
    ],
)
def test_what_the_pod_of_a_driver_needs_is_asked_for_before_a_message_is_taken(
    monkeypatch: pytest.MonkeyPatch, load: Make, extra: dict[str, str], conf: dict[str, str], words: str
) -> None:
    playing(monkeypatch, "Running")
    connect(monkeypatch, "k8s://https://k", {"deploy-mode": "cluster", **extra})
    monkeypatch.setattr(JmsToSparkSubmitOperator, "collected", None)
    with pytest.raises(AirflowFailException, match=words):
        load(conf=conf).execute(attempt())


@pytest.mark.parametrize(
    ("host", "arguments", "words"),
    [
        ("local[1]", {}, "expected deploy mode cluster on YARN or Kubernetes"),
        ("yarn", {}, "expected deploy mode cluster on YARN or Kubernetes"),
        ("yarn", {"spark_arguments": CLUSTER}, "expected its address as yarn_resourcemanager_webapp_address"),
        ("yarn", {"spark_arguments": {**CLUSTER, "yarn_rm_auth": 1}}, "can't be passed to the triggerer"),
        ("k8s://https://k", {"spark_arguments": CLUSTER}, "apache-airflow-providers-cncf-kubernetes"),
        ("yarn", {"spark_arguments": CLUSTER, "poll_interval": 0}, "poll_interval is 0"),
    ],
)
def test_what_the_triggerer_cannot_see_is_refused_before_a_message_is_taken(
    monkeypatch: pytest.MonkeyPatch, load: Make, host: str, arguments: dict[str, Any], words: str
) -> None:
    connect(monkeypatch, host, {})
    monkeypatch.setattr(JmsToSparkSubmitOperator, "collected", None)
    with pytest.raises(AirflowFailException, match=words):
        load(**arguments).execute(attempt())


def test_a_trigger_that_can_never_ask_says_so(load: Make, yarn: StandInYarn) -> None:  # noqa: ARG001
    event = fire(JmsSparkApplicationTrigger({"cluster": "mesos"}))
    assert event["event"] == "error"
    with pytest.raises(AirflowFailException, match="mesos"):
        load().resume(attempt(), event)


@pytest.mark.parametrize(
    ("phase", "how"),
    [
        ("Pending", None),
        ("Running", None),
        (None, None),
        ("Succeeded", "the driver's pod is Succeeded"),
        ("Failed", "the driver's pod is Failed"),
        (404, "the driver's pod is gone"),
    ],
)
def test_the_pod_of_a_driver_on_kubernetes(
    monkeypatch: pytest.MonkeyPatch, phase: str | int | None, how: str | None
) -> None:
    """The client of Airflow's provider is played: it isn't installed here."""
    application = SparkApplication.of({"cluster": "kubernetes", "name": "d-driver", "place": "jobs"})
    playing(monkeypatch, phase)
    assert application.ending() == how
    playing(monkeypatch, 500)
    with pytest.raises(ClusterAwayError, match="d-driver"):
        application.ending()


def playing(monkeypatch: pytest.MonkeyPatch, phase: str | int | None) -> None:
    class ApiError(Exception):
        status = phase

    def read(name: str, namespace: str, *, _request_timeout: float) -> Any:
        assert (name, namespace) == ("d-driver", "jobs")
        if isinstance(phase, int):
            raise ApiError
        return SimpleNamespace(status=SimpleNamespace(phase=phase))

    client = types.ModuleType("airflow.providers.cncf.kubernetes.kube_client")
    vars(client).update(
        ApiException=ApiError, get_kube_client=lambda: SimpleNamespace(read_namespaced_pod=read)
    )
    package = types.ModuleType("airflow.providers.cncf.kubernetes")
    vars(package).update(kube_client=client)
    monkeypatch.setitem(sys.modules, "airflow.providers.cncf", types.ModuleType("airflow.providers.cncf"))
    monkeypatch.setitem(sys.modules, "airflow.providers.cncf.kubernetes", package)
    monkeypatch.setitem(sys.modules, "airflow.providers.cncf.kubernetes.kube_client", client)
