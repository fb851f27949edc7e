"""Random messages from their declarations: every field of a version, half of the values at the limits of their types."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from ottla.wire.declare import ZERO_UUID, Array, Blob, Field, Fixed, Type, fields_of, schema_of
from ottla.wire.errors import BY_CODE
from ottla.wire.messages import API, ConsumerProtocolAssignment, ConsumerProtocolSubscription

#: Those that the oracles know.
ERROR_CODES = (0, *(code for code in BY_CODE if code <= 133))
#: Tags from here on are of fields that no other codec knows.
OWN_TAGS = 10_000
TEXTS = ("", "a", "topic-7", "größer", "日本語", "x" * 126, "y" * 127, "z" * 128, "\N{PILE OF POO}", "a.b_c\0d")


def messages() -> list[tuple[type[msgspec.Struct], int]]:
    """Every message class, with those that are embedded in others, and every version it is declared for."""
    classes: list[type[msgspec.Struct]] = [
        *(cls for api in API.values() for cls in (api.request, api.response)),
        ConsumerProtocolSubscription,
        ConsumerProtocolAssignment,
    ]
    return [(cls, version) for cls in classes for version in range(schema_of(cls).since, schema_of(cls).until + 1)]


def label(case: tuple[type[msgspec.Struct], int]) -> str:
    """The name of a test case."""
    return f"{case[0].__name__}-v{case[1]}"


def random_message(cls: type[msgspec.Struct], version: int, random: Random) -> Any:
    """Make a message that this version can carry."""
    values = {f.name: _field(f, version, random) for f in fields_of(cls) if f.present(version)}
    return cls(**values)


def _field(field: Field, version: int, random: Random) -> Any:
    if field.tag is not None and (field.tag >= OWN_TAGS or random.random() < 0.5):
        return field.default
    if field.nullable(version) and random.random() < 0.3:
        return None
    if field.name.endswith("error_code"):
        return random.choice(ERROR_CODES)
    if field.name == "log_append_time_ms":
        # One of the oracles makes a calendar date of it.
        return random.choice((-1, 0, 1_700_000_000_000))
    if field.name in ("last_fetch_timestamp", "last_caught_up_timestamp"):
        return random.choice((-1, 0, 1_700_000_000_000))
    if field.name == "transaction_start_time_ms":
        # One of the oracles makes a calendar date of it, and has no word for "never".
        return random.choice((0, 1_700_000_000_000))
    if field.name.removesuffix("_ms") in ("issue_timestamp", "expiry_timestamp", "max_timestamp"):
        return random.choice((0, 1_700_000_000_000))
    if field.name in ("retention_time_ms", "session_lifetime_ms", "max_lifetime_ms", "renew_period_ms", "expiry_time_period_ms"):
        # One of the oracles makes a span of days and seconds of it.
        return random.choice((-1, 0, 86_400_000))
    return _value(field.type, version, random)


def _value(kind: Type, version: int, random: Random) -> Any:
    if isinstance(kind, Fixed):
        return _fixed(kind, random)
    if isinstance(kind, Blob):
        if kind.name == "string":
            return random.choice(TEXTS)
        return random.randbytes(random.choice((0, 1, 61, 127, 128, 300)))
    if isinstance(kind, Array):
        longest = 140 if isinstance(kind.element, Fixed) and random.random() < 0.1 else 3
        return [_value(kind.element, version, random) for _ in range(random.randint(0, longest))]
    return random_message(kind, version, random)


def _fixed(kind: Fixed, random: Random) -> Any:
    if kind.name == "bool":
        return random.random() < 0.5
    if kind.name == "uuid":
        return random.choice((ZERO_UUID, random.randbytes(16)))
    if kind.name.startswith("uint"):
        return random.choice((0, 1, 2 ** (kind.size * 8) - 1, random.randrange(2 ** (kind.size * 8))))
    most = 2 ** (kind.size * 8 - 1)
    return random.choice((0, 1, -1, most - 1, -most, random.randrange(-most, most)))
