"""Finds anomalies of transactions in what clients observed. Pure functions over a ``Observations``.

A partition is a list, a transaction appends unique values to some lists, and a value names its transaction. So the log at the end gives the
order of all appends, and an observed value its writer. Source: Elle (Kingsbury and Alvaro, VLDB 2020); names of Adya.

Kafka promises less than a database: records of concurrent transactions interleave in any order, in each partition anew, and a reader
of two partitions may see a transaction in one before it sees it in the other. What is promised, and checked for committed transactions::

    G0    a record is appended between begin and end of its transaction      begin(T) < append < end(T)
          appends of a partition happen in the order of its offsets           append(5) < append(6)
          a transaction that ended before another began                       end(T) < begin(U)
          A cycle of these contradicts any order of events: a late record, or one of a fenced producer, is in the log.
    G1c   the same with reads: a processor read a value of T, then began U    end(T) < begin(U)
    G1a   a read_committed reader gets a value of an aborted transaction
    G1b   it gets a value before the commit was requested, or passes over some committed records of a transaction and gets others

    lost      an acknowledged commit is not in the log; a reader passes over a whole transaction; an input is never processed
    doubled   an input is processed by two committed transactions of a group
    torn      in the end only a part of a transaction is visible, or any of an aborted one
    fenced    a transaction is visible whose commit was requested after another client of its transactional id had an identity
    internal  a transaction's values are in another order than sent, or twice; nobody sent a value; an offset has two values
    stuck     after the faults, the last stable offset does not reach the high watermark

A transaction with an unknown outcome may be visible or not, but as a whole. Times are numbers of events, all different.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, Literal

#: A time that never comes.
NEVER = 1 << 60
#: Topic and number of a partition.
Place = tuple[str, int]
#: ``unknown``: a commit was sent, and its outcome is not known. ``open`` counts as aborted: no commit was sent.
Outcome = Literal["open", "committed", "aborted", "unknown"]
Record = tuple[int, bytes]


@dataclass(slots=True, eq=False)
class ObservedTransaction:
    """What its producer did."""

    name: str
    transactional_id: str
    began: int
    #: Values of each partition in the order of sending.
    appends: dict[Place, list[bytes]] = field(default_factory=dict)
    #: The consumer group whose inputs it processes; empty for none.
    group: str = ""
    #: Inputs whose offsets it commits.
    inputs: list[tuple[Place, int]] = field(default_factory=list)
    #: When the commit was requested first.
    commit_sent: int = NEVER
    #: When it was certainly decided: the commit or abort was acknowledged, or the next client of its id got an identity.
    ended: int = NEVER
    #: When the next client of its id got an identity.
    fenced: int = NEVER
    outcome: Outcome = "open"


@dataclass(slots=True, eq=False)
class ObservedRead:
    """One poll of one partition: records from ``start`` on; the next poll begins at ``stop``."""

    reader: str
    place: Place
    committed: bool
    start: int
    stop: int
    records: Sequence[Record]
    at: int


@dataclass(slots=True, eq=False)
class FinalLog:
    """A partition in the end: all records, those of committed transactions, last stable offset and high watermark."""

    records: Sequence[Record]
    committed: Sequence[Record]
    stable: int = 0
    end: int = 0


@dataclass(slots=True, eq=False)
class Observations:
    """What all clients did and observed."""

    transactions: list[ObservedTransaction] = field(default_factory=list)
    reads: list[ObservedRead] = field(default_factory=list)
    logs: dict[Place, FinalLog] = field(default_factory=dict)
    #: Partitions that a group has processed completely.
    processed: dict[str, list[Place]] = field(default_factory=dict)


def value_of(transaction: str, number: int, padding: int = 0) -> bytes:
    """A value that names its transaction."""
    return b"%s/%d/" % (transaction.encode(), number) + b"x" * padding


def writer_of(value: bytes) -> str:
    """The transaction that a value names."""
    return value.split(b"/", 1)[0].decode(errors="replace")


class _Index:
    """Look-ups that several checks need."""

    def __init__(self, seen: Observations) -> None:
        self.seen = seen
        self.by_name = {transaction.name: transaction for transaction in seen.transactions}
        #: Committed values of each transaction, by partition, in the order of offsets.
        self.visible: dict[str, dict[Place, list[Record]]] = {}
        for place, log in seen.logs.items():
            for offset, value in log.committed:
                self.visible.setdefault(writer_of(value), {}).setdefault(place, []).append((offset, value))

    def shows(self, transaction: ObservedTransaction) -> bool:
        return transaction.name in self.visible

    def invisible(self, value: bytes) -> ObservedTransaction | None:
        """The value's transaction, if it must not be visible."""
        found = self.by_name.get(writer_of(value))
        return found if found is not None and found.outcome in ("open", "aborted") else None


