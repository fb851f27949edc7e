"""Durations, sizes and partitions as text for people."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.base.ids import TopicPartition

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


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


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Partitions by topic, consecutive numbers as ranges: `orders:0-5,8`."""
    return " ".join(f"{topic}:{ranges_text(numbers)}" for topic, numbers in numbers_by_topic(partitions).items())


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of partitions by topic, both sorted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def ranges_text(numbers: Iterable[int], separator: str = ",") -> str:
    """Sorted numbers, consecutive ones as ranges: `0-5,8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return separator.join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
