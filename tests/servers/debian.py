"""Programs from Debian's packages, installed with apt-get where root may."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.servers.errors import ServerUnavailableError
from tests.servers.folders import cache_folder
from tests.servers.logs import cause_in

_POLICY = Path("/usr/sbin/policy-rc.d")
_OPTIONS: Final = ("-q", "-o", "DPkg::Lock::Timeout=300")


def require_package(package: str, program: Path) -> None:
    """Install a Debian package if its program isn't there and we may.

    Args:
        package: Name of the package.
        program: A program of the package.

    Raises:
        ServerUnavailableError: The program isn't there, and can't be installed.
    """
    if program.exists():
        return
    by_hand = f"on Debian or Ubuntu run as root: apt-get install --no-install-recommends {package}"
    if shutil.which("apt-get") is None:
        raise ServerUnavailableError(f"{package} left out: no apt-get here, and {program} does not exist")
    if os.geteuid() != 0:
        raise ServerUnavailableError(f"{package} left out: not installed, and only root can; {by_hand}")
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "apt.lock").open("w") as lock:
        # Of several test processes one installs it, and the others wait for that.
        fcntl.flock(lock, fcntl.LOCK_EX)
        reason = "" if program.exists() else _install(package)
    if not program.exists():
        raise ServerUnavailableError(
            f"{package} left out: apt-get could not install it ({reason}); {by_hand}"
        )


def _install(package: str) -> str:
    """Run apt-get, and return the line of its output that names the cause of a failure."""
    print(f"installing Debian's package {package} with apt-get ...\n", end="", flush=True)
    # Installing the package of a server would start one, unless this file says no.
    denied_by_us = not _POLICY.exists()
    if denied_by_us:
        _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        _POLICY.chmod(0o755)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["install", "-y", "--no-install-recommends", package]
    try:
        # The lists of a fresh machine are empty; those of an old one name files that are gone.
        for arguments in (install, ["update"], install):
            done = subprocess.run(
                ["apt-get", *_OPTIONS, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            if arguments is install and done.returncode == 0:
                break
    finally:
        if denied_by_us:
            _POLICY.unlink()
    return cause_in(done.stdout)
