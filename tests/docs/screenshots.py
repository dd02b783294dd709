"""Takes the pictures of Airflow's pages in the docs: the tutorial on a real broker, in a real browser.

    make screenshots

Each picture goes to `docs/pictures`.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from PIL import Image

from example_dags.demo.standalone import Standalone
from tests.docs.blocks import blocks
from tests.servers.activemq import ActiveMQClassic
from tests.servers.chromium import chromium
from tests.servers.errors import ServerError
from tests.servers.folders import ROOT, run_folder
from tests.servers.java import spark_java_home

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = ROOT / "docs" / "pictures"
MOST_BYTES = 150 * 1024
DAG_ID, ASSET = "orders_to_spark", "orders-waiting"
COLOURS = 128
RUN_SECONDS = 300.0
SCREEN = {"width": 1280, "height": 720}


def connection_form(page: Page, _: str) -> None:
    """Fill the form of a connection, and open the fields that the package adds to it."""
    page.goto("/connections")
    page.get_by_role("button", name="Add Connection").click()
    form = page.get_by_role("dialog")
    form.locator("input[name=connection_id]").fill("jms_default")
    form.get_by_role("combobox").fill("jms")
    form.get_by_role("option", name="JMS", exact=True).click()
    form.locator("input[name=host]").fill("stomp+ssl://first:61614,second:61614")
    form.locator("input[name=login]").fill("app")
    form.locator("input[name=password]").fill("secret")
    form.locator("input[name=host]").scroll_into_view_if_needed()
    _show(page, "Virtual host")


def connection_options(page: Page, _: str) -> None:
    """Show the package's own fields, with their help, in the form that is open."""
    form = page.get_by_role("dialog")
    form.get_by_role("button", name="Standard Fields").click()
    form.get_by_role("button", name="Extra Fields", exact=True).click()
    _show(page, "prefetch")
    form.get_by_role("button", name="Extra Fields", exact=True).evaluate("it => it.scrollIntoView()")


def dag_run(page: Page, run_id: str) -> None:
    """Show a run of the tutorial's DAG."""
    page.goto(f"/dags/{DAG_ID}/runs/{quote(run_id)}")
    _show(page, "1 Task Instance")


def asset_graph(page: Page, _: str) -> None:
    """Show the asset, the DAG that it starts, and its events."""
    page.goto("/assets")
    page.get_by_role("link", name=ASSET).click()
    _show(page, "Triggered Dag Run")
    page.locator(".react-flow__node").get_by_text(DAG_ID).wait_for()


SHOTS: dict[str, Callable[[Page, str], None]] = {
    "connection-form.png": connection_form,
    "connection-options.png": connection_options,
    "dag-run.png": dag_run,
    "asset-graph.png": asset_graph,
}
"""In this order, in one window; each is given the id of a DAG run."""
PAGE_SHOTS = ("page-activations.png", "page-activation.png", "page-dead-letters.png")
"""Pictures of the page in Airflow, which `tests/airflow/page/test_chromium.py` takes."""


def _show(page: Page, text: str) -> None:
    page.get_by_text(text).first.wait_for()
    page.wait_for_load_state("networkidle")


def save_picture(taken: bytes, path: Path) -> None:
    """Save a screenshot with few colours, which makes it small.

    Raises:
        ServerError: The file is larger than `MOST_BYTES`.
    """
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.name}: {size // 1024} KiB")
    if size > MOST_BYTES:
        raise ServerError(f"{path.name} has {size} bytes, more than {MOST_BYTES}")


def take(url: str, run_id: str) -> None:
    """Take every picture from the Airflow at this address.

    Raises:
        ServerError: A picture is larger than `MOST_BYTES`.
    """
    with chromium() as browser:
        page = browser.new_page(base_url=url, viewport=SCREEN, reduced_motion="reduce")
        for name, show in SHOTS.items():
            show(page, run_id)
            save_picture(page.screenshot(animations="disabled"), FOLDER / name)


def tutorial(broker: ActiveMQClassic, folder: Path) -> Standalone:
    """Return an Airflow that isn't started yet, with the DAG of the tutorial, for this broker."""
    saved = {
        Path(each.saved_as).name: each.text for each in blocks(ROOT, "docs/tutorial.md") if each.saved_as
    }
    (folder / "dags").mkdir(parents=True)
    (folder / "dags" / "orders.py").write_text(saved["orders.py"], encoding="utf-8")
    (folder / "publish.py").write_text(saved["publish.py"], encoding="utf-8")
    host, port = broker.address()
    login = {"login": broker.username, "password": broker.password}
    return Standalone(
        folder / "airflow",
        folder / "dags",
        {
            "AIRFLOW_CONN_JMS_DEFAULT": json.dumps({"conn_type": "jms", "host": host, "port": port, **login}),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "JAVA_HOME": str(spark_java_home()),
        },
    )


def first_run(airflow: Standalone) -> str:
    """Return the id of the DAG's first run when it has succeeded.

    Raises:
        ServerError: The run failed, or didn't end in time.
    """
    deadline = time.monotonic() + RUN_SECONDS
    state = None
    while state != "failed" and time.monotonic() < deadline:
        for run in ((airflow.runs(DAG_ID) if airflow.known(DAG_ID) else None) or ())[:1]:
            state = run["state"]
            if state == "success":
                return str(run["dag_run_id"])
        time.sleep(1)
    raise ServerError(f"the first run of {DAG_ID} is {state}; see {airflow.log_file}")


def main() -> int:
    """Start a broker and Airflow, take the pictures, stop both; return the exit code."""
    folder = run_folder() / "screenshots" / "tutorial"
    shutil.rmtree(folder, ignore_errors=True)
    broker = ActiveMQClassic(folder / "activemq")
    try:
        broker.start()
        with tutorial(broker, folder) as airflow:
            publish = [sys.executable, folder / "publish.py"]
            subprocess.run(publish, env=airflow.environment, check=True, timeout=RUN_SECONDS)
            take(airflow.url, first_run(airflow))
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
