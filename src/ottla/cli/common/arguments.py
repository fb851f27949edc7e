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
from ottla.base.options import ConfigError
from ottla.base.readable import UNITS_MS
from ottla.base.readable import duration_text as duration_text
from ottla.base.readable import numbers_by_topic as numbers_by_topic
from ottla.base.readable import partitions_text as partitions_text
from ottla.base.readable import readable_setting as readable_setting
from ottla.base.readable import size_text as size_text

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


def time_text(ms: int | None) -> str | None:
    """A time as ISO 8601 in local time; None for None and for negative times."""
    return None if ms is None or ms < 0 else datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="milliseconds")


def listen_address(text: str, option: str) -> tuple[str, int]:
    """Host and port to listen on; the host without the brackets of IPv6. Raises: ConfigError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(option, f"expected HOST:PORT, such as 127.0.0.1:8080, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def setting_value(name: str, value: str) -> str:
    """A setting's value in Kafka's format. Settings in milliseconds also accept durations (7d), settings in bytes sizes (1GiB)."""
    if name.endswith(".ms") and not value.lstrip("-").isdecimal() and "".join("".join(part) for part in _PART.findall(value)) == value:
        return str(duration_ms(value, name)) if value else value
    if "bytes" in name and (size := _SIZE.fullmatch(value)):
        return str(int(size[1]) * SIZES[size[2]])
    return value


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
