"""Arrow, loaded when it is first used.

Airflow imports operators, sensors and triggers each time it parses a DAG. Loading Arrow would take most of
that time, and parsing doesn't need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from airflow_provider_jmsjca.spool import layout

else:

    class _Module:
        """A module that is imported when one of its attributes is first used.

        Args:
            name: Name of the module.
        """

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> object:
            found = getattr(import_module(self._name), attribute)
            setattr(self, attribute, found)  # later accesses don't call `__getattr__`
            return found

    pa = _Module("pyarrow")
    pc = _Module("pyarrow.compute")
    pq = _Module("pyarrow.parquet")
    layout = _Module("airflow_provider_jmsjca.spool.layout")

__all__ = ["layout", "pa", "pc", "pq"]
