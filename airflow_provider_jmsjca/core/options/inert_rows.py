"""Options of other products that are accepted and have no effect here.

Each row gives the reason, and every name under which the option may be given. The option's value is not
checked.
"""

from __future__ import annotations

from airflow_provider_jmsjca.core.options.option import Option, OptionType


def _inert(
    name: str,
    reason: str,
    meaning: str,
    source: str,
    *,
    levels: str = "A",
    **spellings: tuple[str, ...],
) -> Option:
    """Return an option without effect.

    Args:
        name: Name of the option in this package.
        reason: Reason why the option has no effect, and the alternative.
        meaning: Meaning of the option in the original product.
        source: Catalogue numbers.
        levels: Levels that may set the option.
        spellings: Names of the option in other products, by the attribute of `Option` that lists them.
    """
    return Option(
        name=name,
        value_type=OptionType.ANY,
        levels=levels,
        meaning=meaning,
        source=source,
        reason=reason,
        jmsjca=spellings.get("jmsjca", ()),
        key=spellings.get("key", ()),
        ejb=spellings.get("ejb", ()),
        weblogic=spellings.get("weblogic", ()),
        glassfish=spellings.get("glassfish", ()),
    )


INERT = (
    _inert(
        "mbean_object_name",
        "there is no MBean server; statistics are kept for each activation under its own name",
        "MBean of the connector.",
        "J35, J114, J115",
        levels="C",
        jmsjca=("MBeanObjectName",),
    ),
    _inert(
        "mbean_server_domain",
        "there is no MBean server",
        "MBean server to register in.",
        "J36",
        levels="C",
        jmsjca=("MBeanServerDomain",),
    ),
    _inert(
        "producer_pooling",
        "a session sends without a producer object, so there is nothing to keep",
        "Keep closed producers with their session for the next use.",
        "J15, J42, J107",
        levels="CF",
        jmsjca=("ProducerPooling",),
        key=("JMSJCA.producerpooling",),
    ),
    _inert(
        "pool_min_size",
        "a session costs nothing here until it is used",
        "Sessions kept ready.",
        "J45",
        levels="CF",
        key=("JMSJCA.poolminsize",),
    ),
    _inert(
        "no_xa",
        "a unit of work is always one local transaction of the broker",
        "Never use XA.",
        "J92, J125, J127",
        levels="CFA",
        key=("JMSJCA.NoXA",),
    ),
    _inert(
        "locator_class",
        "there is no transaction manager to find",
        "Class that finds the transaction manager.",
        "J93",
        levels="CFA",
        key=("JMSJCA.LocatorClass",),
    ),
    _inert(
        "override_is_same_rm",
        "only XA asks",
        "Answer isSameRM() with false.",
        "J111",
        levels="CFA",
        key=("JMSJCA.overrideissamerm",),
    ),
    _inert(
        "interceptors_service_name",
        "it names Java classes; wrap the handler function instead",
        "Service file that lists interceptor classes.",
        "J110, J213",
        levels="CFA",
        key=("JMSJCA.interceptorsvcname",),
    ),
    _inert(
        "endpoint_pool_resize_count",
        "threads are started when there is work for them",
        "Threads added or removed at a time.",
        "J63",
        jmsjca=("endpointPoolResizeCount",),
        glassfish=("resize-quantity",),
    ),
    _inert(
        "endpoint_pool_resize_timeout",
        "threads are started when there is work for them; pool_idle_timeout ends them",
        "Time between two changes of the pool's size.",
        "J63",
        jmsjca=("endpointPoolResizeTimeout",),
    ),
    _inert(
        "endpoint_exception_redelivery_attempts",
        "redelivery_handling decides about redelivery",
        "Deliveries repeated by the container after an exception.",
        "J63",
        jmsjca=("endpointExceptionRedeliveryAttempts",),
    ),
    _inert(
        "endpoint_exception_redelivery_interval",
        "redelivery_handling decides about redelivery",
        "Time between those repetitions.",
        "J63",
        jmsjca=("endpointExceptionRedeliveryInterval",),
    ),
    _inert(
        "receive_timeout",
        "receivers don't poll: a message or a stop request wakes them",
        "How long a receiver waits for a message before it looks whether it must stop.",
        "J84, J112",
        levels="CFA",
        key=("JMSJCA.receivetimeout",),
    ),
    _inert(
        "message_wrapping",
        "every delivery carries the extra properties",
        "0: wrap messages when needed; 1: always.",
        "J8, J103, J174",
        levels="CFA",
        key=("JMSJCA.messagewrapping",),
    ),
    _inert(
        "minimal_reconnect_logging_ds",
        "a consumer that can't be created is logged as a failed connect: minimal_reconnect_logging",
        "Log a consumer that could not be created once, as information.",
        "J109",
        levels="CFA",
        key=("JMSJCA.minimalreconnectloggingds",),
    ),
    _inert(
        "max_messages_in_transaction",
        "WebLogic's documents don't say what it does; for batches say batch_size and concurrency_mode",
        "Messages in one transaction.",
        "W14, W20",
        weblogic=("max-messages-in-transaction",),
    ),
    _inert(
        "topic_messages_distribution_mode",
        "each task with a subscription of its own gets a copy; see generate_unique_client_id",
        "Which servers get a copy of a topic's message.",
        "W31, W46",
        weblogic=("topic-messages-distribution-mode",),
    ),
    _inert(
        "initial_context_factory",
        "names are looked up among Airflow's connections and variables",
        "JNDI context factory class.",
        "W14, W18",
        weblogic=("initial-context-factory",),
    ),
    _inert(
        "dispatch_policy",
        "there are no execute queues; endpoint_pool_max_size bounds the threads",
        "Execute queue or work manager.",
        "W6, W17",
        weblogic=("dispatch-policy",),
        glassfish=("use-thread-pool-id",),
    ),
    _inert(
        "start_with_application",
        "an activation starts with its task or trigger",
        "Start listening while the server boots.",
        "W39",
        weblogic=("start-mdbs-with-application",),
    ),
    _inert(
        "resource_adapter",
        "the scheme of connection_url chooses the transport",
        "Resource adapter to use.",
        "W10",
        weblogic=("resource-adapter-jndi-name",),
        glassfish=("resource-adapter-mid",),
    ),
    _inert(
        "timer_descriptor",
        "the schedule is Airflow's",
        "Timer settings of the bean.",
        "W14",
        weblogic=("timer-descriptor",),
    ),
    _inert(
        "run_as_principal",
        "the handler runs as Airflow's worker; username and password log in to the broker",
        "Principal the bean runs as.",
        "W40, W42",
        weblogic=(
            "run-as-principal-name",
            "security-role-assignment",
        ),
        glassfish=("security-role-mapping",),
    ),
    _inert("ejb_class", "the handler is a Python function", "Class of the bean.", "W13", ejb=("ejb-class",)),
    _inert(
        "messaging_type",
        "the handler is a Python function",
        "Listener interface of the bean.",
        "W13",
        ejb=("messaging-type",),
    ),
    _inert(
        "message_destination_ref_name",
        "message-destination-link says which destination it is",
        "Local name of a logical destination.",
        "W19",
        ejb=("message-destination-ref-name",),
    ),
    _inert(
        "message_destination_usage",
        "an activation consumes",
        "Consumes, Produces or both.",
        "W19",
        ejb=("message-destination-usage",),
    ),
)
