from __future__ import annotations

import pytest

from tests.servers.logs import cause_in

JAVA = """\
 INFO | Loading
java.lang.RuntimeException: Execution Failed
\tat org.example.Main.run(Main.java:12)
Caused by: java.lang.IllegalStateException: Failed to start
\tat org.example.Broker.start(Broker.java:3)
\t... 3 more
Caused by: java.net.BindException: Address already in use
\tat java.base/sun.nio.ch.Net.bind0(Native Method)
\t... 9 more
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", "it wrote nothing"),
        ("first\n\nlast words\n\n", "last words"),
        ("[error] no such user\nbye\n", "[error] no such user"),
        (JAVA, "Caused by: java.net.BindException: Address already in use"),
        ("e" * 301, "e" * 300 + "..."),
    ],
)
def test_the_line_that_names_the_cause(log: str, expected: str) -> None:
    assert cause_in(log) == expected
