"""Chromium, from the Debian package or from the machine, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.servers.debian import require_package
from tests.servers.ports import HOST

if TYPE_CHECKING:
    from playwright.sync_api import Browser

VARIABLE: Final = "CHROMIUM"
"""Names the environment variable with a browser to take."""
PROGRAM = Path("/usr/bin/chromium")
_OTHERS: Final = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS: Final = (
    # Chromium refuses to run as root within its sandbox; all it opens here is our own Airflow.
    "--no-sandbox",
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}",
)


def find_chromium() -> Path:
    """Return a browser: of `CHROMIUM`, else of PATH, else of the Debian package, which root gets installed.

    Raises:
        ServerUnavailableError: There is none, and it can't be installed.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named)
    for name in _OTHERS:
        if found := shutil.which(name):
            return Path(found)
    require_package("chromium", PROGRAM)
    return PROGRAM


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium for the time of the block. It reaches this machine alone.

    Raises:
        ServerUnavailableError: As `find_chromium`.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - an event loop, for browser tests alone

    program = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
