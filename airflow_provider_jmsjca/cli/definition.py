"""Declares the commands of `airflow jms` for Airflow's command line; their code is loaded when called."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import timedelta

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

from airflow_provider_jmsjca.spool.upkeep.ages import PRUNE_AFTER

_CONFIGURATION = "airflow_provider_jmsjca.cli.configuration"
_STORE = "airflow_provider_jmsjca.cli.store"
_LIMBO = "airflow_provider_jmsjca.cli.limbo"
_ATTEMPTS = "airflow_provider_jmsjca.cli.attempts"
_ACTIVATIONS = "airflow_provider_jmsjca.cli.activations"
_SPOOL = "airflow_provider_jmsjca.cli.spool"
_QUEUES = "airflow_provider_jmsjca.cli.queues"
_MESSAGES = "airflow_provider_jmsjca.cli.messages"
_DOCTOR = "airflow_provider_jmsjca.cli.doctor"
_SCHEMA = "airflow_provider_jmsjca.cli.schema"
_DEAD_LETTERS = "airflow_provider_jmsjca.cli.dead_letters"
_PRUNE_DAYS = PRUNE_AFTER / timedelta(days=1)
_SPOOL_PATH = Arg(
    ("--spool-path",), metavar="FOLDER", help="the folder of the batches; without, that of \\[jmsjca]"
)
_STATES = (
    "collecting",
    "unfinished",
    "empty",
    "collected",
    "undone",
    "rejects",
    "done",
    "pruned",
    "damaged",
)


def _store_commands() -> GroupCommand:
    return GroupCommand(
        name="store",
        help="The database with attempts, handled ids and limbo",
        subcommands=(
            ActionCommand(
                name="upgrade",
                help="Make the tables of the store, or bring them up to date",
                description="The database is the one that store_url of \\[jmsjca] names.",
                func=lazy_load_command(f"{_STORE}.upgrade_command"),
                args=(ARG_VERBOSE,),
            ),
            ActionCommand(
                name="check",
                help="Say whether the store can be used",
                description="Exit code 1 if it can't be used. On SQLite the tables are made where needed.",
                func=lazy_load_command(f"{_STORE}.check_command"),
                args=(ARG_VERBOSE,),
            ),
            ActionCommand(
                name="run",
                help="Send due messages of limbo, until it is stopped",
                description="Several may run at once, on any host that reaches the database.",
                func=lazy_load_command(f"{_STORE}.run_command"),
                args=(
                    Arg(("--once",), action="store_true", help="send the messages that are due now, and end"),
                    ARG_VERBOSE,
                ),
            ),
        ),
    )


def _integer(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a parser for a whole number from `minimum` to `maximum`.

    The default of `maximum` is the largest number that a database column can hold.
    """

    def read(text: str) -> int:
        # Python itself refuses to convert a text with too many digits.
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(maximum)) else -1
        if not minimum <= number <= maximum:
            raise argparse.ArgumentTypeError(
                f"got {text[:40]!r}, expected a whole number from {minimum} to {maximum}"
            )
        return number

    return read


_MOST_DAYS = 1e6


