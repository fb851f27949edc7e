"""Replays a flight record: its requests, at their times, on a new simulated broker.

The broker gets the settings, topics and overrides in the record, an empty log for each partition that it led, a working disk, and the wall
clock of the record. Then all requests are sent again. Failures that are caused by requests happen again, in a process with a debugger.
Failures that need earlier records in the logs, a failed disk, or another broker's response do not; the result names what is missing.

All topics exist from the beginning, also those that the requests create, because later requests use their ids. Partitions have their leader
epochs once they are led. Fetch sessions have other ids, so requests that continue one are refused.
"""

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ottla.base.ids import LeaderEpoch
from ottla.base.ports import NodeState, Op
from ottla.base.shortened import ITEMS_SHOWN, shown
from ottla.base.units import SECOND_MS
from ottla.broker import effects, events
from ottla.broker.effects import Effect
from ottla.broker.events import Event, StoreChanged
from ottla.broker.metadata.image import NO_LEADER
from ottla.broker.node import Node
from ottla.server.flight_recorder import Request
from ottla.sim.disk import SimDisk
from ottla.sim.machine import Machine
from ottla.sim.network import Connection, Network
from ottla.sim.world import World
from ottla.store import layout
from ottla.store.memory import MemoryStore
from ottla.store.tree import creations

#: Events that say nothing by themselves.
QUIET = (events.Ticked,)


class ReplayStep(msgspec.Struct, frozen=True):
    """One step: an event of the simulated broker and the effects that it asked for, as values for JSON, shortened.

    ``at_ms``: time of the recorded process.
    """

    number: int
    at_ms: int
    event: str
    fields: Any
    effects: list[tuple[str, Any]]


class StepRecorder:
    """Passes steps on; ticks without an effect are left out."""

    def __init__(self, now_ms: Callable[[], int], keep: Callable[[ReplayStep], None]) -> None:
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
        self._keep(ReplayStep(self._number, self._now_ms(), type(event).__name__, shown(event), done))


#: Settings of the machine that do not apply to the simulated broker.
PLACE = ("listeners", "advertised.listeners", "log.dirs")
#: Nodes of a session or of the controller: the new broker writes its own.
OF_A_SESSION = (f"{layout.BROKER_IDS}/", layout.CONTROLLER, layout.CONTROLLER_EPOCH)
#: Time for the new broker to lead its partitions, and for the effects of the last requests.
SETTLE_MS = 10 * SECOND_MS


class Failure(msgspec.Struct):
    """The first line of a record."""

    broker_id: int
    settings: dict[str, str]
    dropped: int
    error: str
    wall_ms: int
    traceback: list[str] = []


class RecordedEvent(msgspec.Struct):
    """Any other line."""

    now_ms: int
    kind: str
    event: msgspec.Raw


class UnreadableRecord(ValueError):
    """The file is not a flight record."""


@dataclass(slots=True)
class Record:
    """A parsed flight record. Times are in ms since the process started."""

    failure: Failure
    nodes: dict[str, NodeState] = field(default_factory=dict)
    requests: list[tuple[int, Request]] = field(default_factory=list)
    closings: list[tuple[int, int]] = field(default_factory=list)
    last_ms: int = 0


@dataclass(slots=True)
class Replayed:
    """The result: the failure or None, what differed from the record, and the last trace lines."""

    error: BaseException | None
    requests: int
    lacks: list[str]
    tail: list[str]

    def story(self) -> str:
        if self.error is None:
            return "it did not happen again"
        return "".join(traceback.format_exception(self.error)).rstrip()


def read_record(path: Path) -> Record:
    """Raises: OSError, UnreadableRecord."""
    lines = path.read_bytes().splitlines()
    try:
        record = Record(msgspec.json.decode(lines[0] if lines else b"", type=Failure))
        for line in lines[1:]:
            _take_in(record, msgspec.json.decode(line, type=RecordedEvent))
    except msgspec.DecodeError as error:
        raise UnreadableRecord(f"{path} is not a flight record: {error}") from None
    return record


