"""Task decorators: `@task.jms_listener` and `@task.jms_sensor`.

Each creates the operator or sensor of the same name. This folder may import `operators`, `sensors` and all
below.
"""
