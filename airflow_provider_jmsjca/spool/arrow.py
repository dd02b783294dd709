"""Arrow, loaded when it is first used.

Airflow imports operators, sensors and triggers each time it parses a DAG. Loading Arrow takes longer than all
else of that, and parsing needs none of it.
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
        """A module that is imported when the first of its attributes is asked for.

        Args:
            name: Of the module.
        """

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> object:
            found = getattr(import_module(self._name), attribute)
            setattr(self, attribute, found)  # the next time it is found without this
            return found

    pa = _Module("pyarrow")
    pc = _Module("pyarrow.compute")
    pq = _Module("pyarrow.parquet")
    layout = _Module("airflow_provider_jmsjca.spool.layout")

__all__ = ["layout", "pa", "pc", "pq"]
