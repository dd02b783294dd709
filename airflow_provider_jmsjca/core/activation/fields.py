"""The fields of an activation spec: one for every option an activation may say.

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
    """What an activation spec holds; durations are `timedelta`, choices are enums, lists are tuples."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    connection_url: str | None = _default("connection_url")
    username: str | None = _default("username")
    password: str | None = _default("password")
    share_login: bool = _default("share_login")
    options: str | None = _default("options")
    client_id: str | None = _default("client_id")
    no_xa: bool | None = _default("no_xa")
    locator_class: str | None = _default("locator_class")
    override_is_same_rm: bool = _default("override_is_same_rm")
    interceptors_service_name: str = _default("interceptors_service_name")
    prefetch: int | None = _default("prefetch")
    jms_conn_id: str = _default("jms_conn_id")
    destination: tuple[str, ...] = _default("destination")
    destination_type: DestinationType | None = _default("destination_type")
    subscription_durability: SubscriptionDurability = _default("subscription_durability")
    subscription_name: str | None = _default("subscription_name")
    concurrency_mode: ConcurrencyMode = _default("concurrency_mode")
    endpoint_pool_max_size: int = _default("endpoint_pool_max_size")
    endpoint_pool_steady_size: int = _default("endpoint_pool_steady_size")
    endpoint_pool_resize_count: int = _default("endpoint_pool_resize_count")
    endpoint_pool_resize_timeout: timedelta = _default("endpoint_pool_resize_timeout")
    endpoint_exception_redelivery_attempts: int = _default("endpoint_exception_redelivery_attempts")
    endpoint_exception_redelivery_interval: timedelta = _default("endpoint_exception_redelivery_interval")
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
    receive_timeout: timedelta = _default("receive_timeout")
    message_wrapping: int = _default("message_wrapping")
    force_bmt: bool = _default("force_bmt")
    minimal_reconnect_logging: bool = _default("minimal_reconnect_logging")
    minimal_reconnect_logging_ds: bool = _default("minimal_reconnect_logging_ds")
    transaction_type: TransactionType = _default("transaction_type")
    transaction_attribute: TransactionAttribute = _default("transaction_attribute")
    dead_letter_destination: tuple[str, ...] = _default("dead_letter_destination")
    non_retryable: tuple[str, ...] = _default("non_retryable")
    confirm: bool = _default("confirm")
    park: bool = _default("park")
    retry_permanent: bool = _default("retry_permanent")
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
    max_messages_in_transaction: int | None = _default("max_messages_in_transaction")
    topic_messages_distribution_mode: str | None = _default("topic_messages_distribution_mode")
    initial_context_factory: str | None = _default("initial_context_factory")
    dispatch_policy: str | None = _default("dispatch_policy")
    start_with_application: str | None = _default("start_with_application")
    resource_adapter: str | None = _default("resource_adapter")
    timer_descriptor: str | None = _default("timer_descriptor")
    run_as_principal: str | None = _default("run_as_principal")
    ejb_class: str | None = _default("ejb_class")
    messaging_type: str | None = _default("messaging_type")
    message_destination_ref_name: str | None = _default("message_destination_ref_name")
    message_destination_usage: str | None = _default("message_destination_usage")
    max_attempts: int | None = _default("max_attempts")
    redelivery_delay: timedelta | None = _default("redelivery_delay")
    limbo_delivery_retry: int = _default("limbo_delivery_retry")
    allow_message_delays: bool = _default("allow_message_delays")
    limbo_poll_interval: str | None = _default("limbo_poll_interval")
    data_source: str | None = _default("data_source")
    failure_output_port: str | None = _default("failure_output_port")
    input_port: str | None = _default("input_port")
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
    missing_message_id: str | None = _default("missing_message_id")
    archive_destination: str | None = _default("archive_destination")
    error_destination: str | None = _default("error_destination")
    unsubscribed_destination: str | None = _default("unsubscribed_destination")
    reply_to_destination: str | None = _default("reply_to_destination")
    message_response_result_property: str | None = _default("message_response_result_property")
    configuration_meta_object: str | None = _default("configuration_meta_object")
    data_handler_config_mo: str | None = _default("data_handler_config_mo")
    data_handler_mime_type: str | None = _default("data_handler_mime_type")
    restart_retry_count: int = _default("restart_retry_count")
    restart_retry_interval: timedelta = _default("restart_retry_interval")
    request_destination: str | None = _default("request_destination")
    request_queue: str | None = _default("request_queue")
    source_queue: str | None = _default("source_queue")
    controller_store_and_forward_mode: str | None = _default("controller_store_and_forward_mode")