def check(seen: Observations) -> list[str]:
    """All anomalies, each with the name of its kind first."""
    index = _Index(seen)
    checks = (internal, aborted_reads, intermediate_reads, cycles, lost_updates, torn, zombies, inputs_once, stuck)
    return [problem for each in checks for problem in each(index)]


def internal(index: _Index) -> Iterator[str]:
    """Values that nobody sent, in a wrong order, or twice; offsets with two values."""
    for place, log in index.seen.logs.items():
        found: dict[str, list[bytes]] = {}
        for offset, value in log.records:
            sent = index.by_name.get(writer_of(value))
            if sent is None or value not in sent.appends.get(place, ()):
                yield f"internal: nobody sent {value[:30]!r} to {place}, which has it at {offset}"
            found.setdefault(writer_of(value), []).append(value)
        for name, values in found.items():
            if name in index.by_name:
                order = index.by_name[name].appends.get(place, [])
                expected = [value for value in order if value in values]
                if values != expected:
                    yield f"internal: {place} has {_short(values)} of {name}, sent were {_short(order)}"
    offsets = {place: dict(log.records) for place, log in index.seen.logs.items()}
    for read in index.seen.reads:
        known = offsets.get(read.place, {})
        for offset, value in read.records:
            if known.get(offset) != value:
                yield f"internal: {read.reader} read {value[:30]!r} at {offset} of {read.place}, which has {known.get(offset, b'-')[:30]!r}"


def aborted_reads(index: _Index) -> Iterator[str]:
    """G1a."""
    for read in index.seen.reads:
        for offset, value in read.records if read.committed else ():
            aborted = index.invisible(value)
            if aborted is not None:
                yield f"G1a: {read.reader} read {value[:30]!r} at {offset} of {read.place}; {aborted.name} was not committed"


def intermediate_reads(index: _Index) -> Iterator[str]:
    """G1b, and whole transactions that a reader passes over."""
    known: dict[tuple[str, Place], set[str]] = {}
    passed: list[tuple[ObservedRead, list[Record]]] = []
    for read in index.seen.reads:
        if not read.committed:
            continue
        for offset, value in read.records:
            writer = index.by_name.get(writer_of(value))
            if writer is not None and read.at < writer.commit_sent < NEVER:
                yield f"G1b: {read.reader} read {value[:30]!r} at {offset} of {read.place} before {writer.name} was to be committed"
            known.setdefault((read.reader, read.place), set()).add(writer_of(value))
        log = index.seen.logs.get(read.place)
        expected = _between(log.committed, read.start, read.stop) if log is not None else ()
        missing = [record for record in expected if record not in read.records]
        if missing:
            passed.append((read, missing))
    for read, missing in passed:
        for offset, value in missing:
            part = writer_of(value) in known.get((read.reader, read.place), ())
            kind = "G1b: a part of the transaction is missing" if part else "lost: a committed record was not read"
            yield f"{kind}: {read.reader} passed over {value[:30]!r} at {offset} of {read.place}"


def cycles(index: _Index) -> Iterator[str]:
    """G0, or else G1c."""
    graph = _events(index)
    cycle = _cycle(graph)
    if cycle:
        yield f"G0: these cannot have happened in any order: {cycle}"
        return
    values = {place: dict(log.committed) for place, log in index.seen.logs.items()}
    for transaction in index.seen.transactions:
        for place, offset in transaction.inputs if index.shows(transaction) else ():
            value = values.get(place, {}).get(offset)
            if value is not None and writer_of(value) in index.by_name:
                graph.setdefault(("begin", transaction.name), set()).add(("end", writer_of(value)))
    cycle = _cycle(graph)
    if cycle:
        yield f"G1c: information flows in a circle: {cycle}"


