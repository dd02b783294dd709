"""Options of an activation that come from WebLogic and the EJB descriptor."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_jmsjca.core.options.choices import (
    DistributedDestinationConnection,
)
from airflow_provider_jmsjca.core.options.option import Option, OptionType

_ENGINE = "engine"


WEBLOGIC = (
    Option(
        name="ejb_name",
        value_type=OptionType.TEXT,
        levels="A",
        ejb=("ejb-name",),
        meaning="Name of the bean; stands for name, and for the client id of a durable subscription.",
        source="W13, W18, W30",
        acts="core.activation",
    ),
    Option(
        name="jms_client_id",
        value_type=OptionType.TEXT,
        levels="A",
        weblogic=("jms-client-id",),
        meaning="Client id where the connection factory has none.",
        source="W14, W18, W30",
        acts="core.activation",
        shown_default="ejb_name",
    ),
    Option(
        name="generate_unique_client_id",
        value_type=OptionType.BOOLEAN,
        levels="A",
        default=False,
        weblogic=("generate-unique-jms-client-id",),
        meaning="Every task gets a client id, and so a copy of each message, of its own.",
        source="W14, W17, W31",
        acts="core.activation",
    ),
    Option(
        name="durable_subscription_deletion",
        value_type=OptionType.BOOLEAN,
        levels="A",
        default=False,
        weblogic=("durable-subscription-deletion",),
        meaning="Delete the durable subscription when the activation stops in good order.",
        source="W14, W17, W33",
        acts=_ENGINE,
    ),
    Option(
        name="polling_interval",
        value_type=OptionType.DURATION,
        levels="A",
        default=timedelta(seconds=10),
        minimum=0,
        weblogic=("jms-polling-interval-seconds",),
        meaning="Time between two attempts to connect.",
        source="W14, W16, J122",
        acts=_ENGINE,
        shown_default="1, 2, 5, 5, then 10 seconds",
    ),
    Option(
        name="init_suspend",
        value_type=OptionType.DURATION,
        levels="A",
        default=timedelta(seconds=60),
        minimum=0,
        weblogic=("init-suspend-seconds",),
        meaning="How long deliveries are suspended when an outage is noticed, each time.",
        source="W14, W18, W24, W25",
        acts=_ENGINE,
        shown_default="never suspended; 60s if max_suspend is set",
    ),
    Option(
        name="max_suspend",
        value_type=OptionType.DURATION,
        levels="A",
        default=timedelta(seconds=60),
        minimum=0,
        weblogic=("max-suspend-seconds",),
        meaning="How long the suspensions of one outage last together; 0: never suspend.",
        source="W14, W18, W26",
        acts=_ENGINE,
        shown_default="never suspended; 60s if init_suspend is set",
    ),
    Option(
        name="transaction_timeout",
        value_type=OptionType.DURATION,
        levels="A",
        default=timedelta(seconds=30),
        minimum=0,
        weblogic=("trans-timeout-seconds",),
        glassfish=("cmt-timeout-in-seconds",),
        meaning="A delivery that takes longer is rolled back; 0: the default.",
        source="W18, W22",
        acts=_ENGINE,
    ),
    Option(
        name="pool_idle_timeout",
        value_type=OptionType.DURATION,
        levels="A",
        unlimited=True,
        weblogic=("idle-timeout-seconds",),
        glassfish=("pool-idle-timeout-in-seconds",),
        meaning="Idle threads beyond the steady size end after this.",
        source="W3",
        acts=_ENGINE,
        shown_default="-1: no limit",
    ),
    Option(
        name="distributed_destination_connection",
        value_type=OptionType.CHOICE,
        levels="A",
        choices=DistributedDestinationConnection,
        default=DistributedDestinationConnection.LOCAL_ONLY,
        weblogic=("distributed-destination-connection",),
        meaning="local_only: one host of the list; every_member: one on each, within the limits of one.",
        source="W12, W17",
        acts=_ENGINE,
    ),
)
