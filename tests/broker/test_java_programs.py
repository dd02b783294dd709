"""The Java programs of the pages do what their pages say, with a real broker and its own Java client."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from airflow_provider_jmsjca import Activation, ActivationSpec, Destination, JmsMessage, Outgoing, connect
from tests.docs.blocks import blocks
from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import Broker
from tests.servers.ports import HOST

ROOT = Path(__file__).parents[2]
# What a bean sees: Java compares the types too, which a selector over STOMP can't show.
LOOK = """
import jakarta.jms.*;
import java.util.*;
import org.apache.activemq.ActiveMQConnectionFactory;

public class Look {
    public static void main(String[] given) throws Exception {
        ActiveMQConnectionFactory broker = new ActiveMQConnectionFactory(
            System.getenv("BROKER_USER"), System.getenv("BROKER_PASSWORD"), given[0]);
        Connection connection = broker.createConnection();
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        for (String selector : Arrays.copyOfRange(given, 2, given.length)) {
            QueueBrowser browser = session.createBrowser(session.createQueue(given[1]), selector);
            System.out.println(Collections.list(browser.getEnumeration()).size());
        }
        connection.close();
    }
}
"""
AS_THE_BEAN = "type = 'express' AND amount > 100"


class Java:
    """Runs programs of one file, as the pages say."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker, self._folder = broker, folder
        for page in ("docs/how-to/dead-letters.md", "docs/migrate/weblogic.md"):
            for block in blocks(ROOT, page):
                if block.language == "java":
                    assert block.saved_as
                    (folder / block.saved_as).write_text(block.text, encoding="utf-8")
        (folder / "Look.java").write_text(LOOK, encoding="utf-8")

    def run(self, program: str, *arguments: str) -> list[str]:
        done = self.ended(program, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def ended(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        address = f"tcp://{HOST}:{self._broker.ports['openwire']}"
        command = ["java", "-cp", ":".join(map(str, ActiveMQClassic.jars())), f"{program}.java", address]
        user = {"BROKER_USER": self._broker.username, "BROKER_PASSWORD": self._broker.password}
        return subprocess.run(
            [*command, *arguments],
            cwd=self._folder, env={**os.environ, **user}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip


@pytest.fixture
def java(activemq: Broker, tmp_path: Path) -> Java:
    if shutil.which("javac") is None:
        assert os.environ.get("CI") != "true"
        pytest.skip("not tested: programs of one file need a Java with a compiler")
    return Java(activemq, tmp_path)


def test_a_bean_finds_what_was_sent_back_by_the_java_program(
    activemq: Broker, java: Java, queue_name: str
) -> None:
    queue, dead = Destination.queue(queue_name), Destination.queue(f"{queue_name}.dlq")
    for _ in range(2):
        java.run("SendOrder", queue_name)
    connection = connect(activemq.settings())
    order = JmsMessage.text("{}", properties={"type": "express", "amount": 200, "region": "eu"})
    connection.send([Outgoing(destination=queue, message=order)])
    assert java.run("Look", queue_name, AS_THE_BEAN) == ["2"]
    spec = ActivationSpec(
        destination=str(queue), message_selector=AS_THE_BEAN, redelivery_handling="1:move(queue:$.dlq)"
    )

    def fail(_: object) -> None:
        raise ValueError("bad order")

    Activation(spec, fail, connection=activemq.settings()).run(max_messages=3, idle_for=20)
    # Of the two from Java `type` is lost; of all three the number has become text.
    texts = ["amount > 100", "amount = '150'", "type = 'express'", "JMSType = 'express'"]
    assert java.run("Look", dead.name, *texts) == ["0", "2", "0", "2"]

    done = java.ended("SendBack", dead.name, queue_name, "amount=int", "region=int")

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "region=eu is no int: it stays text"
    assert java.run("Look", dead.name, "TRUE") == ["0"]
    found = java.run("Look", queue_name, AS_THE_BEAN, "amount = 200 AND region = 'eu'", "amount = 150")
    assert found == ["3", "1", "2"]
    assert all("JMS_Sun_JMSJCA" not in name for each in connection.browse(queue) for name in each.properties)
    connection.close()

    # What has its types keeps them, named or not.
    java.run("SendBack", queue_name, f"{queue_name}.aside")
    assert java.run("Look", f"{queue_name}.aside", AS_THE_BEAN) == ["3"]


def test_the_java_program_refuses_to_send_back_to_the_queue_it_reads(java: Java, queue_name: str) -> None:
    java.run("SendOrder", queue_name)

    done = java.ended("SendBack", queue_name, queue_name, "amount=int")

    assert done.returncode != 0
    assert f"both queues are {queue_name}: expected two, or it never ends" in done.stderr
    assert java.run("Look", queue_name, "amount = 150") == ["1"]
