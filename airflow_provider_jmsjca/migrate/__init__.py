"""Readers for configuration files of other products, from which activations are migrated.

Only this folder contains option names of Patch Bay and WBIA. Only `airflow jms import` and
`ActivationSpec.from_xml` use it. This folder may import `core` and `errors`.
"""
