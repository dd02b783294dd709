"""Writes the generated pages; with `--check` only says which are stale and fails then.

It fails too where something about configuration isn't implemented or isn't tested.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from airflow_provider_jmsjca.core.options_page import render_options_page
from tests.docs.conformance import gaps, render_conformance_page

ROOT = Path(__file__).resolve().parents[2]


def pages() -> dict[Path, str]:
    """Return the text each generated page should have."""
    reference = ROOT / "docs" / "reference"
    return {
        reference / "options.md": render_options_page(),
        reference / "conformance.md": render_conformance_page(ROOT),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    check: bool = parser.parse_args(arguments).check
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
    lacking = gaps(ROOT)
    for gap in lacking:
        print(gap)
    return 1 if lacking or (check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
