"""Hadoop's own servers in one process: a name node and a data node of HDFS."""

from __future__ import annotations

import getpass
import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.servers.artifacts import fetch
from tests.servers.java import find_java
from tests.servers.ports import HOST
from tests.servers.server import Server

USER = getpass.getuser()
"""Whom all of it belongs to."""
_MANAGER = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
_LIVING = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
_FORMATTED = "formatted"


class Hdfs(Server):
    """HDFS with one data node. What it holds stays over a kill."""

    name: ClassVar[str] = "hdfs"
    port_names: ClassVar[tuple[str, ...]] = ("hdfs", "http")

    @property
    def url(self) -> str:
        """Where it is, as Hadoop's clients take it."""
        return f"hdfs://{HOST}:{self.ports['hdfs']}"

    @property
    def endpoint(self) -> str:
        """Where the name node listens for HTTP."""
        return f"http://{HOST}:{self.ports['http']}"

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """Return what a client needs, as `ObjectPath.parse` takes it."""
        return {"webhdfs_url": endpoint or self.endpoint, "hadoop_user_name": USER}

    def _prepare(self) -> None:
        self._write("log4j2.properties", "rootLogger.level = ERROR\n")

    def _command(self) -> Sequence[str | Path]:
        import pyspark  # noqa: PLC0415 - slow to import

        jars = Path(pyspark.__file__).parent / "jars"
        shared = [
            jar
            for pattern in ("hadoop-client-*", "log4j-*", "slf4j-*", "jul-to-*", "jcl-*")
            for jar in sorted(jars.glob(pattern))
        ]
        lock = Path(__file__).with_name("hadoop-3.5.0.lock")
        path = ":".join(map(str, [self.folder, *fetch(lock), *shared]))
        quickly = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
        settings = {
            "hdfs.minidfs.basedir": self.folder / "data",
            "dfs.permissions.enabled": "true",
            **self._settings(),
        }
        return [
            find_java(), *quickly, "-cp", path, _MANAGER,
            "-nnport", str(self.ports["hdfs"]), "-nnhttpport", str(self.ports["http"]),
            *(() if (self.folder / _FORMATTED).exists() else ("-format",)),
            *self._parts(),
            *(word for name, value in settings.items() for word in ("-D", f"{name}={value}")),
        ]  # fmt: skip

    def _parts(self) -> Sequence[str]:
        """What the process shall run, and what not."""
        return ["-nomr"]

    def _settings(self) -> dict[str, str]:
        return {}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}{_LIVING}", timeout=30) as answer:  # noqa: S310 - http
                (state,) = json.load(answer)["beans"]
        except (OSError, ValueError):
            return False
        if state["NumLiveDataNodes"] < 1:
            return False
        self._write(_FORMATTED, "")
        return True
