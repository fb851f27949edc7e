"""Events, effects and messages as values for JSON that a person reads.

Bytes are shown by their length and beginning, long texts and lists by their beginning.
"""

from __future__ import annotations

from typing import Any

import msgspec

#: Shown of bytes, texts and lists.
BYTES_SHOWN, TEXT_SHOWN, ITEMS_SHOWN = 32, 400, 20


def shown(value: Any) -> Any:
    """A value as JSON has it, shortened."""
    return _shortened(msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview), enc_hook=repr, str_keys=True))


def _shortened(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value[:BYTES_SHOWN])
        return f"{len(value)} bytes" + (f": {data.hex(' ', -4)}{'...' if len(value) > BYTES_SHOWN else ''}" if len(value) else "")
    if isinstance(value, str):
        return value if len(value) <= TEXT_SHOWN else f"{value[:TEXT_SHOWN]}... ({len(value)} characters)"
    if isinstance(value, dict):
        return {str(name): _shortened(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        listed = list(value)
        kept = [_shortened(one) for one in listed[:ITEMS_SHOWN]]
        return kept if len(listed) <= ITEMS_SHOWN else [*kept, f"{len(listed) - ITEMS_SHOWN} more"]
    return value
