"""Readers for the configuration files of the products that activations are moved from.

Only `airflow jms import` and `ActivationSpec.from_xml` use it. May import `core` and `errors`.
"""