def _take_in(record: Record, entry: RecordedEvent) -> None:
    record.last_ms = entry.now_ms
    match entry.kind:
        case "Request":
            record.requests.append((entry.now_ms, msgspec.json.decode(entry.event, type=Request)))
        case "StoreChanged":
            state = msgspec.json.decode(entry.event, type=StoreChanged).state
            if state.data is not None:
                record.nodes[state.path] = state
        case "ConnectionClosed":
            record.closings.append((entry.now_ms, msgspec.json.decode(entry.event)["connection"]))


def replay(record: Record, keep: Callable[[ReplayStep], None] | None = None) -> Replayed:
    """Replays the record. ``keep`` gets each step from the first request on, with times of the record."""
    world = World(0)
    first_ms = record.requests[0][0] if record.requests else record.last_ms
    # The first request arrives when the broker leads its partitions.
    ahead_ms = SETTLE_MS - first_ms
    epoch_ms = record.failure.wall_ms - record.last_ms - ahead_ms
    settings = {name: text for name, text in record.failure.settings.items() if name not in PLACE}
    disk = SimDisk(now_ms=lambda: world.now_ms)
    store = _store(record.nodes.values(), record.failure.broker_id)
    machine = Machine(world, store, disk, settings, broker_id=record.failure.broker_id, epoch_ms=epoch_ms)
    caller = _Callers(world, machine)
    if keep is not None:
        recorder = StepRecorder(lambda: world.now_ms - ahead_ms, keep)

        def inspect(node: Node, event: Event, requested: list[Effect]) -> None:
            if world.now_ms >= SETTLE_MS:
                recorder.inspect(node, event, requested)

        machine.inspects = inspect
    whole = [(now_ms, request) for now_ms, request in record.requests if request.size == len(request.frame)]
    for now_ms, request in whole:
        world.after(now_ms + ahead_ms, lambda request=request: caller.call(request))  # type: ignore[misc]
    for now_ms, number in record.closings:
        world.after(now_ms + ahead_ms, lambda number=number: caller.hang_up(number))  # type: ignore[misc]
    error: BaseException | None = None
    try:
        machine.start()
        world.run(record.last_ms + ahead_ms + SETTLE_MS)
    except Exception as raised:
        error = raised
    return Replayed(error, len(whole), _lacks(record, len(whole)), list(world.tail))


def _lacks(record: Record, whole: int) -> list[str]:
    lacks = []
    if record.failure.dropped:
        lacks.append(f"{record.failure.dropped} events before the first one kept, and what they left in the logs")
    if cut := len(record.requests) - whole:
        lacks.append(f"{cut} requests too large to be kept whole")
    return lacks


def _store(nodes: Iterable[NodeState], broker_id: int) -> MemoryStore:
    """A store with these nodes, except those of a session: the state without this broker."""
    store = MemoryStore()
    for state in sorted(nodes, key=lambda state: state.path):
        if not state.path.startswith(OF_A_SESSION) and state.data is not None:
            parts = state.path.split("/")
            parents = ["/".join(parts[:depth]) for depth in range(2, len(parts))]
            store.tree.apply(creations(store.tree, parents), 0)
            kind: Any = "set" if state.path in store.tree.nodes else "create"
            store.tree.apply([Op(kind, state.path, _leaderless(state.path, state.data, broker_id))], 0)
    return store


def _leaderless(path: str, data: bytes, broker_id: int) -> bytes:
    """For a partition that the broker led, the state before its election, which then raises the leader epoch to the recorded one."""
    if layout.partition_state_of(path) is None:
        return data
    state = layout.decode_partition_state(data)
    if state.leader != broker_id:
        return data
    before = msgspec.structs.replace(state, leader=NO_LEADER, leader_epoch=LeaderEpoch(state.leader_epoch - 1))
    return layout.encode_partition_state(before)


class _Callers:
    """The clients of the record, by connection."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._network = Network(world)
        self._machine = machine
        self._open: dict[int, Connection] = {}

    def call(self, request: Request) -> None:
        connection = self._open.get(request.connection)
        if connection is None or not connection.open:
            made = self._network.connect(self._machine, on_frame=lambda frame: None, on_close=lambda: None)
            if made is None:
                return
            connection = self._open[request.connection] = made
        # Delivered at its recorded time, without a network delay.
        self._machine.receive(connection, bytearray(request.frame))

    def hang_up(self, number: int) -> None:
        connection = self._open.pop(number, None)
        if connection is not None:
            connection.break_off()
