"""The fields of an activation spec: one for every option that an activation may set.

Their spellings, units, defaults and meanings are in the option table, `core/options`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider_jmsjca.core.options import OPTIONS_BY_NAME, OptionType
from airflow_provider_jmsjca.core.options.choices import (
    BeanAcknowledge,
    ConcurrencyMode,
    ContainerManagedEvents,
    DestinationType,
    DistributedDestinationConnection,
    InDoubtEvents,
    RedeliveryAction,
    SubscriptionDurability,
    TransactionAttribute,
    TransactionType,
)
from airflow_provider_jmsjca.core.redelivery.actions import MoveKind


def _default(name: str) -> Any:
    option = OPTIONS_BY_NAME[name]
    default = () if option.value_type is OptionType.LIST else option.default
    return Field(default=default, description=option.meaning)


class ActivationFields(BaseModel):
    """The fields of an activation spec; durations are `timedelta`, choices are enums, lists are tuples."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    connection_url: str | None = _default("connection_url")
    username: str | None = _default("username")
    password: str | None = _default("password")
    send_login_to_other_hosts: bool = _default("send_login_to_other_hosts")
    options: str | None = _default("options")
    client_id: str | None = _default("client_id")
    prefetch: int | None = _default("prefetch")
    jms_conn_id: str = _default("jms_conn_id")
    destination: tuple[str, ...] = _default("destination")
    destination_type: DestinationType | None = _default("destination_type")
    subscription_durability: SubscriptionDurability = _default("subscription_durability")
    subscription_name: str | None = _default("subscription_name")
    concurrency_mode: ConcurrencyMode = _default("concurrency_mode")
    endpoint_pool_max_size: int = _default("endpoint_pool_max_size")
    endpoint_pool_steady_size: int = _default("endpoint_pool_steady_size")
    acknowledge_mode: BeanAcknowledge = _default("acknowledge_mode")
    name: str | None = _default("name")
    message_selector: str | None = _default("message_selector")
    selector_override: str | None = _default("selector_override")
    redelivery_handling: str = _default("redelivery_handling")
    redelivery_redirect: bool = _default("redelivery_redirect")
    batch_size: int = _default("batch_size")
    batch_idle_timeout: timedelta = _default("batch_idle_timeout")
    batch_timeout: timedelta | None = _default("batch_timeout")
    hold_until_ack: bool = _default("hold_until_ack")
    context_name: str | None = _default("context_name")
    force_bmt: bool = _default("force_bmt")
    minimal_reconnect_logging: bool = _default("minimal_reconnect_logging")
    transaction_type: TransactionType = _default("transaction_type")
    transaction_attribute: TransactionAttribute = _default("transaction_attribute")
    dead_letter_destination: tuple[str, ...] = _default("dead_letter_destination")
    non_retryable: tuple[str, ...] = _default("non_retryable")
    confirm_acknowledgements: bool = _default("confirm_acknowledgements")
    non_blocking_redelivery: bool = _default("non_blocking_redelivery")
    retry_permanent_errors: bool = _default("retry_permanent_errors")
    ejb_name: str | None = _default("ejb_name")
    jms_client_id: str | None = _default("jms_client_id")
    generate_unique_client_id: bool = _default("generate_unique_client_id")
    durable_subscription_deletion: bool = _default("durable_subscription_deletion")
    polling_interval: timedelta = _default("polling_interval")
    init_suspend: timedelta = _default("init_suspend")
    max_suspend: timedelta = _default("max_suspend")
    transaction_timeout: timedelta = _default("transaction_timeout")
    pool_idle_timeout: timedelta | None = _default("pool_idle_timeout")
    distributed_destination_connection: DistributedDestinationConnection = _default(
        "distributed_destination_connection"
    )
    max_attempts: int | None = _default("max_attempts")
    redelivery_delay: timedelta | None = _default("redelivery_delay")
    limbo_delivery_retry: int = _default("limbo_delivery_retry")
    allow_message_delays: bool = _default("allow_message_delays")
    redelivery_delays: str | None = _default("redelivery_delays")
    redelivery_action: RedeliveryAction | None = _default("redelivery_action")
    redelivery_action_after: int | None = _default("redelivery_action_after")
    redelivery_move_kind: MoveKind | None = _default("redelivery_move_kind")
    redelivery_move_name: str | None = _default("redelivery_move_name")
    poll_quantity: int = _default("poll_quantity")
    in_progress_destination: str | None = _default("in_progress_destination")
    in_doubt_events: InDoubtEvents = _default("in_doubt_events")
    container_managed_events: ContainerManagedEvents = _default("container_managed_events")
    duplicate_event_elimination: bool = _default("duplicate_event_elimination")
    use_store: bool = _default("use_store")
    message_id_fallback: str | None = _default("message_id_fallback")
    archive_destination: str | None = _default("archive_destination")
    error_destination: str | None = _default("error_destination")
    unsubscribed_destination: str | None = _default("unsubscribed_destination")
    reply_to_destination: str | None = _default("reply_to_destination")
    message_response_result_property: str | None = _default("message_response_result_property")
    source_queue: str | None = _default("source_queue")
