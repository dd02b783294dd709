"""The getters of a message: properties and items read as a Java type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_jmsjca.core.conversion import convert
from airflow_provider_jmsjca.core.value_types import ItemType, ItemValue, PropertyType, PropertyValue
from airflow_provider_jmsjca.errors import PoisonMessageError


class PropertyReader:
    """Getters over the attributes `properties`, `property_types`, `body` and `item_types` of a message.

    Every getter raises `PoisonMessageError` where JMS knows no conversion from the stored type, where a
    string doesn't say a number of that type, and, numbers having no null, for a number that isn't there.

    Source: JMS 2.0 sections 3.5.4 and 3.11.3.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def properties(self) -> Mapping[str, PropertyValue]:
            """What the message has."""

        @property
        def property_types(self) -> Mapping[str, PropertyType]:
            """What the message has."""

        @property
        def body(self) -> Any:
            """What the message has."""

        @property
        def item_types(self) -> Mapping[Any, ItemType]:
            """What the message has."""

    def get_object(self, name: str) -> PropertyValue:
        """Return a property as it is; `None` if there is none of that name."""
        return self.properties.get(name)

    def get_boolean(self, name: str) -> bool:
        """Return a property as boolean; the string `true` in any case is true, a missing one is false."""
        return bool(self._property(name, ItemType.BOOLEAN))

    def get_byte(self, name: str) -> int:
        """Return a property as a byte (8 bits with sign)."""
        return self._integer(name, ItemType.BYTE)

    def get_short(self, name: str) -> int:
        """Return a property as a short (16 bits with sign)."""
        return self._integer(name, ItemType.SHORT)

    def get_int(self, name: str) -> int:
        """Return a property as an int (32 bits with sign)."""
        return self._integer(name, ItemType.INT)

    def get_long(self, name: str) -> int:
        """Return a property as a long (64 bits with sign)."""
        return self._integer(name, ItemType.LONG)

    def get_float(self, name: str) -> float:
        """Return a property as a float (32 bits)."""
        return self._floating(name, ItemType.FLOAT)

    def get_double(self, name: str) -> float:
        """Return a property as a double (64 bits)."""
        return self._floating(name, ItemType.DOUBLE)

    def get_string(self, name: str) -> str | None:
        """Return a property as text, numbers as Java writes them; `None` if there is none of that name."""
        value = self._property(name, ItemType.STRING)
        return None if value is None else str(value)

    def get_item(self, key: str | int, kind: ItemType) -> ItemValue:
        """Return an item of a map body (by name) or stream body (by index from 0) read as that type.

        An item that isn't in a map reads like `None`.

        Raises:
            PoisonMessageError: Also where the body is no map or stream, or the stream has no such item.
        """
        body = self.body
        if isinstance(body, Mapping):
            value = body.get(key)
        elif isinstance(body, Sequence) and not isinstance(body, (str, bytes)) and isinstance(key, int):
            if not 0 <= key < len(body):
                raise PoisonMessageError(f"stream item {key}: the body has {len(body)}")
            value = body[key]
        else:
            raise PoisonMessageError(f"item {key!r}: the body is a {type(body).__name__} without such items")
        return _explained(f"item {key!r}", value, self.item_types.get(key), kind)

    def _property(self, name: str, kind: ItemType) -> ItemValue:
        value = self.properties.get(name)
        return _explained(f"property {name!r}", value, self.property_types.get(name), kind)

    def _integer(self, name: str, kind: ItemType) -> int:
        value = self._property(name, kind)
        if not isinstance(value, int):
            raise PoisonMessageError(f"property {name!r}: expected a {kind}, found {type(value).__name__}")
        return value

    def _floating(self, name: str, kind: ItemType) -> float:
        value = self._property(name, kind)
        if not isinstance(value, float):
            raise PoisonMessageError(f"property {name!r}: expected a {kind}, found {type(value).__name__}")
        return value


def _explained(place: str, value: ItemValue, stored: str | None, kind: ItemType) -> ItemValue:
    try:
        return convert(value, stored, kind)
    except PoisonMessageError as error:
        raise PoisonMessageError(f"{place}: {error}") from error
