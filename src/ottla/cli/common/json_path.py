"""Paths into JSON values, as filters and columns have them.

    .customer.id       .items[0].sku      .items[-1]      ["a name with . in it"].x      [0]
    .items[*].sku      that of each item: a path with a star may find many values, one without finds one or none

A member that is not there, and a step into something that has no members, find nothing; null is a value that is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

#: The step `[*]`.
EACH: Final = None
Step = str | int | None
_STEP = re.compile(r'\.(?P<name>[^\s.\[\]"=!<>~()]+)|\[(?P<index>-?\d+)\]|\[(?P<each>\*)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]')


class Path:
    """A path that was read. `text` is as it was written."""

    def __init__(self, text: str, steps: tuple[Step, ...]) -> None:
        self.text = text
        self.steps = steps
        #: Whether it may find more than one value.
        self.many = EACH in steps

    def __repr__(self) -> str:
        return f"<Path {self.text}>"

    def all(self, value: Any) -> list[Any]:
        """The values that are found, in their order."""
        found = [value]
        for step in self.steps:
            found = [inner for outer in found for inner in _inside(outer, step)]
        return found

    def one(self, value: Any) -> Any:
        """The value that is found, None without one; all of them as a list if there may be many."""
        found = self.all(value)
        return found if self.many else found[0] if found else None


def _inside(value: Any, step: Step) -> list[Any]:
    if step is EACH:
        return list(value) if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    if isinstance(step, str):
        return [value[step]] if isinstance(value, dict) and step in value else []
    return [value[step]] if isinstance(value, list) and -len(value) <= step < len(value) else []


def leading(text: str, position: int = 0) -> tuple[Path, int]:
    """The path that begins at `position`, and where it ends. Raises: ValueError when none begins there."""
    steps: list[Step] = []
    at = position
    while (step := _STEP.match(text, at)) is not None:
        if step["name"] is not None:
            steps.append(step["name"])
        elif step["index"] is not None:
            steps.append(int(step["index"]))
        elif step["each"] is not None:
            steps.append(EACH)
        else:
            steps.append(msgspec.json.decode(step["quoted"], type=str))
        at = step.end()
    if not steps:
        raise ValueError(f"{text[position:]!r} is not a path like .customer.id or .items[0]")
    return Path(text[position:at], tuple(steps)), at


def path(text: str) -> Path:
    """The whole text as a path. Raises: ValueError."""
    found, end = leading(text)
    if end < len(text):
        raise ValueError(f"{text!r} is not a path like .customer.id or .items[0]: nothing is called {text[end:]!r}")
    return found


def decoder() -> Callable[[bytes | None], Any]:
    """A function that decodes JSON, and remembers the last so that several paths into one value decode it once. What is no JSON has no
    members.
    """
    decode = msgspec.json.Decoder().decode
    last: bytes | None = None
    value: Any = None

    def decoded(data: bytes | None) -> Any:
        nonlocal last, value
        if data is not last:
            last = data
            try:
                value = None if data is None else decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                value = None
        return value

    return decoded
