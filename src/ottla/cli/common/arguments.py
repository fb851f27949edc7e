"""Arguments of commands: times, durations, partitions and values of settings, parsed and formatted.

times        2026-01-31T12:00:00, local time unless it has a zone; or milliseconds since 1970
durations    1h   1h30m   90s   500ms   2d   or ISO 8601: PT1H   P1DT12H
partitions   orders   orders:0,3   orders:0-5,8
settings     retention.ms=7d   segment.bytes=1GiB   or Kafka's plain numbers
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime

import click

from ottla.base.ids import TopicPartition

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+)\s*([KMGT]i?B)")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_ISO = re.compile(r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?")
#: Upper limit of the numbers in one range. No topic has more partitions, so a longer range is a typing error.
RANGE_MAX = 200_000


def time_ms(text: str, option: str) -> int:
    """A time in milliseconds since 1970. Raises: UsageError."""
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise click.UsageError(f"{option} expects milliseconds or a date like 2026-01-31T12:00:00, not {text!r}") from None


def duration_ms(text: str, option: str) -> int:
    """A duration in milliseconds. Raises: UsageError."""
    iso = _ISO.fullmatch(text.upper())
    if iso is not None and any(iso.groups()):
        return int(sum(float(count) * UNITS_MS[unit] for unit, count in iso.groupdict().items() if count))
    parts = _PART.findall(text.lower())
    if parts and "".join(count + unit for count, unit in parts) == text.lower():
        return int(sum(float(count) * UNITS_MS[unit] for count, unit in parts))
    raise click.UsageError(f"{option} expects a duration like 1h30m, 90s or PT1H, not {text!r}")


def duration_text(ms: int) -> str:
    """A duration in its two largest units: `1h 30m`."""
    if 0 < ms < 1000:
        return f"{ms}ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f}s" if ms else "0s"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, ms = divmod(ms, UNITS_MS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts))


def time_text(ms: int | None) -> str | None:
    """A time as ISO 8601 in local time; None for None and for negative times."""
    return None if ms is None or ms < 0 else datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="milliseconds")


def size_text(count: int | None) -> str | None:
    """A size in a binary unit, with about three digits: `1.2 GiB`."""
    if count is None:
        return None
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1000:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.{1 if size < 100 else 0}f} {unit}"


def readable_setting(name: str, value: str | None) -> str | None:
    """A setting's value; large numbers of milliseconds and bytes are followed by the value in a larger unit."""
    if value is None or not value.isdecimal() or not 10_000 <= int(value) < 2**62:
        return value
    if name.endswith(".ms"):
        return f"{value} ({duration_text(int(value))})"
    if "bytes" in name:
        return f"{value} ({size_text(int(value))})"
    return value


def setting_value(name: str, value: str) -> str:
    """A setting's value in Kafka's format. Settings in milliseconds also accept durations (7d), settings in bytes sizes (1GiB)."""
    if name.endswith(".ms") and not value.lstrip("-").isdecimal() and "".join("".join(part) for part in _PART.findall(value)) == value:
        return str(duration_ms(value, name)) if value else value
    if "bytes" in name and (size := _SIZE.fullmatch(value)):
        return str(int(size[1]) * SIZES[size[2]])
    return value


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Partitions by topic, consecutive numbers as ranges: `orders:0-5,8`."""
    return " ".join(f"{topic}:{_ranges(numbers)}" for topic, numbers in numbers_by_topic(partitions).items())


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of partitions by topic, both sorted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def partition_selection(texts: Iterable[str], option: str) -> dict[str, set[int] | None]:
    """Topics and their selected partitions, None for all. Raises: UsageError."""
    selection: dict[str, set[int] | None] = {}
    for text in texts:
        topic, colon, listed = text.partition(":")
        numbers = _numbers(listed) if colon else None
        if not topic or (colon and not numbers):
            raise click.UsageError(f"{option} expects TOPIC or TOPIC:0,2-5, not {text!r}")
        before = selection.get(topic, set())
        selection[topic] = None if numbers is None or before is None else before | numbers
    return selection


def is_selected(selection: Mapping[str, set[int] | None], tp: TopicPartition) -> bool:
    """Whether a partition is in a selection."""
    numbers = selection.get(tp.topic, set())
    return numbers is None or tp.partition in numbers


def _numbers(listed: str) -> set[int] | None:
    numbers: set[int] = set()
    for part in listed.split(","):
        run = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if run is None:
            return None
        first, last = int(run[1]), int(run[2] or run[1])
        if not 0 <= last - first < RANGE_MAX:
            return None
        numbers.update(range(first, last + 1))
    return numbers
