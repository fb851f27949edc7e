"""Bytes in JSON documents: text, or `{"base64": "..."}` if they are not UTF-8.

`produce -i json` reads what `consume -o json` prints.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any


def json_bytes(value: bytes | None) -> Any:
    """Bytes as text, or as `{"base64": ...}` if they are not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def bytes_json(value: Any, name: str) -> bytes | None:
    """Bytes from JSON: the reverse of `json_bytes`. Any other JSON value becomes its JSON text.

    Raises: ValueError.
    """
    import msgspec

    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return b64decode(value["base64"], validate=True)
        except ValueError:
            raise ValueError(f"{name}: invalid base64") from None
    return msgspec.json.encode(value)
