"""What the commands of `airflow jms activations` do."""

from __future__ import annotations

import argparse
import contextlib
import sys

from airflow_provider_jmsjca.cli.commands import as_listed, check_choice, one_line_errors, print_page
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.store import installed_store
from airflow_provider_jmsjca.store.base import ActivationOrder, Store

_PAGE = 1_000


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print the activations whose delivery is stopped, and why."""
    with contextlib.closing(installed_store()) as store:
        found = store.activations.page(limit=args.limit + 1, after=args.after)
    rows = [
        {
            "activation": each.activation,
            "wanted": str(each.wanted),
            "since": each.since.isoformat(timespec="seconds"),
            "reason": each.reason,
            "asked_by": each.asked_by,
            "where": each.where,
        }
        for each in found
    ]
    print_page(args, rows)


@one_line_errors
def resume_command(args: argparse.Namespace) -> None:
    """Let activations consume again."""
    check_choice(
        args,
        things="activations",
        chosen=bool(args.activations),
        ids=args.activations,
        ways="their names, as airflow jms activations list shows them",
    )
    with contextlib.closing(installed_store()) as store:
        stopped = [each.activation for each in _all(store)]
        chosen = stopped if args.all else [as_listed(each, stopped) or "" for each in args.activations]
        unknown = [
            typed for typed, each in zip(args.activations, chosen, strict=False) if each not in stopped
        ]
        if unknown:
            raise ConfigurationError(
                f"activation {unknown[0]!r} is not stopped; see airflow jms activations list"
            )
        count = store.activations.resume(chosen)
    sys.stdout.write(f"{count} activations resumed; their next runs consume again\n")


def _all(store: Store) -> list[ActivationOrder]:
    found: list[ActivationOrder] = []
    while some := store.activations.page(limit=_PAGE, after=len(found)):
        found += some
    return found
