"""Fetches files by Maven coordinates, each held to the sha256 in a lock file."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.servers.errors import ServerError
from tests.servers.folders import cache_folder

AT_A_TIME = 6
REPOSITORY_VARIABLE = "JMSJCA_MAVEN_REPOSITORY"
_LOCK_LINE = re.compile(r"(?P<coordinates>[^\s:]+(?::[^\s:]+){2,4})\s+(?P<sha256>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file: `group:name:version[:packaging[:classifier]]` and the sha256 it must have."""

    group: str
    name: str
    version: str
    packaging: str = "jar"
    classifier: str = ""
    sha256: str

    @property
    def file_name(self) -> str:
        """The name a Maven repository gives the file."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classifier}.{self.packaging}"

    def __str__(self) -> str:
        return ":".join(filter(None, (self.group, self.name, self.version, self.packaging, self.classifier)))


def read_lock(path: Path) -> tuple[Artifact, ...]:
    """Read a lock file.

    Raises:
        ServerError: Lines that are no lock lines; every one is named.
    """
    artifacts, faults = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LOCK_LINE.fullmatch(text)
        if found is None:
            faults.append(
                f"{path.name}, line {number}: {text!r}, "
                "expected group:name:version[:packaging[:classifier]] sha256"
            )
            continue
        parts = found["coordinates"].split(":")
        artifacts.append(
            Artifact(
                group=parts[0],
                name=parts[1],
                version=parts[2],
                packaging=parts[3] if len(parts) > 3 else "jar",
                classifier=parts[4] if len(parts) > 4 else "",
                sha256=found["sha256"],
            )
        )
    if faults:
        raise ServerError("; ".join(faults))
    return tuple(artifacts)


def fetch(lock: Path, *, cache: Path | None = None) -> tuple[Path, ...]:
    """Return the files a lock file names, downloading those the cache lacks.

    Args:
        lock: The lock file.
        cache: Where files are kept; `None` means the user's cache folder.

    Raises:
        ServerError: A file can't be had, or hasn't the sha256 of the lock file.
    """
    folder = (cache or cache_folder()) / "maven"
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return tuple(pool.map(lambda artifact: _fetch_one(artifact, folder), read_lock(lock)))


def unpack(archive: Path, *, cache: Path | None = None) -> Path:
    """Unpack a tar archive once, and return the one folder in it."""
    folder = (cache or cache_folder()) / "unpacked"
    target = folder / archive.name.removesuffix(".tar.gz")
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            with tarfile.open(archive) as tar:
                # Python 3.11.0 to 3.11.3 have no filters.
                tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
                tar.extractall(scratch)  # noqa: S202 - the archive is the one that was pinned
            _move_whole(Path(scratch), target)
    (content,) = target.iterdir()
    return content


def _move_whole(source: Path, target: Path) -> None:
    inner = source / "content"
    inner.mkdir()
    for entry in list(source.iterdir()):
        if entry != inner:
            entry.rename(inner / entry.name)
    try:
        inner.rename(target)
    except OSError:
        # Another process was quicker; both unpacked the same verified archive.
        if not target.is_dir():
            raise


def _fetch_one(artifact: Artifact, folder: Path) -> Path:
    target = folder / artifact.file_name
    if target.exists():
        _verify(artifact, target, record=True)
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        downloaded = _download(artifact, Path(scratch))
        _verify(artifact, downloaded, record=False)
        downloaded.replace(target)
    _verify(artifact, target, record=True)
    return target


def _download(artifact: Artifact, scratch: Path) -> Path:
    import requests  # noqa: PLC0415 - slow to import, and not needed once all is cached
    from jgo.maven import MavenContext  # noqa: PLC0415

    repository = os.environ.get(REPOSITORY_VARIABLE)
    context = MavenContext(
        repo_cache=scratch, remote_repos={"configured": repository} if repository else None, timeout=60
    )
    component = context.project(artifact.group, artifact.name).at_version(artifact.version)
    try:
        return component.artifact(classifier=artifact.classifier, packaging=artifact.packaging).resolve()
    except (requests.RequestException, RuntimeError, OSError) as error:
        reason = str(error) or type(error).__name__
    # Outside of the clause: jgo leaves its connection open, which closes when its error is forgotten.
    raise ServerError(
        f"{artifact} can't be downloaded ({reason}); "
        f"check the network, or name a Maven repository in {REPOSITORY_VARIABLE}"
    )


def _verify(artifact: Artifact, path: Path, *, record: bool) -> None:
    status = path.stat()
    note = path.with_name(f".{path.name}.verified")
    seen = f"{artifact.sha256} {status.st_size} {status.st_mtime_ns}"
    if record and note.exists() and note.read_text(encoding="ascii") == seen:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != artifact.sha256:
        raise ServerError(
            f"{path if record else artifact.file_name} has sha256 {digest}, "
            f"the lock file says {artifact.sha256}: "
            + ("delete it to fetch it again" if record else "not what was pinned, it was thrown away")
        )
    if record:
        note.write_text(seen, encoding="ascii")


def clear_unpacked(cache: Path | None = None) -> None:
    """Delete what `unpack` made."""
    shutil.rmtree((cache or cache_folder()) / "unpacked", ignore_errors=True)
