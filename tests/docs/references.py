"""Which modules the documentation and the option table name: each must exist."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_provider_jmsjca.core.options import OPTIONS

PACKAGE = "airflow_provider_jmsjca"
# Spark's own names begin with `spark` too.
_REFERENCE = re.compile(
    r"`((?:core|engine|hooks|operators|sensors|spool|store|transports|triggers)(?:\.\w+)+)`"
)


def reference_faults(root: Path) -> list[str]:
    """Return which modules are named, in backticks or by an option that acts there, and aren't there."""
    folder = root / PACKAGE
    faults = [
        f"core/options: {option.name} acts in {place!r}, which is no module"
        for option in OPTIONS
        for place in filter(None, option.acts.split(", "))
        if _found(folder, place) != ""
    ]
    for file in (*sorted(folder.rglob("*.py")), *sorted((root / "docs").rglob("*.md"))):
        faults += [
            f"{file.relative_to(root).as_posix()}: nothing is called `{name}`"
            for name in sorted(set(_REFERENCE.findall(file.read_text(encoding="utf-8"))))
            if not _is_there(folder, name)
        ]
    return faults


def _found(folder: Path, name: str) -> str:
    """Return what is left of a dotted name behind the module that it begins with."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        place = folder.joinpath(*parts[:end])
        if place.is_dir() or place.with_suffix(".py").is_file():
            return ".".join(parts[end:])
    return name


def _is_there(folder: Path, name: str) -> bool:
    left = _found(folder, name)
    if not left:
        return True
    module = folder.joinpath(*name.removesuffix(left).strip(".").split("."))
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return re.search(rf"\b{left.partition('.')[0]}\b", file.read_text(encoding="utf-8")) is not None
