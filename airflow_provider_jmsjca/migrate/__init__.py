"""Readers for the configuration files of the products that activations are moved from.

Option names of Patch Bay and WBIA are known here alone. Only `airflow jms import` and
`ActivationSpec.from_xml` use it. May import `core` and `errors`.
"""
