"""A strict reader of Prometheus' text format, as its documentation describes version 0.0.4."""

from __future__ import annotations

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"(?P<name>{_NAME})\{{(?P<labels>(?:{_LABEL}(?:,{_LABEL})*)?)\}} (?P<value>\S+)")
_ONE_LABEL = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parsed(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return the samples: name, labels, value; fail where the text breaks a rule of the format."""
    assert text.endswith("\n") or not text
    found: list[tuple[str, dict[str, str], float]] = []
    helped: set[str] = set()
    typed: dict[str, str] = {}
    current = ""
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            _, _, name, meaning = line.split(" ", 3)
            assert meaning
            assert name not in helped, f"{name} has two helps"
            helped.add(name)
            current = name
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current, f"type of {name} apart from its help"
            assert kind in {"counter", "gauge"}
            typed[name] = kind
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, f"no sample: {line!r}"
            assert match["name"] == current, f"{match['name']} stands among others"
            assert match["name"] in typed
            labels = {
                each["name"]: re.sub(r"\\.", lambda escape: _ESCAPES[escape[0]], each["value"])
                for each in _ONE_LABEL.finditer(match["labels"])
            }
            found.append((match["name"], labels, float(match["value"])))
    series = [(name, tuple(sorted(labels.items()))) for name, labels, _ in found]
    assert len(series) == len(set(series)), "a series appears twice"
    return found
