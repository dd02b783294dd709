"""Hadoop's own servers: HDFS in one process, and YARN's resource manager with a node manager."""

from __future__ import annotations

import getpass
import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from xml.sax.saxutils import escape

from tests.servers.artifacts import fetch
from tests.servers.java import find_java, spark_java_home
from tests.servers.ports import HOST
from tests.servers.server import Server

USER = getpass.getuser()
"""Whom all of it belongs to."""
_MANAGER = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
_LIVING = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
_FORMATTED = "formatted"
_QUIET = "rootLogger.level = ERROR\n"


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
        self._write("log4j2.properties", _QUIET)

    def _command(self) -> Sequence[str | Path]:
        return [
            *_java(self.folder), _MANAGER, "-nomr",
            "-nnport", str(self.ports["hdfs"]), "-nnhttpport", str(self.ports["http"]),
            "-D", f"hdfs.minidfs.basedir={self.folder / 'data'}",
            "-D", "dfs.permissions.enabled=true",
            *(() if (self.folder / _FORMATTED).exists() else ("-format",)),
        ]  # fmt: skip

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


class Yarn(Server):
    """YARN with one node, whose default file system is an HDFS.

    Args:
        folder: Made if it isn't there. It is what `HADOOP_CONF_DIR` names, and it has the logs of containers.
        hdfs: The file system; it runs.
    """

    name: ClassVar[str] = "yarn"
    port_names: ClassVar[tuple[str, ...]] = (
        "manager", "scheduler", "tracker", "admin", "web", "node", "localizer", "node-web",
    )  # fmt: skip

    def __init__(self, folder: Path, hdfs: Hdfs) -> None:
        super().__init__(folder)
        self.hdfs = hdfs

    @property
    def web(self) -> str:
        """The address of the resource manager, as a Spark connection's extra names it."""
        return f"http://{HOST}:{self.ports['web']}"

    @property
    def containers(self) -> str:
        """What drivers and executors printed."""
        return "\n".join(
            f"{path}:\n{path.read_text(errors='replace')}"
            for path in sorted((self.folder / "containers").rglob("std*"))
        )

    def _prepare(self) -> None:
        self._write("log4j2.properties", _QUIET)
        tmp = str(self.folder / "data")
        self._write("core-site.xml", _site({"fs.defaultFS": self.hdfs.url, "hadoop.tmp.dir": tmp}))
        addresses = {
            "resourcemanager.address": "manager",
            "resourcemanager.scheduler.address": "scheduler",
            "resourcemanager.resource-tracker.address": "tracker",
            "resourcemanager.admin.address": "admin",
            "resourcemanager.webapp.address": "web",
            "nodemanager.address": "node",
            "nodemanager.localizer.address": "localizer",
            "nodemanager.webapp.address": "node-web",
        }
        scheduler = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
        settings = {
            "resourcemanager.scheduler.class": scheduler,  # another one wants a file
            "scheduler.minimum-allocation-mb": "128",
            "nodemanager.resource.memory-mb": "4096",
            "nodemanager.vmem-check-enabled": "false",
            "nodemanager.disk-health-checker.enable": "false",  # the machine's disk may be nearly full
            "nodemanager.log-dirs": str(self.folder / "containers"),
            **{name: f"{HOST}:{self.ports[port]}" for name, port in addresses.items()},
        }
        self._write("yarn-site.xml", _site({f"yarn.{name}": value for name, value in settings.items()}))

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "JAVA_HOME": str(spark_java_home())}  # containers run it

    def _start_companions(self) -> None:
        self._run("node", [*_java(self.folder), "org.apache.hadoop.yarn.server.nodemanager.NodeManager"])

    def _command(self) -> Sequence[str | Path]:
        return [
            *_java(self.folder),
            "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
        ]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.web}/ws/v1/cluster/metrics", timeout=30) as answer:  # noqa: S310 - http
                return bool(json.load(answer)["clusterMetrics"]["activeNodes"] == 1)
        except (OSError, ValueError):
            return False


def _java(folder: Path) -> list[str | Path]:
    """Return how a server of Hadoop is started that has its settings in a folder."""
    import pyspark  # noqa: PLC0415 - slow to import

    jars = Path(pyspark.__file__).parent / "jars"
    shared = [
        jar
        for pattern in ("hadoop-client-*", "log4j-*", "slf4j-*", "jul-to-*", "jcl-*")
        for jar in sorted(jars.glob(pattern))
    ]
    lock = Path(__file__).with_name("hadoop-3.5.0.lock")
    quickly = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    return [find_java(), *quickly, "-cp", ":".join(map(str, [folder, *fetch(lock), *shared]))]


def _site(settings: Mapping[str, str]) -> str:
    properties = (
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    return f"<configuration>\n{''.join(properties)}</configuration>\n"
