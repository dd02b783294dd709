"""Every option of the product: one table, its spellings, and the Options text.

This folder may import `core.redelivery`.

Source: J31-J64, J92-J113, W13-W20, P6-P9, C14.
"""

from airflow_provider_jmsjca.core.options.option import (
    Family,
    Level,
    Measure,
    Option,
    OptionType,
    OptionValue,
)
from airflow_provider_jmsjca.core.options.properties import format_options, masked_options, read_properties
from airflow_provider_jmsjca.core.options.spelling import (
    PARAMETER,
    check_keys,
    option_by_field,
    option_by_key,
    parse_options,
    unknown_field,
)
from airflow_provider_jmsjca.core.options.table import OPTIONS, OPTIONS_BY_NAME
from airflow_provider_jmsjca.core.options.values import (
    display_value,
    duration_text,
    expected_form,
    read_value,
)

__all__ = [
    "OPTIONS",
    "OPTIONS_BY_NAME",
    "PARAMETER",
    "Family",
    "Level",
    "Measure",
    "Option",
    "OptionType",
    "OptionValue",
    "check_keys",
    "display_value",
    "duration_text",
    "expected_form",
    "format_options",
    "masked_options",
    "option_by_field",
    "option_by_key",
    "parse_options",
    "read_properties",
    "read_value",
    "unknown_field",
]
