"""The job library as one file, for clusters that don't have it: `spark-submit --py-files <archive>`.

The archive contains the folders of this package that a job can use, and none that needs Airflow. It is built
from the installed package, so that a job has the same version as the task that submits it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

ROOMS: Final = ("core", "engine", "migrate", "spark", "spool", "store", "transports")
"""Folders of this package that the archive contains, besides the files in `_FILES`."""
# `airflow_provider_jmsjca-job` in the folder `job` is the same as a wheel.
_FILES: Final = ("__init__.py", "errors.py", "escaping.py", "logs.py", "py.typed")
_PACKAGE: Final = Path(__file__).parent.parent
# A fixed time, so that the same files always give the same archive.
_MADE: Final = (1980, 1, 1, 0, 0, 0)


def write_archive(path: Path) -> Path:
    """Write the job library as a zip file, and return its path.

    Args:
        path: Path of the file; it must end in `.zip`, because executors recognise the archive by that.

    Raises:
        OSError: The file can't be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in library_files():
            entry = zipfile.ZipInfo(f"{_PACKAGE.name}/{file.relative_to(_PACKAGE).as_posix()}", _MADE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes())
    return path


def library_files() -> list[Path]:
    """Return the files of the job library, in the order of their names."""
    found = [_PACKAGE / name for name in _FILES]
    for room in ROOMS:
        found += (file for file in (_PACKAGE / room).rglob("*.*") if file.is_file() and file.suffix != ".pyc")
    return sorted(found)
