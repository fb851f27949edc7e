"""One simulated history of client quotas: a client sends and fetches far more than its quota, ignores throttle times, and reconnects.

One broker. The greedy clients share a quota of produced bytes and one of fetched bytes, under one client id; the operator sets and removes
another id's quota meanwhile. The polite clients have no quota and wait for each answer. Connections break, and the broker is killed once,
which forgets what was used. The invariants, in virtual time:

    muted       a connection whose answer carries a throttle time sends no request to the broker before this time is over
    held        a process of the broker accepts no more bytes from the greedy clients than the quota of its time and of one window, and
                what each of their connections has in flight before its first throttled answer
    reached     ... and not less than four fifths of the quota
    not delayed a request of a polite client is answered soon, without a throttle time
"""

from typing import Any

from ottla.broker import effects, events
from ottla.broker.node import Node
from ottla.records.build import build_batch
from ottla.sim.client_connection import RETRY_MS, VERSIONS, Caller
from ottla.sim.disk import SimDisk
from ottla.sim.machine import Machine
from ottla.sim.network import Connection, Network
from ottla.sim.world import EPOCH_MS, World
from ottla.store.memory import MemoryStore
from ottla.wire import framing
from ottla.wire.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.wire.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData

TOPIC = "shared"
GREEDY, POLITE, OPERATOR = "greedy", "polite", "operator"
#: Bytes per second, and the window that a client may use at once, in seconds (quota.window.num and quota.window.size.seconds).
QUOTA, WINDOW_S = 5_000, 4
VALUE = bytes(2_000)
#: Connections of greedy clients of each kind, and bytes of one request: the frame, or the records of an answer.
GREEDY_CONNECTIONS, REQUEST_BYTES = 2, 2_300
IN_FLIGHT = 5
#: A polite client's request takes this long at most: latency, a flush or two, and others' steps.
ANSWERED_MS = 250
READY_MS, RUN_MS = 10_000, 30_000
REACHED = 0.8
PRODUCE, FETCH = 0, 1
SETTINGS = {"ottla.disk.reserve.bytes": "65536", "quota.window.num": str(WINDOW_S), "quota.window.size.seconds": "1"}


class QuotaChecker:
    """What the broker's processes accepted, and which connections are muted."""

    def __init__(self, world: World) -> None:
        self.problems: list[str] = []
        #: Answers with a throttle time, and answered requests of polite clients; both must happen.
        self.throttled = self.polite = 0
        self._world = world
        #: By connection: when it is no longer muted.
        self._muted_until: dict[int, int] = {}
        #: Bytes of greedy clients that the present process answered, by API.
        self._used = {PRODUCE: 0, FETCH: 0}
        #: Connections of greedy clients to it.
        self.connections = {PRODUCE: 0, FETCH: 0}
        self._since_ms = 0

    def begin(self) -> None:
        """Quotas are in force, or a process begins, which has counted nothing."""
        self._used = {PRODUCE: 0, FETCH: 0}
        self.connections = {PRODUCE: 0, FETCH: 0}
        self._since_ms = self._world.now_ms

    def inspect(self, node: Node, event: events.Event, requested: list[effects.Effect]) -> None:
        """The broker took a step."""
        now_ms = self._world.now_ms
        if isinstance(event, events.RequestArrived) and now_ms < (until_ms := self._muted_until.get(event.connection, 0)):
            self.problems.append(f"connection {event.connection} sent a request {until_ms - now_ms} ms before its throttle time was over")
        for effect in requested:
            if isinstance(effect, effects.Respond) and effect.call is not None and effect.call.api_key in self._used:
                self._answered(effect, effect.call, now_ms)

    def _answered(self, effect: effects.Respond, call: events.RequestArrived[Any], now_ms: int) -> None:
        if effect.throttle_ms:
            self.throttled += 1
            until_ms = now_ms + effect.throttle_ms
            self._muted_until[effect.connection] = max(self._muted_until.get(effect.connection, 0), until_ms)
        if call.client_id == POLITE and effect.throttle_ms:
            self.problems.append(f"a polite client was throttled for {effect.throttle_ms} ms")
        if call.client_id != GREEDY:
            return
        if call.api_key == PRODUCE:
            self._used[PRODUCE] += call.size
        else:
            self._used[FETCH] += sum(len(one.records or b"") for topic in effect.message.responses for one in topic.partitions)
        self._check_held(call.api_key)

    def _check_held(self, key: int) -> None:
        seconds = (self._world.now_ms - self._since_ms) / 1_000
        most = QUOTA * (seconds + WINDOW_S) + IN_FLIGHT * self.connections[key] * REQUEST_BYTES
        if self._used[key] > most:
            self.problems.append(f"greedy clients used {self._used[key]} bytes of API {key} in {seconds:g} s; {most:g} are permitted")

    def check_reached(self) -> None:
        """The process has run for a while under the load of the greedy clients."""
        seconds = (self._world.now_ms - self._since_ms) / 1_000
        for key, used in self._used.items():
            if used < REACHED * QUOTA * seconds:
                self.problems.append(f"greedy clients could use {used} bytes of API {key} in {seconds:g} s, less than their quota")

    def polite_answered(self, duration_ms: int) -> None:
        self.polite += 1
        if duration_ms > ANSWERED_MS:
            self.problems.append(f"a request of a polite client took {duration_ms} ms")


