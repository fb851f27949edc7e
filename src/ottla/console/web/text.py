"""Numbers and times as pages show them."""

from __future__ import annotations

from datetime import UTC, datetime

from ottla.base.readable import duration_text, size_text

NOTHING = "–"


def count_text(value: float | None) -> str:
    """A number with separators, `1,234,567`; a dash for None."""
    return NOTHING if value is None else f"{value:,.0f}"


def short_count(value: float | None) -> str:
    """A number with three digits: `1.23 M`."""
    if value is None:
        return NOTHING
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            scaled = value / (1000 if unit == "k" else limit)
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f} {unit}"
    return f"{value:,.0f}"


def rate_text(value: float | None, unit: str = "records") -> str:
    """A rate per second; a dash for None, "0" for none."""
    if value is None:
        return NOTHING
    if unit == "bytes":
        return f"{size_text(int(value))}/s"
    if 0 < value < 10:
        return f"{value:.1f}/s"
    return f"{short_count(value)}/s"


def time_text(ms: int | None) -> str:
    """A time in UTC, `2026-11-25 12:00:00.000`; a dash for None and for negative times."""
    if ms is None or ms < 0:
        return NOTHING
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def ago_text(ms: int | None, now_ms: int) -> str:
    """How long ago a time was: `3m 2s ago`."""
    if ms is None or ms < 0:
        return NOTHING
    passed = now_ms - ms
    return "now" if abs(passed) < 1000 else f"{duration_text(passed)} ago" if passed > 0 else f"in {duration_text(-passed)}"
