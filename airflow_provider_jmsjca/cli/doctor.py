"""The command `airflow jms doctor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Final

from airflow_provider_jmsjca.cli.commands import one_line_errors, print_rows
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.operating.doctor import Finding, FindingKind, by_kind, examine_broker
from airflow_provider_jmsjca.triggers.examination import (
    connections_in_use,
    examine_airflow,
    examine_installed_spool,
    examine_installed_store,
    installed_runs,
)

_GIB: Final = 1 << 30


@one_line_errors
def doctor_command(args: argparse.Namespace) -> None:
    """Print findings; exit with code 1 if there are problems, else with 2 if a part could not be examined."""
    found = by_kind(_examined(args), notes=args.notes)
    if found or args.output != "table":
        print_rows(
            [
                {"finding": str(each.kind), "symptom": each.symptom, "cause": each.cause, "fix": each.fix}
                for each in found
            ],
            args.output,
        )
    kinds = {each.kind for each in found}
    if FindingKind.PROBLEM in kinds:
        raise SystemExit(1)
    if FindingKind.UNKNOWN in kinds:
        raise SystemExit(2)
    if args.output == "table":
        sys.stdout.write("no problems found\n")


def _examined(args: argparse.Namespace) -> Iterator[Finding]:
    state, found = examine_airflow()
    yield from found
    yield from examine_installed_store(args.min_free * _GIB)
    yield from examine_installed_spool(args.min_free * _GIB)
    runs = installed_runs()
    for conn_id in args.conn_id or connections_in_use(state):
        watched = [each for each in state.watched if each.jms_conn_id == conn_id]
        queues = state.dead_letter_queues | frozenset(args.dead_letter_queue or ())
        settings = JmsHook(conn_id).settings
        yield from examine_broker(conn_id, settings, watched, queues, browse=args.browse, runs=runs)
