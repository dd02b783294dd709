"""What works on which broker, from what the contract suite found out.

    python -m pytest tests/contract
    python -m tests.docs.brokers_page       # takes the results over into docs/reference/brokers.json
    python -m tests.docs                    # writes the page and the picture from there

The results are kept beside the page, so that the page can be made, and checked, without any broker.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import Any

from airflow_provider_jmsjca.transports.base import Capabilities
from tests.servers.folders import run_folder

ROOT = Path(__file__).resolve().parents[2]
REPORT = run_folder() / "contract-report.json"
RESULTS = ROOT / "docs" / "reference" / "brokers.json"
ORDER = {
    "activemq": "ActiveMQ Classic",
    "artemis": "Apache Artemis",
    "rabbitmq": "RabbitMQ",
    "memory": "in memory (`vm://`)",
}
# Capability -> its name in the picture, what a user gets with it, and without it.
MEANINGS = {
    "atomic_commit": (
        "Sends and settlements in one transaction",
        "A transaction's sends and acknowledgements happen together or not at all",
        "sends are confirmed before anything is acknowledged: a crash in between repeats, it loses nothing",
    ),
    "deduplicating_send": (
        "Duplicate sends dropped by their id",
        "The broker drops a second message with the same deduplication id",
        "a deduplication id in `session.send` is refused",
    ),
    "delivery_count": (
        "Deliveries are counted",
        "`delivery_count` says how often the broker delivered the message",
        "it is `None`; attempts are counted by us",
    ),
    "redelivered_flag": (
        "Repeated messages are marked",
        "`redelivered` is true of a message that came before",
        "it may be `False` all the same",
    ),
    "stable_message_id": (
        "A message keeps its id",
        "`message_id` stays the same when a message comes again, whoever sent it",
        "on RabbitMQ those of this package keep theirs; `message_id_fallback` stands for others",
    ),
    "selector": ("Message selectors", "The broker filters by message selector", "a selector is refused"),
    "browse": (
        "Browsing a queue",
        "Messages can be looked at without taking them",
        "browsing is refused",
    ),
    "backlog": (
        "Length of a queue is told",
        "The broker tells how much a queue holds, and who has it",
        "a message that stays there is not noticed by a listener or an event trigger",
    ),
    "durable_subscription": (
        "Durable subscriptions",
        "A topic keeps messages for a named subscriber that is away",
        "a durable subscription is refused",
    ),
    "delayed_delivery": (
        "Delayed delivery",
        "A message can be sent for later",
        "limbo keeps it, for tasks and with `use_store`; else a delay is refused",
    ),
    "typed_properties": (
        "Typed properties",
        "Properties keep their types",
        "they arrive as text: `5`, `true`, `1.5`",
    ),
    "unit_frees_prefetch": (
        "Transactions larger than the prefetch",
        "What a transaction acknowledges makes room for more before its commit",
        "a transaction settles no more messages than the prefetch",
    ),
    "cumulative_acknowledgement": (
        "Batches settled at once",
        "One acknowledgement settles all messages before it on the same consumer",
        "each message is acknowledged by itself",
    ),
    "own_sessions": (
        "Batches settled at once, over a connection for each",
        "The same for a consumer with a connection of its own, which each batch at a time takes",
        "batches share a connection",
    ),
    "priority": (
        "Priorities",
        "Higher priorities overtake lower ones on the default configuration",
        "the priority travels with the message and changes nothing",
    ),
    "message_groups": (
        "Message groups",
        "`JMSXGroupID` keeps a group on one consumer",
        "groups are spread over the consumers",
    ),
}


def render(results: Mapping[str, Any] | None = None) -> str:
    """Return the page.

    Args:
        results: As the suite writes them; `None` reads those that are kept beside the page.
    """
    results = kept() if results is None else results
    names = [name for name in ORDER if name in results]
    return "\n".join(
        [
            "# What works on which broker",
            "",
            "Made by `python -m tests.docs` from the results of one set of tests that ran over",
            "every broker.",
            "What a broker can't do is refused as soon as a configuration needs it, by its name.",
            "A test that needs what the tested set-up of a broker lacks, such as a forbidden queue,",
            "isn't run.",
            "",
            "![What works on ActiveMQ Classic, Artemis, RabbitMQ and in memory](../pictures/brokers.svg)",
            "",
            *_table(
                ["", *(ORDER[name] for name in names)],
                [
                    ["version tested", *(_version(results[name]) for name in names)],
                    ["contract tests passed", *(_passed(results[name]) for name in names)],
                    *(
                        [
                            f"`{key}`",
                            *("yes" if results[name]["capabilities"][key] else "no" for name in names),
                        ]
                        for key in MEANINGS
                    ),
                    [
                        "body kinds",
                        *(", ".join(results[name]["capabilities"]["body_kinds"]) for name in names),
                    ],
                    ["longest property, characters", *(_longest(results[name]) for name in names)],
                ],
            ),
            "",
            "## What the words mean",
            "",
            *_table(
                ["capability", "with it", "without it"],
                [[f"`{key}`", given, lacking] for key, (_, given, lacking) in MEANINGS.items()],
            ),
            "",
        ]
    )


def kept() -> dict[str, Any]:
    """Return the results that are kept beside the page."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def render_picture_source(results: Mapping[str, Any] | None = None) -> str:
    """Return what works on which broker as a table in Graphviz's language.

    Args:
        results: As the suite writes them; `None` reads those that are kept beside the page.
    """
    results = kept() if results is None else results
    names = [name for name in ORDER if name in results]
    heads = "".join(f"<TD><B>{escape(ORDER[name].replace('`', ''))}</B></TD>" for name in names)
    rows = [
        f'<TR><TD ALIGN="LEFT">{escape(label)}</TD>'
        + "".join(_YES if results[name]["capabilities"][key] else _NO for name in names)
        + "</TR>"
        for key, (label, _, _) in MEANINGS.items()
    ]
    table = "\n".join([f"<TR><TD></TD>{heads}</TR>", *rows])
    return f"""digraph brokers {{
  graph [bgcolor=white, pad=0.15]
  node [shape=plain, fontname="Helvetica", fontsize=11]
  table [label=<<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="0" CELLPADDING="6" COLOR="#b8c4d0">
{table}
</TABLE>>]
}}
"""


