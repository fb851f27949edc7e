"""Lines of the broker's log: each is an effect, ``Log``. A machine logs what an operator needs to reconstruct an outage.

Nothing is logged per request. One event, such as a failover, can concern thousands of partitions or members. So there are two kinds:

=======  ===========================================================================================================
single   one event: ``info``, ``warn``, ``debug``
many     one event of each of many things: ``many``. The first line of a kind has all that happens in the same step.
         What follows until the next tick is one further line: "became leader of 312 partitions".
=======  ===========================================================================================================

Clients choose the names of groups and members, so they can cause any number of kinds: each logger has at most ``KINDS_MAX`` of them between
two ticks, and then one line with the number of events that were left out.
"""

from typing import Any, Protocol

from ottla.base.log_levels import LogLevel
from ottla.broker import effects

#: Interval of ticks.
TICK_MS = 1_000
#: Kinds of lines per logger between two ticks.
KINDS_MAX = 50
#: Things that a line names.
NAMED_MAX = 20

#: Logger, and the text before and after the name of a thing.
Kind = tuple[str, str, str]


class Steps(Protocol):
    """What this module uses of the broker's context."""

    #: Effects of the present step; another list in each step.
    effects: list[effects.Effect]


class _Line:
    """A line about one or many things, in the present step or after the next tick."""

    __slots__ = ("count", "effect", "kind", "names", "step", "unit")

    def __init__(self, kind: Kind, unit: str, level: LogLevel, fields: dict[str, Any], step: list[effects.Effect] | None) -> None:
        self.kind = kind
        self.unit = unit
        self.effect = effects.Log(level=level, logger=kind[0], message="", fields=fields)
        #: The effects of the step that has the line; None: the line waits for the tick.
        self.step = step
        self.names: list[str] = []
        self.count = 0

    def add(self, name: str) -> None:
        self.count += 1
        if len(self.names) < NAMED_MAX:
            self.names.append(name)
        _, before, after = self.kind
        effect = self.effect
        if self.count == 1:
            effect.message = before + name + after
        else:
            effect.message = f"{before}{self.count} {self.unit}{after}"
            # Fields of the first thing do not hold for all.
            effect.fields = {"count": self.count, self.unit: self.names}


class EventLog:
    """The log of one broker."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        #: Lines since the last tick, by kind.
        self._lines: dict[Kind, _Line] = {}
        #: Kinds since the last tick, and events without a line, by logger.
        self._kinds: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def log(self, level: LogLevel, logger: str, message: str, fields: dict[str, Any]) -> None:
        """Logs one line."""
        self._steps.effects.append(effects.Log(level=level, logger=logger, message=message, fields=fields))

    def warn(self, logger: str, message: str, **fields: Any) -> None:
        """Logs a state that needs an operator: when it begins and when it ends."""
        self.log(LogLevel.WARNING, logger, message, fields)

    def info(self, logger: str, message: str, **fields: Any) -> None:
        """Logs a change of the broker's or the cluster's state."""
        self.log(LogLevel.INFO, logger, message, fields)

    def debug(self, logger: str, message: str, **fields: Any) -> None:
        """Logs regular work, such as a new segment."""
        self.log(LogLevel.DEBUG, logger, message, fields)

    def many(
        self,
        logger: str,
        before: str,
        name: object,
        after: str = "",
        /,
        *,
        unit: str = "partitions",
        level: LogLevel = LogLevel.INFO,
        **fields: Any,
    ) -> None:
        """Logs an event of one of many things: ``before name after``, or with the number of things and ``unit`` for its name."""
        kind, step = (logger, before, after), self._steps.effects
        line = self._lines.get(kind)
        if line is None:
            kinds = self._kinds.get(logger, 0)
            if kinds >= KINDS_MAX:
                self._left_out[logger] = self._left_out.get(logger, 0) + 1
                return
            self._kinds[logger] = kinds + 1
            line = self._lines[kind] = _Line(kind, unit, level, fields, step)
            step.append(line.effect)
        elif line.step is not None and line.step is not step:
            line = self._lines[kind] = _Line(kind, unit, level, fields, None)
        line.add(str(name))

    def tick(self) -> None:
        """Logs what happened since the last tick and has no line yet."""
        lines, self._lines, self._kinds = self._lines, {}, {}
        left_out, self._left_out = self._left_out, {}
        self._steps.effects.extend(line.effect for line in lines.values() if line.step is None)
        for logger, count in left_out.items():
            self.info(
                logger, f"{count} more events were left out; this logger has at most {KINDS_MAX} kinds of lines per second", count=count
            )
