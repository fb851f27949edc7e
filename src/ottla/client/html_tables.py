"""Tables for notebooks: what clients return is shown as HTML in Jupyter and other notebooks, through `_repr_html_`.

Lists and dictionaries of results are subclasses of `list` and `dict` with that one method more. Everything else about them is unchanged.
All text is escaped: keys and values of records come from anybody. A table has at most `ROWS_MAX` rows, a cell `CELL_MAX` characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from html import escape
from typing import Any, TypeVar

import msgspec

from ottla.base.ids import topic_id_text

T = TypeVar("T")
K = TypeVar("K")
ROWS_MAX = 200
CELL_MAX = 200
#: Fields with a time in milliseconds since 1970.
TIMES = ("timestamp", "first_unread_ms", "last_ms", "read_at_ms")


class HtmlRows(list[T]):
    """A list of results."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_table(self)


class Outcomes(dict[K, T]):
    """Results by name; a result may be an error."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_table(self.values(), names=list(self))


def html_table(things: Iterable[Any], *, names: Sequence[Any] | None = None, title: str = "") -> str:
    """A row for each result, a column for each of its fields. `names` are a first column for errors, which have no name of their own."""
    listed = list(things)
    rows = [_row(thing, None if names is None else names[at]) for at, thing in enumerate(listed[:ROWS_MAX])]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(column, ''))}</td>" for column in columns) + "</tr>" for row in rows)
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    more = f"<p>{ROWS_MAX} of {len(listed)} rows</p>" if len(listed) > ROWS_MAX else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}" if columns else "<p>none</p>"


def _row(thing: Any, name: Any) -> dict[str, Any]:
    if not isinstance(thing, msgspec.Struct):
        found = {"error": f"{type(thing).__name__}: {thing}"} if isinstance(thing, Exception) else {"result": thing}
        return found if name is None else {"name": name, **found}
    row = {}
    for field in thing.__struct_fields__:
        value = getattr(thing, field)
        if field in TIMES and isinstance(value, int):
            value = _time(value)
        elif field == "topic_id" and isinstance(value, bytes):
            value = topic_id_text(value)
        row[field] = value
    # Properties of the class that belong to the figures.
    return {**row, **{field: getattr(thing, field) for field in ("lag",) if hasattr(type(thing), field)}}


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z") if ms >= 0 else ""
    except (OverflowError, ValueError, OSError):
        return str(ms)


def _cell(value: Any) -> str:
    return escape(text if len(text := _text(value)) <= CELL_MAX else f"{text[:CELL_MAX]}... ({len(text)} characters)")


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value.hex(" ")
        case Enum():
            return str(value.value)
        case list() | tuple() | set() | frozenset() if any(isinstance(one, msgspec.Struct) for one in value):
            return str(len(value))
        case list() | tuple():
            return ", ".join("=".join(map(_text, one)) if isinstance(one, tuple) else _text(one) for one in value)
        case Mapping():
            return ", ".join(f"{_text(name)}={_text(one)}" for name, one in value.items())
        case _:
            return str(value)
