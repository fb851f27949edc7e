"""Paths into JSON values, for filters and columns.

    .customer.id       .items[0].sku      .items[-1]      ["a name with . in it"].x      [0]
    .items[*].sku      the value of each item; a path with a star matches any number of values, other paths at most one

A missing member, and a step into a value without members, match nothing. null is a value that is matched.
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
    """A parsed path; `text` is its source."""

    def __init__(self, text: str, steps: tuple[Step, ...]) -> None:
        self.text = text
        self.steps = steps
        #: Whether it can match more than one value.
        self.many = EACH in steps

    def __repr__(self) -> str:
        return f"<Path {self.text}>"

    def all(self, value: Any) -> list[Any]:
        """The matched values, in order."""
        matches = [value]
        for step in self.steps:
            matches = [inner for outer in matches for inner in _step_values(outer, step)]
        return matches

    def one(self, value: Any) -> Any:
        """The matched value or None; a list of all matches if the path has a star."""
        matches = self.all(value)
        return matches if self.many else matches[0] if matches else None


def _step_values(value: Any, step: Step) -> list[Any]:
    if step is EACH:
        return list(value) if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    if isinstance(step, str):
        return [value[step]] if isinstance(value, dict) and step in value else []
    return [value[step]] if isinstance(value, list) and -len(value) <= step < len(value) else []


def parse_prefix(text: str, position: int = 0) -> tuple[Path, int]:
    """The path that begins at `position`, and its end. Raises: ValueError, if no path begins there."""
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


def parse_path(text: str) -> Path:
    """The whole text as a path. Raises: ValueError."""
    path, end = parse_prefix(text)
    if end < len(text):
        raise ValueError(f"{text!r} is not a path like .customer.id or .items[0]: unexpected {text[end:]!r}")
    return path


def decoder() -> Callable[[bytes | None], Any]:
    """A function that decodes JSON and caches the last value, so that several paths decode it once. Invalid JSON becomes None."""
    decode = msgspec.json.Decoder().decode
    last: bytes | None = None
    value: Any = None

    def decoded(data: bytes | None) -> Any:
        nonlocal last, value
        if data is not last:
            last = data
            try:
                value = None if data is None else decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                value = None
        return value

    return decoded