class QuotaHistory:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = self.world.rng("quotas")
        self.network = Network(self.world)
        self.checker = QuotaChecker(self.world)
        self.machine = Machine(self.world, MemoryStore(), SimDisk(now_ms=lambda: self.world.now_ms), SETTINGS)
        self.machine.inspects = self.checker.inspect
        self._operator = Caller(self.world, self.network, self.machine, OPERATOR)
        self._numbers = 0
        self._ends_ms = 0

    def run(self) -> QuotaChecker:
        """Runs the history, until its first problem; returns the checker."""
        self.machine.start()
        assert self.world.run(READY_MS, lambda: self._led() or self._create()), "the topic is created"
        done: list[Any] = []
        self._operator.call(self._quotas(GREEDY, QUOTA), done.append)
        self._fill()
        self.world.run(self.world.now_ms + 1_000)
        assert done, "the quotas are set"
        self.checker.begin()
        self._ends_ms = self.world.now_ms + RUN_MS
        for _ in range(GREEDY_CONNECTIONS):
            self._greedy(PRODUCE)
            self._greedy(FETCH)
        for key in (PRODUCE, FETCH):
            self._polite(Caller(self.world, self.network, self.machine, POLITE), key)
        self._meddle()
        for until_ms in (self._ends_ms - RUN_MS // 2, self._ends_ms):
            if self.world.run(until_ms, lambda: bool(self.checker.problems)):
                break
            self.checker.check_reached()
            if until_ms < self._ends_ms:
                self._crash()
        self.world.end()
        return self.checker

    def _led(self) -> bool:
        return self.machine.node is not None and bool(self.machine.node.partitions.leaders)

    def _create(self) -> bool:
        if self.world.now_ms % 500 == 0:
            topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
            self._operator.call(CreateTopicsRequest(topics=[topic], timeout_ms=1_000), lambda response: None)
        return False

    def _crash(self) -> None:
        self.machine.kill()
        self.world.run(self.world.now_ms + self.rng.randint(100, 500))
        self.checker.begin()
        self.machine.start()

    @staticmethod
    def _quotas(client_id: str, rate: int) -> AlterClientQuotasRequest:
        """Of both kinds of bytes; 0: none."""
        ops = [OpData(key=f"{kind}_byte_rate", value=float(rate), remove=not rate) for kind in ("producer", "consumer")]
        return AlterClientQuotasRequest(entries=[EntryData(entity=[EntityData(entity_type="client-id", entity_name=client_id)], ops=ops)])

    def _meddle(self) -> None:
        """The quota of another client id changes all the time."""
        if self.world.now_ms < self._ends_ms:
            self._operator.call(self._quotas("other", self.rng.choice((0, 1, 1_000))), lambda response: None)
            self.world.after(self.rng.randint(200, 2_000), self._meddle)

    def _fill(self) -> None:
        """Records to fetch."""
        for _ in range(4):
            self._operator.call(self._produce(VALUE), lambda response: None)

    def _produce(self, value: bytes) -> ProduceRequest:
        data = build_batch([(EPOCH_MS + self.world.now_ms, None, value, ())])
        part = PartitionProduceData(index=0, records=data)
        return ProduceRequest(
            acks=self.rng.choice((1, -1)), timeout_ms=1_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[part])]
        )

    @staticmethod
    def _fetch() -> FetchRequest:
        ask = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=REQUEST_BYTES, current_leader_epoch=-1)
        return FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=REQUEST_BYTES, session_epoch=-1, topics=[FetchTopic(topic=TOPIC, partitions=[ask])]
        )

    def _greedy(self, key: int) -> None:
        """A connection that always has requests in flight; it breaks now and then, and the next one begins at once."""
        if self.world.now_ms >= self._ends_ms:
            return
        ended: list[None] = []

        def closed() -> None:
            ended.append(None)
            self.world.after(RETRY_MS, lambda: self._greedy(key))

        connection = self.network.connect(self.machine, on_frame=lambda frame: self._send(connection, key, ended), on_close=closed)
        if connection is None:
            self.world.after(RETRY_MS, lambda: self._greedy(key))
            return
        self.checker.connections[key] += 1
        for _ in range(IN_FLIGHT):
            self._send(connection, key, ended)
        if self.rng.random() < 0.3:
            self.world.after(self.rng.randint(500, 8_000), connection.close)

    def _send(self, connection: Connection | None, key: int, ended: list[None]) -> None:
        if connection is None or ended or self.world.now_ms >= self._ends_ms:
            return
        message: Any = self._produce(VALUE) if key == PRODUCE else self._fetch()
        self._numbers += 1
        chunks = framing.encode_request(message, VERSIONS[type(message)], self._numbers, GREEDY)
        connection.send(b"".join(bytes(chunk) for chunk in chunks)[framing.SIZE_BYTES :])  # type: ignore[arg-type]

    def _polite(self, caller: Caller, key: int) -> None:
        if self.world.now_ms >= self._ends_ms:
            return
        began_ms = self.world.now_ms

        def again() -> None:
            self.world.after(self.rng.randint(5, 100), lambda: self._polite(caller, key))

        def answered(response: Any) -> None:
            self.checker.polite_answered(self.world.now_ms - began_ms)
            again()

        request: Any = self._produce(b"x") if key == PRODUCE else self._fetch()
        if not caller.call(request, answered, lost=again):
            again()
