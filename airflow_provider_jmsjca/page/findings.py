"""Findings of `airflow jms doctor`.

The first screen requests findings after it is shown: first those that need no broker, then all of them. The
second answer replaces the first, because a broker's finding may be the cause of others.

Every user of the page sees symptoms. Causes and fixes are shown only with the permission to read messages,
because causes often contain texts of exceptions, and fixes contain ids of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from airflow_provider_jmsjca.hooks.metadata import settings_with_short_timeouts
from airflow_provider_jmsjca.operating.findings import Finding, FindingKind, Part, by_kind
from airflow_provider_jmsjca.page.access import Permission
from airflow_provider_jmsjca.page.visit import Visit
from airflow_provider_jmsjca.triggers.examination import examine_installation

_SECONDS: Final = 20.0
"""Maximum time in seconds for all parts together, below the view's time limit in `application`."""
_MOST: Final = 100
_MOST_SHOWN: Final = 10
"""Maximum number of consequences of one finding that are shown one by one."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a table of findings.

    Attributes:
        finding: The finding.
        may_read: Whether the user may read cause and fix.
        summary: Counts of the finding's consequences; empty if there is at most one consequence.
        follows: Rows of the first consequences.
        more: Number of consequences without a row.
    """

    finding: Finding
    may_read: bool
    summary: str = ""
    follows: Sequence[_Row] = ()
    more: int = 0


@dataclass(frozen=True, slots=True)
class _Section:
    """A table of findings about one part of the installation.

    Attributes:
        title: Name of the part.
        rows: The first findings, problems first.
        more: Number of further findings.
        notes: Findings that are no problems.
        elsewhere: Whether findings about the part are shown below their causes, in other tables.
    """

    title: str
    rows: Sequence[_Row]
    more: int
    notes: Sequence[_Row]
    elsewhere: bool


def installation_view(visit: Visit) -> Response:
    """Show findings about triggerer, DAGs, watchers, store, spool and disks."""
    found = examine_installation(settings_with_short_timeouts, brokers=False, within=_SECONDS)
    return _page(visit, found, (Part.INSTALLATION, Part.DAGS), still="Brokers: examining…")


def everything_view(visit: Visit) -> Response:
    """Show findings about the installation and the brokers of all JMS connections."""
    found = examine_installation(settings_with_short_timeouts, within=_SECONDS)
    return _page(visit, found, tuple(Part))


def _page(visit: Visit, found: Sequence[Finding], parts: Sequence[Part], *, still: str = "") -> Response:
    permissions: dict[str, bool] = {}

    def row(finding: Finding) -> _Row:
        conn_id = finding.conn_id
        if conn_id not in permissions:
            permissions[conn_id] = visit.is_allowed(Permission.READ_MESSAGES, conn_id or None)
        follows = finding.consequences
        return _Row(
            finding,
            permissions[conn_id],
            summary=finding.summary if len(follows) > 1 else "",
            follows=list(map(row, follows[:_MOST_SHOWN])),
            more=len(follows) - _MOST_SHOWN,
        )

    def section(part: Part) -> _Section:
        own = by_kind((each for each in found if each.part is part), notes=True)
        shown = [each for each in own if each.kind is not FindingKind.NOTE]
        notes = [each for each in own if each.kind is FindingKind.NOTE]
        return _Section(
            title=str(part),
            rows=list(map(row, shown[:_MOST])),
            more=len(shown) - _MOST,
            notes=list(map(row, notes[:_MOST])),
            elsewhere=any(each.part is part for one in found for each in one.consequences),
        )

    return visit.page(
        "findings.html",
        title="Findings",
        sections=list(map(section, parts)),
        still=still,
        permission=Permission.READ_MESSAGES.value,
    )
