"""The table of metrics on the page about monitoring, made from `core.metrics`."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_jmsjca.core.metrics import METRICS

PAGE = Path("docs") / "production" / "monitoring.md"
_BEGIN, _END = "<!-- The table is generated: python -m tests.docs -->\n", "<!-- end of the table -->\n"


def render_monitoring_page(root: Path) -> str:
    """Return the page with its table as the code has it."""
    head, _, rest = (root / PAGE).read_text(encoding="utf-8").partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n{_table()}\n{_END}{tail}"


def _table() -> str:
    rows = [
        "| in Airflow | in Prometheus | kind, unit | meaning |",
        "|---|---|---|---|",
        *(
            f"| `{each.statistic}` | `{each.series}` | {each.kind}, {each.unit} | {each.meaning} |"
            for each in METRICS
        ),
    ]
    return "".join(f"{row}\n" for row in rows)