def _days(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(
            f"got {text[:40]!r}, expected a number of days from 0 to {_MOST_DAYS:g}"
        )
    return number


_LIMIT = Arg(("--limit",), type=_integer(1, 2**31 - 1), default=100, help="list at most LIMIT (default 100)")
_ALL = Arg(("--all",), action="store_true", help="all messages; give it instead of ids or a filter")


def _limbo_commands() -> GroupCommand:
    chosen = (
        Arg(("numbers",), nargs="*", type=_integer(1), metavar="NUMBER", help="messages with these numbers"),
        Arg(("--state",), choices=("waiting", "failed"), help="messages in this state"),
        _OF_ACTIVATION,
        Arg(("--conn-id",), help="messages to be sent over this Airflow connection"),
        Arg(("--destination",), help="messages to be sent there, as queue://orders"),
    )
    changes = {
        "revive": "Let failed messages be sent again, with all their tries",
        "release": "Let waiting messages be sent now",
        "purge": "Delete messages for good; messages being sent stay",
    }
    return GroupCommand(
        name="limbo",
        help="Messages that are due later, and those that could not be sent",
        subcommands=(
            ActionCommand(
                name="list",
                help="List messages in the order of their numbers",
                func=lazy_load_command(f"{_LIMBO}.list_command"),
                args=(
                    *chosen,
                    _LIMIT,
                    Arg(
                        ("--after",), type=_integer(0), default=0, help="those with higher numbers than this"
                    ),
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="show",
                help="Show a message with its content",
                func=lazy_load_command(f"{_LIMBO}.show_command"),
                args=(Arg(("number",), type=_integer(1), metavar="NUMBER", help="its number"), ARG_VERBOSE),
            ),
            *(
                ActionCommand(
                    name=name,
                    help=help_text,
                    func=lazy_load_command(f"{_LIMBO}.{name}_command"),
                    args=(*chosen, _ALL, ARG_VERBOSE),
                )
                for name, help_text in changes.items()
            ),
        ),
    )


_OF_ACTIVATION = Arg(
    ("--activation",), help="messages of this activation, as it is listed, or by its name alone"
)
_SKIP = Arg(("--after",), type=_integer(0), default=0, help="leave out the first AFTER")
_ONE_MESSAGE = (
    Arg(("activation",), help="the activation, as it is listed, or by its name alone"),
    Arg(("message",), help="the id of the message, as it is listed"),
)
_AT_LEAST = Arg(
    ("--at-least",), type=_integer(1, 2**31 - 1), default=1, metavar="NUMBER", help="with so many attempts"
)
_MESSAGE = Arg(("--message",), help="the message with this id, as it is listed")


def _history_command() -> ActionCommand:
    return ActionCommand(
        name="show",
        help="Show the attempts at a message: when, where, and the exception",
        func=lazy_load_command(f"{_ATTEMPTS}.show_command"),
        args=(*_ONE_MESSAGE, ARG_OUTPUT, ARG_VERBOSE),
    )


def _attempts_commands() -> GroupCommand:
    return GroupCommand(
        name="attempts",
        help="How often messages were handed over that aren't settled",
        subcommands=(
            ActionCommand(
                name="list",
                help="List messages, those with most attempts first",
                func=lazy_load_command(f"{_ATTEMPTS}.list_command"),
                args=(_OF_ACTIVATION, _AT_LEAST, _LIMIT, _SKIP, ARG_OUTPUT, ARG_VERBOSE),
            ),
            _history_command(),
            ActionCommand(
                name="reset",
                help="Reset the counts of messages",
                func=lazy_load_command(f"{_ATTEMPTS}.reset_command"),
                args=(_OF_ACTIVATION, _MESSAGE, _AT_LEAST, _ALL, ARG_VERBOSE),
            ),
        ),
    )


def _activations_commands() -> GroupCommand:
    chosen = (
        Arg(
            ("activations",),
            nargs="*",
            metavar="ACTIVATION",
            help="as it is listed, or the name before `at` and the broker",
        ),
        Arg(("--all",), action="store_true", help="all activations; never with names"),
    )
    reason = Arg(("--reason",), required=True, help="why; it is logged and listed")
    requests = {
        "suspend": (
            "Let activations deliver nothing, until they are resumed",
            "Runs stay, and new runs deliver nothing either. An event trigger closes its subscription.",
        ),
        "drain": (
            "Let activations finish the messages in their handlers, and end",
            "A task succeeds with what it has consumed. New runs are refused until it is resumed.",
        ),
        "stop": (
            "Let activations end",
            "A task fails without a retry, or is skipped if it has consumed nothing. New runs are refused.",
        ),
    }
    return GroupCommand(
        name="activations",
        help="Activations in all processes: list, suspend, drain, stop and resume them",
        subcommands=(
            ActionCommand(
                name="list",
                help="List the runs of activations with state, owner, host and counts",
                description=(
                    "A run whose process died is listed as lost. Tables have the most important columns, the "
                    "other formats have all."
                ),
                func=lazy_load_command(f"{_ACTIVATIONS}.list_command"),
                args=(
                    Arg(
                        ("--ended",),
                        action="store_true",
                        help="list runs that have ended or were replaced too",
                    ),
                    _LIMIT,
                    _SKIP,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="show",
                help="Show an activation with all its runs",
                func=lazy_load_command(f"{_ACTIVATIONS}.show_command"),
                args=(
                    Arg(
                        ("activation",),
                        metavar="ACTIVATION",
                        help="as it is listed, or the name before `at` and the broker",
                    ),
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            *(
                ActionCommand(
                    name=name,
                    help=text,
                    description=more,
                    func=lazy_load_command(f"{_ACTIVATIONS}.{name}_command"),
                    args=(*chosen, reason, ARG_VERBOSE),
                )
                for name, (text, more) in requests.items()
            ),
            ActionCommand(
                name="resume",
                help="Let activations consume again",
                description="Suspended runs go on. Where a run has ended, the next one consumes.",
                func=lazy_load_command(f"{_ACTIVATIONS}.resume_command"),
                args=(*chosen, ARG_VERBOSE),
            ),
        ),
    )


def _in_doubt_commands() -> GroupCommand:
    return GroupCommand(
        name="indoubt",
        help="Messages that were received and aren't settled, and those whose process has died",
        subcommands=(
            ActionCommand(
                name="list",
                help="List them, with the process that holds each",
                func=lazy_load_command(f"{_ATTEMPTS}.in_doubt_list_command"),
                args=(
                    _OF_ACTIVATION,
                    Arg(("--state",), choices=("in doubt", "in flight"), help="messages in this state"),
                    _LIMIT,
                    _SKIP,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            _history_command(),
            ActionCommand(
                name="reset",
                help="Let messages in doubt be delivered again as any others",
                description="Messages in flight in a live process stay as they are.",
                func=lazy_load_command(f"{_ATTEMPTS}.in_doubt_reset_command"),
                args=(_OF_ACTIVATION, _MESSAGE, _ALL, ARG_VERBOSE),
            ),
        ),
    )


def _spool_commands() -> GroupCommand:
    return GroupCommand(
        name="spool",
        help="The batches between broker and Spark",
        subcommands=(
            ActionCommand(
                name="list",
                help="Show the batches and how far they are",
                func=lazy_load_command(f"{_SPOOL}.list_command"),
                args=(
                    Arg(("--state",), nargs="+", choices=_STATES, help="only batches in these states"),
                    _SPOOL_PATH,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="show",
                help="Show all that is known of a batch",
                func=lazy_load_command(f"{_SPOOL}.show_command"),
                args=(Arg(("batch",), help="its name"), _SPOOL_PATH, ARG_OUTPUT, ARG_VERBOSE),
            ),
            ActionCommand(
                name="verify",
                help="Read all files of the batches, and compare them with their digests",
                description="Exit code 1 if anything is damaged.",
                func=lazy_load_command(f"{_SPOOL}.verify_command"),
                args=(
                    Arg(("batches",), nargs="*", metavar="batch", help="names; without, all"),
                    _SPOOL_PATH,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="salvage",
                help="Give up the damaged segments of batches, and keep the others",
                description=(
                    "The messages in a damaged segment are lost, and the rest of its batch goes on: clear "
                    "the task that failed. The rest of the segment stays in the batch's folder."
                ),
                func=lazy_load_command(f"{_SPOOL}.salvage_command"),
                args=(
                    Arg(("batches",), nargs="+", metavar="batch", help="names"),
                    _SPOOL_PATH,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="prune",
                help="Remove the messages of batches that nobody needs",
                description=(
                    "Batches that are done, with all rejects sent, and whose ids are no longer needed. "
                    "Their reports stay."
                ),
                func=lazy_load_command(f"{_SPOOL}.prune_command"),
                args=(
                    Arg(
                        ("--older-than",),
                        type=_days,
                        default=7.0,
                        metavar="DAYS",
                        help=f"only batches that haven't changed for so many days (default {_PRUNE_DAYS:g})",
                    ),
                    Arg(
                        ("--collected",),
                        action="store_true",
                        help="also batches without a submitted job: all their readers must be done",
                    ),
                    Arg(
                        ("--forget",),
                        type=_days,
                        metavar="DAYS",
                        help="remove the reports too of those that haven't changed for so many days",
                    ),
                    Arg(("--dry-run",), action="store_true", help="change nothing"),
                    _SPOOL_PATH,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="replay",
                help="Process messages of earlier batches again, with Spark",
                description=(
                    "The messages become a new batch, which the job processes exactly once. Where the table "
                    "has rows of them, the new rows take their place. Called again with the same arguments, "
                    "the command continues where it ended."
                ),
                func=lazy_load_command(f"{_SPOOL}.replay_command"),
                args=(
                    Arg(("batches",), nargs="*", metavar="batch", help="names; or give --since or --until"),
                    Arg(("--since",), metavar="TIME", help="batches finished then or later, ISO 8601"),
                    Arg(("--until",), metavar="TIME", help="batches finished before"),
                    Arg(("--source",), metavar="DESTINATION", help="of these, only those of queue://name"),
                    Arg(("--rejects",), action="store_true", help="only messages that were rejected"),
                    Arg(("--dry-run",), action="store_true", help="list the batches, and change nothing"),
                    Arg(
                        ("--job-args",),
                        default="",
                        metavar="TEXT",
                        help="arguments of the job: --job-args=\"--table /data/orders --schema 'id LONG'\"",
                    ),
                    Arg(("--application",), metavar="FILE", help="the job; without, the ready-made one"),
                    Arg(
                        ("--name",),
                        help="names the replay; without, the same arguments mean the same replay",
                    ),
                    Arg(("--spark-conn-id",), default="spark_default", help="the Spark connection"),
                    Arg(("--jdbc-conn-id",), help="the connection of the database, for --format jdbc"),
                    Arg(
                        ("--dead-letter-destination",),
                        default="queue://$.dlq",
                        metavar="DESTINATION",
                        help="of messages that are rejected again (default queue://$.dlq)",
                    ),
                    Arg(("--bisect",), action="store_true", help="isolate messages that fail the job"),
                    Arg(("--conn-id",), default="jms_default", help="the connection of the broker"),
                    _SPOOL_PATH,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="adopt",
                help="Finish batches that their runs left, and print their manifests",
                func=lazy_load_command(f"{_SPOOL}.adopt_command"),
                args=(
                    Arg(("batches",), nargs="+", metavar="batch", help="names"),
                    _SPOOL_PATH,
                    ARG_VERBOSE,
                ),
            ),
        ),
    )


_CONN_ID = Arg(
    ("--conn-id",), default="jms_default", help="the Airflow connection of the broker (default jms_default)"
)
_QUEUE = Arg(("queue",), metavar="QUEUE", help="name of the queue, or queue://name")


def _not_blank(text: str) -> str:
    """Return a selector. Refuse a blank one, as from an empty variable: it would match every message."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; expected a JMS selector, for example \"region = 'eu'\"")
    return text


_SELECTOR = Arg(("--selector",), type=_not_blank, help="only messages that match this JMS selector")
_DRY_RUN = Arg(("--dry-run",), action="store_true", help="count the messages, and change nothing")
_TARGET = Arg(("target",), metavar="TARGET", help="name of the other queue")


_HIGHEST = 1e9


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= _HIGHEST:
        raise argparse.ArgumentTypeError(
            f"got {text[:40]!r}, expected a number above 0 and at most {_HIGHEST:g}"
        )
    return number


def _queues_commands() -> GroupCommand:
    chosen = (
        Arg(("--message",), action="append", metavar="ID", help="the message with this id; may be repeated"),
        _SELECTOR,
        _ALL,
        _DRY_RUN,
    )
    return GroupCommand(
        name="queues",
        help="Queues of a broker and the messages on them",
        subcommands=(
            ActionCommand(
                name="list",
                help="List queues with depth, in-flight messages and consumers",
                func=lazy_load_command(f"{_QUEUES}.list_command"),
                args=(
                    Arg(
                        ("--conn-id",),
                        help="the Airflow connection of the broker; without, all JMS connections",
                    ),
                    Arg(("--match",), metavar="PATTERN", help="only names like this, for example 'orders.*'"),
                    Arg(("--filled",), action="store_true", help="only queues with messages"),
                    Arg(
                        ("--used",),
                        action="store_true",
                        help="only queues that activations, assets or tasks of this installation name",
                    ),
                    Arg(
                        ("--rate",),
                        type=_positive,
                        metavar="SECONDS",
                        help="count twice, this far apart, and print messages per second",
                    ),
                    _LIMIT,
                    _SKIP,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="browse",
                help="List messages of a queue, and leave them there",
                func=lazy_load_command(f"{_QUEUES}.browse_command"),
                args=(
                    _QUEUE,
                    _CONN_ID,
                    _SELECTOR,
                    Arg(
                        ("--by-consuming",),
                        action="store_true",
                        help="where the broker cannot browse: receive the messages and return them. They are "
                        "marked as redelivered, and others may overtake them",
                    ),
                    Arg(
                        ("--messages",),
                        action="store_true",
                        help="print each message completely, as a line of JSON that send --messages reads",
                    ),
                    _LIMIT,
                    _SKIP,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="show",
                help="Show one message with headers, properties and body",
                func=lazy_load_command(f"{_QUEUES}.show_command"),
                args=(
                    _QUEUE,
                    Arg(("message",), metavar="ID", help="its id, as browse lists it"),
                    _CONN_ID,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="move",
                help="Move messages to another queue",
                func=lazy_load_command(f"{_QUEUES}.move_command"),
                args=(_QUEUE, _TARGET, _CONN_ID, *chosen, ARG_VERBOSE),
            ),
            ActionCommand(
                name="copy",
                help="Copy messages to another queue",
                func=lazy_load_command(f"{_QUEUES}.copy_command"),
                args=(_QUEUE, _TARGET, _CONN_ID, *chosen, ARG_VERBOSE),
            ),
            ActionCommand(
                name="delete",
                help="Delete messages for good",
                func=lazy_load_command(f"{_QUEUES}.delete_command"),
                args=(_QUEUE, _CONN_ID, *chosen, ARG_VERBOSE),
            ),
        ),
    )


def _dead_letter_commands() -> GroupCommand:
    return GroupCommand(
        name="dlq",
        help="Dead letters: why they are there, and sending them back",
        subcommands=(
            ActionCommand(
                name="list",
                help="Count dead letters by reason and original destination",
                description=(
                    "Rejected rows of Spark batches stay in the spool until they are sent to a dead-letter "
                    "queue. Without QUEUE these are listed, and the letters of all queues of the broker that "
                    "have the name of a dead-letter queue."
                ),
                func=lazy_load_command(f"{_DEAD_LETTERS}.list_command"),
                args=(
                    Arg(
                        ("queue",),
                        metavar="QUEUE",
                        nargs="?",
                        help="name of the dead-letter queue, or queue://name",
                    ),
                    Arg(
                        ("--rejects",),
                        action="store_true",
                        help="list rejected rows of Spark batches in the spool too",
                    ),
                    _SPOOL_PATH,
                    _CONN_ID,
                    _SELECTOR,
                    Arg(
                        ("--limit",),
                        type=_integer(1, 2**31 - 1),
                        help="look at the first LIMIT dead letters (default 1000)",
                    ),
                    Arg(("--all",), action="store_true", help="look at all dead letters"),
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="show",
                help="Show one dead letter with its reason, properties and body",
                func=lazy_load_command(f"{_DEAD_LETTERS}.show_command"),
                args=(
                    Arg(("queue",), metavar="QUEUE", help="name of the queue; with --rejects of the batch"),
                    Arg(
                        ("message",),
                        metavar="ID",
                        help="its id, as list or queues browse shows it; with --rejects the row",
                    ),
                    Arg(("--rejects",), action="store_true", help="show a rejected row of a Spark batch"),
                    _SPOOL_PATH,
                    _CONN_ID,
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="replay",
                help="Send dead letters back to where they came from, or elsewhere",
                description=(
                    "Give --to, or each original destination that letters may go back to with --origin: a "
                    "producer can forge where a letter came from. Ctrl-C ends it after the unit under way."
                ),
                func=lazy_load_command(f"{_DEAD_LETTERS}.replay_command"),
                args=(
                    _QUEUE,
                    _CONN_ID,
                    Arg(("--to",), metavar="DESTINATION", help="send every letter there"),
                    Arg(
                        ("--origin",),
                        action="append",
                        metavar="DESTINATION",
                        help="send back the letters that came from this destination; may be repeated",
                    ),
                    Arg(
                        ("--message",),
                        action="append",
                        metavar="ID",
                        help="send only the letter with this id, as list or queues browse shows it; may be "
                        "repeated",
                    ),
                    _SELECTOR,
                    Arg(("--limit",), type=_integer(1), help="send no more than LIMIT letters"),
                    Arg(
                        ("--max-age",),
                        type=_positive,
                        metavar="SECONDS",
                        help="leave letters that have been on the queue for longer",
                    ),
                    Arg(
                        ("--rate",),
                        type=_positive,
                        metavar="PER_SECOND",
                        help="send at most this many letters in a second",
                    ),
                    Arg(
                        ("--run",),
                        help="name of this replay: a letter that fails again is not sent back twice under it "
                        "(default: a new name)",
                    ),
                    Arg(
                        ("--dry-run",),
                        action="store_true",
                        help="count the letters and send none; a broker that can't browse marks them as "
                        "redelivered",
                    ),
                    ARG_OUTPUT,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="edit",
                help="Edit one dead letter in $EDITOR, send it, and delete the original",
                description=(
                    "The original is deleted once the broker has confirmed the edited message. To cancel, "
                    "leave the text unchanged, or empty it."
                ),
                func=lazy_load_command(f"{_DEAD_LETTERS}.edit_command"),
                args=(
                    _QUEUE,
                    Arg(("message",), metavar="ID", help="its id, as list or queues browse shows it"),
                    Arg(("--to",), required=True, metavar="DESTINATION", help="send the message there"),
                    _CONN_ID,
                    ARG_VERBOSE,
                ),
            ),
            ActionCommand(
                name="purge",
                help="Delete dead letters for good, after a question",
                func=lazy_load_command(f"{_DEAD_LETTERS}.purge_command"),
                args=(
                    _QUEUE,
                    _CONN_ID,
                    _SELECTOR,
                    Arg(("--yes",), action="store_true", help="do not ask"),
                    ARG_VERBOSE,
                ),
            ),
        ),
    )


def _send_command() -> ActionCommand:
    return ActionCommand(
        name="send",
        help="Send messages from an argument, a file or standard input",
        description="Each message is confirmed by the broker before the command ends.",
        func=lazy_load_command(f"{_MESSAGES}.send_command"),
        args=(
            Arg(("destination",), help="queue://name, topic://name, or the name of a queue"),
            _CONN_ID,
            Arg(("--body",), help="text of the body; without, it is read from --file or standard input"),
            Arg(("--file",), help="file with the body; - is standard input"),
            Arg(("--bytes",), action="store_true", help="send a bytes message"),
            Arg(("--lines",), action="store_true", help="send one text message for each line"),
            Arg(
                ("--messages",),
                action="store_true",
                help="send one message for each line of JSON, in the form that JmsMessage.to_json writes",
            ),
            Arg(("--property",), action="append", metavar="NAME=VALUE", help="a property; may be repeated"),
            Arg(("--correlation-id",), help="JMSCorrelationID"),
            Arg(("--reply-to",), help="JMSReplyTo, as queue://name"),
            Arg(("--type",), help="JMSType"),
            Arg(("--priority",), type=_integer(0, 9), help="0 to 9; without, 4"),
            Arg(("--expires",), type=_positive, metavar="SECONDS", help="time to live"),
            Arg(("--non-persistent",), action="store_true", help="the message may be lost with the broker"),
            ARG_VERBOSE,
        ),
    )


def _schema_command() -> ActionCommand:
    return ActionCommand(
        name="schema",
        help="Propose the schema of JSON bodies from messages of a queue or of batches",
        description=(
            "Browses a queue, or reads batches of the spool, and changes nothing. Prints fields for --schema "
            "of the ready-made Spark job, and on standard error each message that doesn't fit them."
        ),
        func=lazy_load_command(f"{_SCHEMA}.schema_command"),
        args=(
            Arg(("queue",), nargs="?", metavar="QUEUE", help="name of the queue, or queue://name"),
            Arg(("--batch",), action="append", metavar="NAME", help="read this batch; may be repeated"),
            Arg(
                ("--limit",),
                type=_integer(1, 10_000),
                default=1000,
                help="read the first LIMIT messages (default 1000)",
            ),
            _SELECTOR,
            _CONN_ID,
            _SPOOL_PATH,
            ARG_VERBOSE,
        ),
    )


def _doctor_command() -> ActionCommand:
    return ActionCommand(
        name="doctor",
        help="Find out why messages are not processed: symptom, cause and fix of each problem",
        description=(
            "Examines triggerer, DAGs, watchers, brokers, store, spool and disks, and changes nothing. Exit "
            "code 0: no problems. 1: problems. 2: no problems, but a part could not be examined."
        ),
        func=lazy_load_command(f"{_DOCTOR}.doctor_command"),
        args=(
            Arg(
                ("--conn-id",),
                action="append",
                help="examine the broker of this connection only; may be repeated. Without, all JMS "
                "connections",
            ),
            Arg(
                ("--dead-letter-queue",),
                action="append",
                metavar="QUEUE",
                help="a dead-letter queue with another kind of name; may be repeated",
            ),
            Arg(
                ("--min-free",),
                type=_positive,
                default=1.0,
                metavar="GIB",
                help="minimum free disk space of spool and store (default 1)",
            ),
            Arg(
                ("--browse",),
                action="store_true",
                help="look at dead letters also on RabbitMQ, which marks them as redelivered and counts the "
                "look against the delivery limit of a quorum queue",
            ),
            Arg(("--notes",), action="store_true", help="also print findings that are not problems"),
            Arg(
                ("--timeout",),
                type=_positive,
                default=30.0,
                metavar="SECONDS",
                help="maximum time of all parts together, which are examined at the same time; a finding "
                "names each part that took longer (default 30)",
            ),
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    )


def _check_command() -> ActionCommand:
    return ActionCommand(
        name="check",
        help="Check a connection: login, TLS, capabilities, administration, a round trip",
        description="Exit code 1 if a check fails.",
        func=lazy_load_command(f"{_MESSAGES}.check_command"),
        args=(
            Arg(("conn_id",), metavar="CONN_ID", help="the Airflow connection"),
            Arg(("--queue",), help="send a message to this queue and receive it; without, nothing is sent"),
            Arg(
                ("--spec",),
                metavar="FILE",
                help="an activation spec in YAML or JSON, or a deployment descriptor (.xml): say what in it "
                "would not work on this broker",
            ),
            Arg(("--name",), help="which activation of a descriptor that has several"),
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    )


def get_jms_cli_commands() -> list[CLICommand]:
    """Return the command group `jms`. Airflow calls this function whenever one of its commands is run."""
    return [
        GroupCommand(
            name="jms",
            help="Queues, dead letters, activations, activation specs, the store and the spool",
            subcommands=(
                ActionCommand(
                    name="explain",
                    help="Show each option in force, its value, where it comes from, and its default",
                    description=(
                        # Help is printed as rich's markup, which would take [jmsjca] for a style and drop it.
                        "Resolves the three levels: the section \\[jmsjca] with environment variables, an "
                        "Airflow connection, an activation spec. Secrets are masked."
                    ),
                    func=lazy_load_command(f"{_CONFIGURATION}.explain_command"),
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
                        Arg(("--only-set",), action="store_true", help="leave out options that are not set"),
                        ARG_OUTPUT,
                        ARG_VERBOSE,
                    ),
                ),
                ActionCommand(
                    name="import",
                    help="Print the activation spec of another product's configuration as YAML",
                    description=(
                        "Reads ejb-jar.xml, weblogic-ejb-jar.xml, weblogic-application.xml, sun-ejb-jar.xml, "
                        "glassfish-ejb-jar.xml, JMS modules, ra.xml, Patch Bay XML or the configuration of a "
                        "WBIA connector, whole or a fragment. Files that end in .properties hold Java "
                        "properties: of a WBIA connector, or of Patch Bay's MessagingManager. "
                        "Several files about one bean belong together."
                    ),
                    func=lazy_load_command(f"{_CONFIGURATION}.import_command"),
                    args=(
                        Arg(("files",), nargs="+", metavar="FILE", help="the files"),
                        Arg(("--name",), help="which activation, where there are several"),
                        Arg(
                            ("--secrets",),
                            action="store_true",
                            help="print passwords too; they are left out otherwise",
                        ),
                        ARG_VERBOSE,
                    ),
                ),
                _send_command(),
                _check_command(),
                _doctor_command(),
                _schema_command(),
                _queues_commands(),
                _dead_letter_commands(),
                _limbo_commands(),
                _activations_commands(),
                _attempts_commands(),
                _in_doubt_commands(),
                _store_commands(),
                _spool_commands(),
            ),
        )
    ]