def _events(index: _Index) -> dict[Any, set[Any]]:
    """Predecessors of each event; of visible transactions only."""
    graph: dict[Any, set[Any]] = {}
    times: list[int] = []
    for transaction in index.seen.transactions:
        if not index.shows(transaction):
            continue
        begin, end = ("begin", transaction.name), ("end", transaction.name)
        graph.setdefault(end, set()).add(begin)
        graph.setdefault(begin, set()).add(("time", transaction.began))
        times.append(transaction.began)
        if transaction.ended != NEVER:
            graph.setdefault(("time", transaction.ended), set()).add(end)
            times.append(transaction.ended)
    times.sort()
    for before, after in pairwise(times):
        graph.setdefault(("time", after), set()).add(("time", before))
    for place, log in index.seen.logs.items():
        last = None
        for offset, value in log.committed:
            name, append = writer_of(value), ("append", *place, offset, writer_of(value))
            graph.setdefault(append, set()).add(("begin", name))
            graph.setdefault(("end", name), set()).add(append)
            if last is not None:
                graph[append].add(last)
            last = append
    return graph


def _cycle(graph: Mapping[Any, set[Any]]) -> str:
    """A cycle in words; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return ", ".join(" ".join(map(str, event)) for event in error.args[1] if event[0] != "time")
    return ""


def lost_updates(index: _Index) -> Iterator[str]:
    """Acknowledged commits of which nothing is visible; of which a part is, see ``torn``."""
    for transaction in index.seen.transactions:
        if transaction.outcome == "committed" and any(transaction.appends.values()) and not index.shows(transaction):
            yield f"lost: {transaction.name} was committed, and none of its records is in the log"


def torn(index: _Index) -> Iterator[str]:
    """Transactions that are visible in part, or although they were not committed."""
    for transaction in index.seen.transactions:
        visible = index.visible.get(transaction.name)
        if visible is None:
            continue
        if transaction.outcome in ("open", "aborted"):
            yield f"torn: {transaction.name} was not committed, and is visible in {sorted(visible)}"
            continue
        for place, values in transaction.appends.items():
            shown = {value for _, value in visible.get(place, ())}
            missing = [value for value in values if value not in shown]
            if missing:
                yield f"torn: {transaction.name} is visible in {sorted(visible)}, but {place} lacks {_short(missing)}"


def zombies(index: _Index) -> Iterator[str]:
    """Commits of fenced clients."""
    for transaction in index.seen.transactions:
        if transaction.fenced < transaction.commit_sent < NEVER and (index.shows(transaction) or transaction.outcome == "committed"):
            yield f"fenced: {transaction.name} was committed after another client of {transaction.transactional_id} had an identity"


def inputs_once(index: _Index) -> Iterator[str]:
    """Each input is processed once by each group."""
    counts: dict[tuple[str, Place, int], list[str]] = {}
    for transaction in index.seen.transactions:
        for place, offset in transaction.inputs if index.shows(transaction) else ():
            counts.setdefault((transaction.group, place, offset), []).append(transaction.name)
    for (group, place, offset), names in counts.items():
        if len(names) > 1:
            yield f"doubled: {group} processed {offset} of {place} in {', '.join(names)}"
    for group, places in index.seen.processed.items():
        for place in places:
            log = index.seen.logs.get(place)
            for offset, value in log.committed if log is not None else ():
                if (group, place, offset) not in counts:
                    yield f"lost: {group} did not process {offset} of {place}, {value[:30]!r}"


def stuck(index: _Index) -> Iterator[str]:
    """Last stable offsets that do not move on."""
    for place, log in index.seen.logs.items():
        if log.stable < log.end:
            yield f"stuck: the last stable offset of {place} stays at {log.stable}, the high watermark is {log.end}"


def _between(records: Sequence[Record], start: int, stop: int) -> Sequence[Record]:
    return records[bisect_left(records, start, key=_offset) : bisect_left(records, stop, key=_offset)]


def _offset(record: Record) -> int:
    return record[0]


def _short(values: Sequence[bytes]) -> str:
    return str([value[:20].decode(errors="replace") for value in values[:6]]) + ("..." if len(values) > 6 else "")
