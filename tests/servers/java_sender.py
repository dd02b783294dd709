"""Messages that only Java clients make, sent by ActiveMQ's own client: Spring calls it as an XML file says.

No compiler is needed for that, only the Java and the jars that run the broker.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import Broker
from tests.servers.errors import ServerError
from tests.servers.java import find_java
from tests.servers.ports import HOST

_CALL = "org.springframework.beans.factory.config.MethodInvokingBean"
_NAMESPACE = "http://www.springframework.org/schema/beans"
# Of a class that the broker doesn't trust.
_OBJECT = (
    '<constructor-arg><bean class="java.io.File"><constructor-arg value="/etc"/></bean></constructor-arg>'
)
_SECONDS = 60


def send_from_java(broker: Broker, folder: Path, messages: Sequence[tuple[str, str]]) -> None:
    """Send messages from Java, and wait until the broker has them.

    Args:
        broker: ActiveMQ Classic, started by the tests.
        folder: For the file that says what to do.
        messages: The queue of each, and its kind: `stream`, `object` (of a class not trusted), or `text`.
    """
    factory = (broker.username, broker.password, f"tcp://{HOST}:{broker.ports['openwire']}")
    lines = [
        f'<beans xmlns="{_NAMESPACE}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"',
        f' xsi:schemaLocation="{_NAMESPACE} {_NAMESPACE}/spring-beans.xsd">',
        '<bean id="factory" class="org.apache.activemq.ActiveMQConnectionFactory">',
        *(f"<constructor-arg value={quoteattr(value)}/>" for value in factory),
        "</bean>",
        _made("connection", "factory", "createConnection"),
        _made("session", "connection", "createSession", _values("false", "1")),
    ]
    for number, (queue, kind) in enumerate(messages):
        message, producer = f"message{number}", f"producer{number}"
        lines += [
            _made(f"queue{number}", "session", "createQueue", _values(queue)),
            _made(producer, "session", "createProducer", f'<constructor-arg ref="queue{number}"/>'),
        ]
        match kind:
            case "stream":
                lines.append(_made(message, "session", "createStreamMessage"))
                lines.append(_call(message, "writeString", "<value>hello</value>"))
            case "object":
                lines.append(_made(message, "session", "createObjectMessage", _OBJECT))
            case _:
                lines.append(_made(message, "session", "createTextMessage", _values("hello")))
        lines.append(_call(producer, "send", f'<ref bean="{message}"/>'))
    lines += [
        f'<bean class="{_CALL}"><property name="staticMethod" value="java.lang.System.exit"/>',
        '<property name="arguments" value="0"/></bean>',
        "</beans>",
    ]
    file = folder / "send.xml"
    file.touch(mode=0o600)
    file.write_text("\n".join(lines), encoding="utf-8")
    jars = ":".join(map(str, ActiveMQClassic.jars()))
    shell = ["org.apache.activemq.console.command.ShellCommand", "start", f"xbean:file:{file}"]
    done = subprocess.run(
        [find_java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jars, *shell],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if "Failed to execute start task" in done.stdout or done.returncode:
        raise ServerError(f"Java could not send: {done.stdout[-2000:]}")


def _made(name: str, by: str, method: str, arguments: str = "") -> str:
    return f'<bean id="{name}" factory-bean="{by}" factory-method="{method}">{arguments}</bean>'


def _values(*values: str) -> str:
    return "".join(f"<constructor-arg value={quoteattr(value)}/>" for value in values)


def _call(target: str, method: str, argument: str) -> str:
    return (
        f'<bean class="{_CALL}"><property name="targetObject" ref="{target}"/>'
        f'<property name="targetMethod" value="{method}"/>'
        f'<property name="arguments"><list>{argument}</list></property></bean>'
    )
