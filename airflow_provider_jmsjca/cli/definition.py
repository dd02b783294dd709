"""The commands of `airflow jms`, as Airflow's command line wants them: declared here, loaded when called."""

from __future__ import annotations

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

_COMMANDS = "airflow_provider_jmsjca.cli.commands"


def get_jms_cli_commands() -> list[CLICommand]:
    """Return the group `jms`; Airflow calls this for each of its own commands."""
    return [
        GroupCommand(
            name="jms",
            help="JMS connections and activation specs",
            subcommands=(
                ActionCommand(
                    name="explain",
                    help="Show each option in force, its value, where it comes from, and its default",
                    description=(
                        # Help is printed as rich's markup, in which [jmsjca] would be a style and vanish.
                        "Resolves the three levels: the section \\[jmsjca] with environment variables, an "
                        "Airflow connection, an activation spec. Secrets are masked."
                    ),
                    func=lazy_load_command(f"{_COMMANDS}.explain_command"),
                    args=(
                        Arg(
                            ("--conn-id",),
                            help="the Airflow connection; without, the one the activation names",
                        ),
                        Arg(
                            ("--activation",),
                            metavar="FILE",
                            help="an activation spec in YAML or JSON, or a deployment descriptor (.xml)",
                        ),
                        Arg(("--name",), help="which activation of a descriptor that has several"),
                        Arg(("--only-set",), action="store_true", help="leave out what nobody set"),
                        ARG_OUTPUT,
                        ARG_VERBOSE,
                    ),
                ),
                ActionCommand(
                    name="import",
                    help="Print the activation spec of a deployment descriptor as YAML",
                    description=(
                        "Reads ejb-jar.xml, weblogic-ejb-jar.xml, ra.xml or Patch Bay XML, whole or a "
                        "fragment. Several files about one bean belong together."
                    ),
                    func=lazy_load_command(f"{_COMMANDS}.import_command"),
                    args=(
                        Arg(("files",), nargs="+", metavar="FILE", help="the descriptors"),
                        Arg(("--name",), help="which activation, where there are several"),
                        Arg(
                            ("--secrets",),
                            action="store_true",
                            help="print passwords too; they are left out otherwise",
                        ),
                        ARG_VERBOSE,
                    ),
                ),
            ),
        )
    ]
