"""Bodies of messages as the bytes of the column `body`, and back.

| kind | bytes |
|---|---|
| text | UTF-8; half a surrogate pair is kept the way Java's own encoders misspell it (three bytes) |
| bytes, object | as they are |
| map | a JSON object |
| stream | a JSON array |
| empty | NULL |

Items of maps and streams are JSON values, except `{"base64": "..."}` for bytes and `{"double": "NaN"}` (also
`Infinity`, `-Infinity`) for what JSON has no number for. An item is never an object in JMS, so no two items
look alike.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence

from airflow_provider_jmsjca.core.message import Body, BodyKind, ItemValue, JmsMessage
from airflow_provider_jmsjca.errors import SpoolError


def encode_body(message: JmsMessage) -> bytes | None:
    """Return the bytes of a message's body.

    Raises:
        TypeError: The body is not of its kind.
        ValueError: An item can't be written.
    """
    body = message.body
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(body, bytes) or body is None:
        return body
    items: object
    if isinstance(body, Mapping):
        items = {name: _json_item(value) for name, value in body.items()}
    elif isinstance(body, Sequence):
        items = [_json_item(value) for value in body]
    else:
        raise TypeError(f"a {message.body_kind} body can't be a {type(body).__name__}")
    return json.dumps(items, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _json_item(value: ItemValue) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"double": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value


def decode_body(kind: BodyKind, data: bytes | None) -> Body:
    """Return the body that `encode_body` wrote: a `dict` for map, a `tuple` for stream.

    Raises:
        SpoolError: The bytes are none of `encode_body`'s.
    """
    try:
        match kind, data:
            case BodyKind.EMPTY, None:
                return None
            case BodyKind.TEXT, bytes():
                return data.decode("utf-8", "surrogatepass")
            case ((BodyKind.BYTES | BodyKind.OBJECT), bytes()):
                return data
            case BodyKind.MAP, bytes():
                return {name: _item(value) for name, value in json.loads(data).items()}
            case BodyKind.STREAM, bytes():
                return tuple(_item(value) for value in json.loads(data))
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise SpoolError(f"a {kind} body can't be read back: {error}") from error
    raise SpoolError(f"a {kind} body can't be {'NULL' if data is None else 'other than NULL'}")


def _item(value: object) -> ItemValue:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"]) if "base64" in value else float(value["double"])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"expected an item, found {type(value).__name__}")
