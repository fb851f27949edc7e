"""The steps of a replay: each event of the simulated broker with the effects that it asked for, as values for JSON, shortened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ottla.base.shortened import ITEMS_SHOWN, shown
from ottla.broker import effects, events
from ottla.broker.node import Node

#: Events that say nothing by themselves.
QUIET = (events.Ticked,)


class Step(msgspec.Struct, frozen=True):
    """One step. ``at_ms``: time of the recorded process."""

    number: int
    at_ms: int
    event: str
    fields: Any
    effects: list[tuple[str, Any]]


class StepRecorder:
    """Passes steps on; ticks without an effect are left out."""

    def __init__(self, now_ms: Callable[[], int], keep: Callable[[Step], None]) -> None:
        self._now_ms = now_ms
        self._keep = keep
        self._number = 0

    def inspect(self, node: Node, event: events.Event, requested: list[effects.Effect]) -> None:
        """Called after each step."""
        if isinstance(event, QUIET) and not requested:
            return
        self._number += 1
        done = [(type(effect).__name__, shown(effect)) for effect in requested[:ITEMS_SHOWN]]
        if len(requested) > ITEMS_SHOWN:
            done.append((f"{len(requested) - ITEMS_SHOWN} more effects", {}))
        self._keep(Step(self._number, self._now_ms(), type(event).__name__, shown(event), done))
