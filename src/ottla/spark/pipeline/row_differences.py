"""Compares the rows of a view with the expected ones, for tests of pipelines. Pure.

Columns that no expected row names are not compared. In the others a missing column of an expected row is null. Rows are JSON values. In
columns of times, all texts of one time are equal. Numbers are equal within 1e-9 of their size.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Row = Mapping[str, Any]
#: Rows that are printed of each kind.
SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of one view."""

    view: str
    #: Expected rows that are not there, and rows that are not expected.
    missing: list[Row] = field(default_factory=list)
    unexpected: list[Row] = field(default_factory=list)
    #: Whether the rows are there in another order.
    other_order: bool = False
    #: The number of the batch of a test, from 1; None: at the end.
    batch: int | None = None

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.other_order)


def compared(view: str, expected: Sequence[Row], found: Sequence[Row], times: Sequence[str] = (), *, ordered: bool = False) -> Differences:
    """`times`: the columns of the type timestamp."""
    columns = list(dict.fromkeys(name for row in expected for name in row)) if expected else None
    wanted = [_normal({name: row.get(name) for name in columns or ()}, times) for row in expected]
    there = [_normal({name: row.get(name) for name in columns} if columns is not None else row, times) for row in found]
    left = list(there)
    missing = []
    for row in wanted:
        index = next((index for index, other in enumerate(left) if _same(row, other)), None)
        if index is None:
            missing.append(row)
        else:
            del left[index]
    if missing or left:
        return Differences(view, missing, left)
    return Differences(view, other_order=ordered and not all(map(_same, wanted, there)))


def differences_text(one: Differences) -> list[str]:
    """The differences in lines: `-` is expected and missing, `+` is there and not expected, with the columns that differ."""
    where = one.view if one.batch is None else f"batch {one.batch}: {one.view}"
    if one.other_order:
        return [f"{where}: the rows are in another order"]
    lines = [f"{where}: {len(one.missing)} missing, {len(one.unexpected)} unexpected"]
    left = list(one.unexpected)
    for row in one.missing[:SHOWN_MAX]:
        lines.append(f"  - {json.dumps(row, ensure_ascii=False)}")
        near = max(left, key=lambda other: _likeness(row, other), default=None)
        if near is not None and _likeness(row, near) > 0:
            left.remove(near)
            lines.append(f"  + {json.dumps(near, ensure_ascii=False)}")
            told = [
                f"{name} is {json.dumps(near.get(name))}, not {json.dumps(row.get(name))}"
                for name in row
                if not _same(row[name], near.get(name))
            ]
            lines.append(f"    {'; '.join(told)}")
    lines += [f"  + {json.dumps(row, ensure_ascii=False)}" for row in left[:SHOWN_MAX]]
    hidden = max(0, len(one.missing) - SHOWN_MAX) + max(0, len(left) - SHOWN_MAX)
    return [*lines, *([f"  and {hidden} more"] if hidden else [])]


def _likeness(row: Row, other: Row) -> int:
    return sum(_same(value, other.get(name)) for name, value in row.items())


def _normal(row: Row, times: Sequence[str]) -> Row:
    return {name: _time(value) if name in times else value for name, value in row.items()}


def _time(value: Any) -> Any:
    """A time as text in UTC; other values unchanged."""
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat().replace("+00:00", "Z")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_same(one.get(name), other.get(name)) for name in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
