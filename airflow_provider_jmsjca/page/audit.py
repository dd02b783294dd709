"""Actions of the page in Airflow's audit log."""

from __future__ import annotations

import json
from typing import Final

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.models.log import Log
from airflow.utils.session import create_session
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_jmsjca.errors import TransientStoreError

_LONGEST_NAME: Final = 500


def record(user: BaseUser, event: str, **target: str) -> None:
    """Write an action to the audit log. Call this before the action.

    Args:
        user: The user.
        event: The action, for example `suspend_activation`; stored with the prefix `jms_`.
        target: The object of the action, and the chosen options.

    Raises:
        TransientStoreError: The audit log can't be written. The action must not be done.
    """
    name = user.get_name()[:_LONGEST_NAME]
    entry = Log(event=f"jms_{event}", owner=name, owner_display_name=name, extra=json.dumps(target))
    try:
        with create_session() as session:
            session.add(entry)
    except SQLAlchemyError as error:
        raise TransientStoreError(
            f"Airflow's audit log can't be written ({type(error).__name__}); nothing was done"
        ) from error
