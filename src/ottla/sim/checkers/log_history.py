"""Checks a history of sends and polls: does it fit one append-only log per partition from which no acknowledged record is missing?

The log is reconstructed from everything that any client observed: offsets of acknowledged sends, and all polled records. Gaps between
offsets are legal, so records are counted by *place*, the rank of an offset among those with a record::

    offset   0   1   2       5   6          process A polled   a b c | e f       d was skipped
    value    a   b   c       d   e   f                B polled   a b c d | d     not monotonic
    place    0   1   2       3   4          d acknowledged, never polled, e was: d is lost

A send counts as written if it was acknowledged, or if its outcome is unknown and a client polled it. The check is sound: a reported anomaly
cannot come from a correct log, whatever happens to messages between clients and brokers. It takes linear time.

A group member starts at committed offsets, so its position may jump between polls; that is not reported.

Transactions are not checked: aborted reads and cycles need operations with several sends and polls.

Source: the anomalies of Jepsen's Kafka workload.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ottla.sim.checkers.recorder import Key, Operation, Recorder, Value

#: Anomalies and their meaning.
ANOMALIES: dict[str, str] = {
    "inconsistent offset": "an offset held two values",
    "duplicate": "a value of an idempotent producer stands at two offsets",
    "failed read": "a value was polled whose send definitely failed (G1a)",
    "invented": "a value was polled that nobody sent",
    "lost write": "a value was written and never polled, while one behind it was",
    "unseen": "a value was acknowledged and never polled, though everything was read in the end",
    "poll skip": "between two polls of a client, a record was left out",
    "nonmonotonic poll": "a poll gave what an earlier one of the same client had given, or what stands before it",
    "skip within a poll": "within one poll, a record was left out",
    "nonmonotonic within a poll": "within one poll, offsets do not grow",
    "nonmonotonic send": "a later send of a client stands before an earlier one",
}
#: Examples shown per anomaly; all are counted.
EXAMPLES = 3


@dataclass(slots=True)
class Findings:
    """The result of a check."""

    #: Number of occurrences by anomaly.
    counts: dict[str, int] = field(default_factory=dict)
    #: The first examples by anomaly, as text.
    examples: dict[str, list[str]] = field(default_factory=dict)
    #: Acknowledged sends, and sends with an unknown outcome.
    acknowledged: int = 0
    unknown: int = 0
    #: Polled records, counted each time.
    polled: int = 0
    #: Longest time that a client polled without getting an existing record, and a description.
    lag_ns: int = 0
    laggard: str = ""

    @property
    def sound(self) -> bool:
        return not self.counts

    def lines(self) -> list[str]:
        """The anomalies as text, each with its first examples."""
        return [
            f"{kind}: {self.counts[kind]} ({ANOMALIES[kind]}); {'; '.join(self.examples[kind])}"
            for kind in ANOMALIES
            if kind in self.counts
        ]

    def add(self, kind: str, text: str) -> None:
        """Adds one occurrence."""
        assert kind in ANOMALIES, kind
        self.counts[kind] = self.counts.get(kind, 0) + 1
        told = self.examples.setdefault(kind, [])
        if len(told) < EXAMPLES:
            told.append(text)


class Log:
    """The history of one partition."""

    __slots__ = ("at", "offsets_of", "place", "polled")

    def __init__(self) -> None:
        #: Values seen at each offset, in order of observation; more than one is an anomaly.
        self.at: dict[int, list[Value]] = {}
        #: Offsets of each value, ascending.
        self.offsets_of: dict[Value, list[int]] = {}
        #: Place of each offset.
        self.place: dict[int, int] = {}
        #: Values returned by successful polls.
        self.polled: set[Value] = set()

    def see(self, offset: int, value: Value) -> None:
        values = self.at.setdefault(offset, [])
        if value not in values:
            values.append(value)

    def settle(self) -> None:
        """Computes places after all observations."""
        for place, offset in enumerate(sorted(self.at)):
            self.place[offset] = place
            for value in self.at[offset]:
                self.offsets_of.setdefault(value, []).append(offset)

    def bound(self) -> int:
        """The last polled offset; for a value at two offsets, the first one."""
        return max((self.offsets_of[value][0] for value in self.polled), default=-1)


def check(recorder: Recorder, *, complete: bool = True) -> Findings:
    """All anomalies. ``complete``: after all sends some client polled the whole log."""
    return _Check(recorder, complete=complete).run()


class _Check:
    """One check in several passes, each linear in the history or the logs."""

    def __init__(self, recorder: Recorder, *, complete: bool) -> None:
        self._operations = recorder.operations
        self._idempotent = recorder.idempotent
        self._complete = complete
        self._findings = Findings()
        self._writers: dict[tuple[Key, Value], Operation] = {}
        self._logs: dict[Key, Log] = defaultdict(Log)

    def run(self) -> Findings:
        self._read_history()
        for key, log in self._logs.items():
            self._judge_offsets(key, log)
            self._judge_reads(key, log)
            self._judge_writes(key, log)
        self._judge_unseen()
        self._judge_polls()
        self._judge_sends()
        self._measure_lag()
        return self._findings

    def _read_history(self) -> None:
        """Collects writers and logs."""
        sends = [one for one in self._operations if one.action == "send"]
        for send in sends:
            assert (send.key, send.value) not in self._writers, f"{send.value!r} is sent to {send.key!r} once in a history"
            self._writers[send.key, send.value] = send
            self._findings.acknowledged += send.outcome == "ok"
            self._findings.unknown += send.outcome == "info"
        for poll in self._operations:
            for key, found in poll.polled.items():
                log = self._logs[key]
                self._findings.polled += len(found)
                for offset, value in found:
                    log.see(offset, value)
                    if poll.outcome == "ok":
                        log.polled.add(value)
        for send in sends:
            if send.offset is not None and self._written(send):
                self._logs[send.key].see(send.offset, send.value)
        for log in self._logs.values():
            log.settle()

    def _written(self, send: Operation) -> bool:
        """Whether the send certainly took effect."""
        if send.outcome == "info":
            log = self._logs.get(send.key)
            return log is not None and send.value in log.polled
        return send.outcome == "ok"

    # Anomalies of a log.

    def _judge_offsets(self, key: Key, log: Log) -> None:
        for offset, values in log.at.items():
            if len(values) > 1:
                self._findings.add("inconsistent offset", f"{key} {offset}: {_list(values)}")
        for value, offsets in log.offsets_of.items():
            writer = self._writers.get((key, value))
            if len(offsets) > 1 and writer is not None and writer.process in self._idempotent:
                self._findings.add("duplicate", f"{_short(value)} of {key} at {_list(offsets)}")

    def _judge_reads(self, key: Key, log: Log) -> None:
        for value in log.offsets_of:
            writer = self._writers.get((key, value))
            if writer is None:
                self._findings.add("invented", f"{_short(value)} at {key} {log.offsets_of[value][0]}")
            elif writer.outcome == "fail" and value in log.polled:
                self._findings.add("failed read", f"{_short(value)} at {key} {log.offsets_of[value][0]}, sent by {writer.process}")

    def _judge_writes(self, key: Key, log: Log) -> None:
        """Up to the last polled place, everything written must have been polled."""
        bound = log.bound()
        for value, offsets in log.offsets_of.items():
            if offsets[-1] <= bound and value not in log.polled:
                writer = self._writers.get((key, value))
                if writer is not None and self._written(writer):
                    self._findings.add("lost write", f"{_short(value)} at {key} {offsets[-1]}; {bound} was polled")

    def _judge_unseen(self) -> None:
        """Sends that were acknowledged after the last polled place, or without an offset."""
        if not self._complete:
            return
        bounds = {key: log.bound() for key, log in self._logs.items()}
        for (key, value), send in self._writers.items():
            if send.outcome != "ok" or value in self._logs[key].polled:
                continue
            if send.offset is None or send.offset > bounds.get(key, -1):
                self._findings.add("unseen", f"{_short(value)} of {key}, acknowledged at {send.offset}")

    # Anomalies of a client.

    def _judge_polls(self) -> None:
        #: Place of the last record of each client and partition.
        positions: dict[str, dict[Key, int]] = defaultdict(dict)
        in_group: set[str] = set()
        for one in self._operations:
            mine = positions[one.process]
            if one.action in ("assign", "subscribe", "crash"):
                in_group.discard(one.process)
                mine.clear()
                mine.update(self._begins(one))
                if one.action == "subscribe":
                    in_group.add(one.process)
            elif one.action == "poll" and one.outcome == "ok":
                for key, found in one.polled.items():
                    self._judge_poll(one, key, found, None if one.process in in_group else mine.get(key))
                    if found:
                        mine[key] = self._logs[key].place[found[-1][0]]

    def _begins(self, assign: Operation) -> Iterator[tuple[Key, int]]:
        """Places before those where a client starts, as far as it gave an offset."""
        for key, start in assign.starts.items():
            if start is not None and key in self._logs:
                places = self._logs[key].place
                # Most start at 0 or at an existing record.
                yield key, places[start] - 1 if start in places else sum(offset < start for offset in places) - 1

    def _judge_poll(self, poll: Operation, key: Key, found: Sequence[tuple[int, Value]], before: int | None) -> None:
        places = self._logs[key].place
        within = False
        for offset, value in found:
            place = places[offset]
            if before is not None and place != before + 1 and not (within and key in poll.rebalanced):
                kind = ("skip within a poll" if within else "poll skip") if place > before else None
                kind = kind or ("nonmonotonic within a poll" if within else "nonmonotonic poll")
                self._findings.add(kind, f"{poll.process}: {_short(value)} at {key} {offset}, {place - before} places after the one before")
            before, within = place, True

    def _judge_sends(self) -> None:
        """An idempotent client's sends are in order of their start; another client's follow those that were complete by then."""
        #: By client and partition, the highest offset that later sends must exceed.
        floors: dict[tuple[str, Key], int] = {}
        #: Acknowledged after later sends started: (completed, offset).
        open_sends: dict[tuple[str, Key], list[tuple[int, int]]] = defaultdict(list)
        for send in self._operations:
            if send.action != "send" or send.outcome != "ok" or send.offset is None:
                continue
            where = (send.process, send.key)
            waiting = open_sends[where]
            while waiting and (send.process in self._idempotent or waiting[0][0] < send.invoked_ns):
                _, offset = heapq.heappop(waiting)
                floors[where] = max(floors.get(where, -1), offset)
            if send.offset <= floors.get(where, -1):
                text = f"{send.process}: {_short(send.value)} at {send.key} {send.offset}, after one at {floors[where]}"
                self._findings.add("nonmonotonic send", text)
            heapq.heappush(waiting, (send.completed_ns, send.offset))

    # Lag.

    def _measure_lag(self) -> None:
        """Lag of clients that chose their partitions; group members are excluded because their assignment is unknown. Records from before
        a client's start count from its start.
        """
        known = self._known_since()
        began_ns: dict[str, int] = {}
        positions: dict[str, dict[Key, int]] = defaultdict(dict)
        for one in self._operations:
            mine = positions[one.process]
            if one.action in ("assign", "subscribe", "crash"):
                mine.clear()
                mine.update(self._begins(one))
                began_ns[one.process] = one.completed_ns
            elif one.action == "poll" and one.outcome == "ok":
                for key, place in mine.items():
                    found = one.polled.get(key)
                    if found:
                        mine[key] = place = self._logs[key].place[found[-1][0]]
                    since_ns = known[key][place + 1] if place + 1 < len(known[key]) else one.invoked_ns
                    since_ns = max(since_ns, began_ns[one.process])
                    if one.invoked_ns - since_ns > self._findings.lag_ns:
                        self._findings.lag_ns = one.invoked_ns - since_ns
                        self._findings.laggard = f"{one.process} in {key}, {place + 1} records from the start"

    def _known_since(self) -> dict[Key, list[int]]:
        """By place, since when a record there was known to exist: it, or a later one, was acknowledged or polled."""
        seen: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        for one in self._operations:
            if one.action == "send" and one.outcome == "ok" and one.offset is not None:
                seen[one.key].append((one.completed_ns, self._logs[one.key].place[one.offset]))
            for key, found in one.polled.items():
                if found:
                    seen[key].append((one.completed_ns, self._logs[key].place[found[-1][0]]))
        known: dict[Key, list[int]] = defaultdict(list)
        for key, times in seen.items():
            for time_ns, place in sorted(times):
                known[key] += [time_ns] * (place + 1 - len(known[key]))
        return known


def _short(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _list(values: Iterable[Value]) -> str:
    return " and ".join(_short(value) for value in values)
