"""The command `airflow jms doctor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from airflow_provider_jmsjca.cli.commands import echo, one_line_errors, print_rows
from airflow_provider_jmsjca.hooks.metadata import settings_with_short_timeouts
from airflow_provider_jmsjca.operating.findings import Finding, FindingKind, by_kind
from airflow_provider_jmsjca.triggers.examination import examine_installation

_GIB: Final = 1 << 30
_MOST_SHOWN: Final = 5
"""Maximum number of consequences of one finding that a table shows one by one."""


@one_line_errors
def doctor_command(args: argparse.Namespace) -> None:
    """Print findings; exit with code 1 if there are problems, else with 2 if a part could not be examined."""
    every = examine_installation(
        settings_with_short_timeouts,
        conn_ids=args.conn_id or (),
        dead_letter_queues=args.dead_letter_queue or (),
        least_free=args.min_free * _GIB,
        browse=args.browse,
        within=args.timeout,
    )
    found = by_kind(every, notes=args.notes)
    is_text = args.output in {"table", "plain"}
    if not is_text:
        print_rows(list(map(_tree, found)), args.output)
    elif found:
        print_rows([row for each in found for row in _rows(each)], args.output)
    if is_text and (hidden := len(every) - len(found)):
        lines = "1 line" if hidden == 1 else f"{hidden} lines"
        echo(f"note: {lines} more about parts without problems and parts that can't be examined: add --notes")
    kinds = {each.kind for each in found}
    if FindingKind.PROBLEM in kinds:
        raise SystemExit(1)
    if FindingKind.UNKNOWN in kinds:
        raise SystemExit(2)
    if is_text:
        sys.stdout.write("no problems found\n")


def _tree(finding: Finding) -> dict[str, Any]:
    return {
        "finding": str(finding.kind),
        "part": str(finding.part),
        "symptom": finding.symptom,
        "cause": finding.cause,
        "fix": finding.fix,
        "because_of_this": list(map(_tree, finding.consequences)),
    }


def _rows(finding: Finding) -> Iterator[dict[str, str]]:
    """Yield the row of a finding, then rows of its consequences."""
    yield _row(str(finding.kind), finding.symptom, finding.cause, finding.fix)
    follows: Sequence[Finding] = finding.consequences
    more = len(follows) - _MOST_SHOWN
    if more > 0:
        yield _row("follows", f"because of this: {finding.summary}")
    for each in follows[:_MOST_SHOWN]:
        lead = "- " if more > 0 else "because of this: "
        # Consequences are printed without a fix: the fix of the cause fixes them too.
        yield _row("follows", f"{lead}{each.symptom}", "" if each.cause in finding.cause else each.cause)
    if more > 0:
        yield _row("follows", f"- and {more} more", fix="airflow jms doctor --output json")


def _row(kind: str, symptom: str, cause: str = "", fix: str = "") -> dict[str, str]:
    return {"finding": kind, "symptom": symptom, "cause": cause, "fix": fix}
