"""Messages as dicts and lists, which are shorter to write and to compare in a table of tests."""

from typing import Any

import msgspec

from ottla.wire.declare import Array, fields_of
from ottla.wire.messages import API

KEYS = {api.name: key for key, api in API.items()}


def request(api: str, fields: dict[str, Any]) -> Any:
    """The request of an API, with defaults for the fields that are not given."""
    return _made(API[KEYS[api]].request, fields)


def _made(kind: Any, value: Any) -> Any:
    if isinstance(kind, Array) and isinstance(value, list):
        return [_made(kind.element, part) for part in value]
    if isinstance(value, dict):
        types = {field.name: field.type for field in fields_of(kind)}
        return kind(**{name: _made(types[name], part) for name, part in value.items()})
    return value


def plain(value: Any) -> Any:
    """A message as dicts and lists."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    return [plain(part) for part in value] if isinstance(value, list) else value
