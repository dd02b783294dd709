"""Task decorators: `@task.jms_listener` and `@task.jms_sensor`.

Each makes the operator or sensor of its name. May import `operators`, `sensors` and all below.
"""
