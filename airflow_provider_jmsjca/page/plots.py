"""Plots of the counts of activations, as SVG in the page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from markupsafe import Markup

_WIDTH, _HEIGHT = 720, 120
_LEFT, _BOTTOM, _TOP = 60, 20, 8
_STEP: Final = timedelta(minutes=1)
_SILENT: Final = 3 * _STEP
"""Age of the last value from which the title names its time."""

Points = Sequence[tuple[datetime, float | None]]


def plot(title: str, points: Points, since: datetime, until: datetime) -> Markup:
    """Return a plot of one value over time.

    Args:
        title: Name of the value.
        points: Values by minute, in the order of time; `None` and missing minutes leave gaps. The title says
            so if there is no value for the last minutes.
        since: Time at the left edge.
        until: Time at the right edge.
    """
    known = [(at, value) for at, value in points if value is not None]
    highest = max((value for _, value in known), default=0) or 1
    span = (until - since).total_seconds() or 1

    def x(at: datetime) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - 8) * (at - since).total_seconds() / span, 1)

    def y(value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / highest, 1)

    lines: list[list[str]] = []
    before = None
    for at, value in known:
        if before is None or at - before > 2 * _STEP:
            lines.append([])
        lines[-1].append(f"{x(at)},{y(value)}")
        before = at
    drawn = Markup("").join(
        Markup('<polyline points="{}" fill="none" stroke="currentColor" stroke-width="1.5"/>').format(
            " ".join(line if len(line) > 1 else [*line, line[0]])
        )
        for line in lines
    )
    floor = _HEIGHT - _BOTTOM
    if known and until - (last := known[-1][0]) > _SILENT:
        title += f"; no value since {last:%H:%M}"
    return Markup(
        '<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {width} {height}" width="{width}" '
        'height="{height}" role="img" aria-label="{title}">'
        '<line x1="{left}" y1="{floor}" x2="{width}" y2="{floor}" stroke="currentColor" opacity="0.4"/>'
        '<text x="{label}" y="{top}" text-anchor="end" font-size="11" fill="currentColor">{highest}</text>'
        '<text x="{label}" y="{floor}" text-anchor="end" font-size="11" fill="currentColor">0</text>'
        '<text x="{left}" y="{height}" font-size="11" fill="currentColor">{since}</text>'
        '<text x="{width}" y="{height}" text-anchor="end" font-size="11" fill="currentColor">{until}</text>'
        "{drawn}</svg></figure>"
    ).format(
        title=title,
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        label=_LEFT - 6,
        floor=floor,
        top=_TOP + 8,
        highest=f"{highest:g}",
        since=since.strftime("%H:%M"),
        until=until.strftime("%H:%M"),
        drawn=drawn,
    )
