"""Writes the generated pages; with `--check` only says which are stale and fails then.

It fails too where a number of the catalogue has no verdict, or a verdict no reason or no test. A reference
to a missing module is a fault (`tests.docs.references`). So is a page,
an option, a public docstring or an error that is hard to read (`tests.docs.prose`), and a docstring that
doesn't name what it speaks of (`tests.docs.docstrings`). Given a number (`python -m tests.docs J133`) it
prints what is known of that number.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.docs import brokers_page
from tests.docs.cli_page import render_cli_page
from tests.docs.conformance import explain, gaps, render_conformance_page
from tests.docs.docstrings import subject_faults
from tests.docs.metrics_page import PAGE as MONITORING
from tests.docs.metrics_page import render_monitoring_page
from tests.docs.options_page import render_options_page
from tests.docs.prose import prose_faults, text_faults
from tests.docs.references import reference_faults

ROOT = Path(__file__).resolve().parents[2]


def pages() -> dict[Path, str]:
    """Return the text each generated page should have."""
    reference, pictures = ROOT / "docs" / "reference", ROOT / "docs" / "pictures"
    return {
        reference / "options.md": render_options_page(),
        reference / "conformance.md": render_conformance_page(ROOT),
        reference / "cli.md": render_cli_page(),
        ROOT / MONITORING: render_monitoring_page(ROOT),
        brokers_page.RESULTS.with_suffix(".md"): brokers_page.render(),
        pictures / "brokers.svg": render_picture(brokers_page.render_picture_source()),
        **{
            source.with_suffix(".svg"): render_picture(source.read_text(encoding="utf-8"))
            for source in sorted(pictures.glob("*.dot"))
        },
    }


def render_picture(source: str) -> str:
    """Return the SVG of a picture in Graphviz's language."""
    dot = Path(sys.executable).with_name("graphviz-pure")
    drawn = subprocess.run(
        [dot, "-Tsvg"], input=source.encode("utf-8"), check=True, capture_output=True, timeout=60
    )
    return drawn.stdout.decode("utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    parser.add_argument(
        "numbers", nargs="*", metavar="NUMBER", help="say what is known of these numbers, and no more"
    )
    given = parser.parse_args(arguments)
    check: bool = given.check
    if given.numbers:
        print("\n\n".join(explain(ROOT, number) for number in given.numbers))  # its output
        return 0
    stale = []
    for path, text in pages().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name}: stale, run python -m tests.docs" if check else f"{name}: written")  # its output
    lacking = gaps(ROOT) + reference_faults(ROOT)
    lacking += subject_faults(ROOT) + prose_faults(ROOT) + text_faults(ROOT)
    for gap in lacking:
        print(gap)
    return 1 if lacking or (check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
