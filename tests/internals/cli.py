from __future__ import annotations

from airflow_provider_jmsjca.cli.commands import cells, print_rows
from airflow_provider_jmsjca.cli.configuration import explain_command
from airflow_provider_jmsjca.cli.spool import show_command

__all__ = [
    "cells",
    "explain_command",
    "print_rows",
    "show_command",
]