_YES = '<TD BGCOLOR="#e5f3e5"><FONT COLOR="#2c6b2c">yes</FONT></TD>'
_NO = '<TD BGCOLOR="#fbeeec"><FONT COLOR="#9c3b2e">no</FONT></TD>'


def missing_words() -> set[str]:
    """Return the capabilities this page has no words for."""
    told_otherwise = {"body_kinds", "max_property_characters"}
    return {item.name for item in fields(Capabilities)} - set(MEANINGS) - told_otherwise


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def _version(result: Mapping[str, Any]) -> str:
    return result["version"] or "–"  # noqa: RUF001  # a dash is meant


def _passed(result: Mapping[str, Any]) -> str:
    outcomes = Counter(result["tests"].values())
    skipped = outcomes.pop("skipped", 0)
    passed = f"{outcomes['passed']} of {outcomes.total()}"
    return f"{passed}; {skipped} not run" if skipped else passed


def _longest(result: Mapping[str, Any]) -> str:
    longest = result["capabilities"]["max_property_characters"]
    return "no limit known" if longest is None else f"{longest:,}"


def main() -> int:
    """Take over the results of the last run of the suite."""
    if not REPORT.exists():
        print(f"{REPORT} is missing: run python -m pytest tests/contract first")
        return 1
    results = json.loads(REPORT.read_text(encoding="utf-8"))
    for found in results.values():
        found.pop("run", None)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
