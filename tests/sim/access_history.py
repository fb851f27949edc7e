"""One simulated history of access rules: a right is removed and given back while clients use it, and brokers crash.

Three brokers with an authorizer, a topic whose partitions each broker leads in turn, a writer and a reader for each partition. An operator
denies the clients the topic, and allows it again. The invariant, checked at every step of every broker by reading all rules of its image:

    a Produce that arrives after the denial is in the broker's image writes nothing, and is answered with an error
    a Fetch that is answered after that has no records

A broker applies a change when its image does, some milliseconds after the operator has the answer; Kafka promises no more. At the end every
broker's rules are those of the store.
"""

from collections.abc import Mapping
from typing import Any

from ottla.base.acls import ANY_USER, Operation, PatternType, Permission, ResourceType, deciding_rule
from ottla.base.ids import BrokerId
from ottla.base.origin import ANONYMOUS
from ottla.broker import effects, events
from ottla.broker.node import Node
from ottla.records.build import build_batch
from ottla.sim.client_connection import RETRY_MS, Caller
from ottla.sim.cluster_clients import Entrance
from ottla.sim.cluster_machine import ClusterMachine, wake_all
from ottla.sim.links import Links
from ottla.sim.network import Network
from ottla.sim.world import EPOCH_MS, World
from ottla.store import layout
from ottla.store.memory import MemoryStore
from ottla.wire import errors
from ottla.wire.messages import (
    AclCreation,
    CreatableTopic,
    CreateAclsRequest,
    CreateTopicsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

TOPIC, PARTITIONS, BROKERS = "guarded", 3, 3
#: Clients are all User:ANONYMOUS. They may do what no rule is about, so the operator needs no rule.
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "ottla.disk.reserve.bytes": "65536",
}
READY_MS, RUN_MS, SETTLED_MS = 20_000, 15_000, 20_000
PRODUCE, FETCH = 0, 1


class AccessChecker:
    """Reads each broker's rules, and compares what it does with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        #: Produce requests that must fail, by broker, connection and ticket.
        self._denied: set[tuple[int, int, int]] = set()
        #: Requests that were served, and refused; both must happen.
        self.served = self.refused = 0

    def inspect(self, node: Node, event: events.Event, requested: list[effects.Effect]) -> None:
        """A broker took a step. Requests change no rules, so the rules after the step are those before."""
        broker = node.context.broker_id
        if (
            isinstance(event, events.RequestArrived)
            and event.api_key == PRODUCE
            and event.origin.host
            and not self._may(node, Operation.WRITE)
        ):
            self._denied.add((broker, event.connection, event.ticket))
        for effect in requested:
            if not isinstance(effect, effects.Respond) or effect.call is None or not effect.call.origin.host:
                continue
            if effect.call.api_key == PRODUCE:
                self._produced(broker, effect)
            elif effect.call.api_key == FETCH:
                self._fetched(node, effect)

    def _produced(self, broker: BrokerId, effect: effects.Respond) -> None:
        place = (broker, effect.connection, effect.ticket)
        codes = [one.error_code for topic in effect.message.responses for one in topic.partition_responses]
        if place in self._denied:
            self._denied.discard(place)
            self.refused += 1
            if any(code != errors.TopicAuthorizationFailed.code for code in codes):
                self.problems.append(f"broker {broker} answered {codes} to a Produce of a client that may not write to {TOPIC}")
        else:
            self.served += errors.NONE in codes

    def _fetched(self, node: Node, effect: effects.Respond) -> None:
        records = any(one.records for topic in effect.message.responses for one in topic.partitions)
        if records and not self._may(node, Operation.READ):
            self.problems.append(f"broker {node.context.broker_id} sent records of {TOPIC} to a client that may not read it")
        self.served += records

    @staticmethod
    def _may(node: Node, operation: Operation) -> bool:
        rules = ((pattern, entry) for pattern, entries in node.context.image.acls.items() for entry in entries)
        allowed, _ = deciding_rule(rules, ANONYMOUS, "sim", operation, ResourceType.TOPIC, TOPIC)
        return allowed is not False


class AccessHistory:
    """One history."""

    def __init__(self, seed: int, *, settings: Mapping[str, str] | None = None) -> None:
        self.world = World(seed)
        self.rng = self.world.rng("access")
        self.network = Network(self.world)
        self.store = MemoryStore()
        self.links = Links(self.world)
        self.machines: dict[BrokerId, ClusterMachine] = {}
        self.checker = AccessChecker()
        for number in range(1, BROKERS + 1):
            machine = ClusterMachine(self.world, self.store, {**SETTINGS, **(settings or {})}, self.machines, self.links, broker_id=number)
            machine.inspects = self.checker.inspect
        wake_all(self.store, self.machines)
        self._operator = Caller(self.world, self.network, Entrance(self.rng, self.machines, lambda: -1), "operator")
        self._ends_ms = 0

    def run(self) -> AccessChecker:
        """Runs the history; returns the checker."""
        for machine in self.machines.values():
            machine.start()
        assert self.world.run(READY_MS, lambda: self._leaders() == PARTITIONS or self._create()), "the topic is created"
        self._ends_ms = self.world.now_ms + RUN_MS
        for partition in range(PARTITIONS):
            self._client(partition, self._write)
            self._client(partition, self._read)
        self._change(denied=False)
        self.world.after(self.rng.randint(1_000, RUN_MS - 5_000), self._crash)
        self.world.run(self._ends_ms)
        self.world.run(self._ends_ms + SETTLED_MS, self._agree)
        if not self._agree():
            self.checker.problems.append("a broker's access rules are not those of the store")
        return self.checker

    def _create(self) -> bool:
        requested = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=BROKERS)
        if self.world.now_ms % 500 == 0:
            self._operator.call(CreateTopicsRequest(topics=[requested], timeout_ms=1_000), lambda response: None)
        return False

    def _leaders(self) -> int:
        states = (self.store.tree.nodes.get(layout.partition_state(TOPIC, number)) for number in range(PARTITIONS))
        return sum(node is not None and layout.decode_partition_state(node.data).leader >= 0 for node in states)

    def _crash(self) -> None:
        machine = self.rng.choice(list(self.machines.values()))
        self.world.note(f"kill {machine.broker_id}")
        machine.kill()
        self.world.after(self.rng.randint(100, 3_000), machine.start)

    def _change(self, *, denied: bool) -> None:
        """Denies the clients the topic, or allows it again; then the opposite. A lost request is repeated."""
        if self.world.now_ms >= self._ends_ms:
            return
        request: Any
        if denied:
            wanted = DeleteAclsFilter(
                resource_type_filter=ResourceType.ANY, resource_name_filter=None, pattern_type_filter=PatternType.ANY,
                principal_filter=None, host_filter=None, operation=Operation.ANY, permission_type=Permission.ANY,
            )  # fmt: skip
            request = DeleteAclsRequest(filters=[wanted])
        else:
            prefixed = self.rng.random() < 0.5
            rule = AclCreation(
                resource_type=ResourceType.TOPIC, resource_name=TOPIC[:3] if prefixed else TOPIC,
                resource_pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL, principal=ANY_USER, host="*",
                operation=self.rng.choice((Operation.ALL, Operation.READ, Operation.WRITE)), permission_type=Permission.DENY,
            )  # fmt: skip
            # The other operation is allowed, so that the topic has rules either way.
            allow = AclCreation(**{name: getattr(rule, name) for name in rule.__struct_fields__})
            allow.permission_type, allow.operation = Permission.ALLOW, Operation.ALL
            request = CreateAclsRequest(creations=[allow, rule])

        def answered(response: Any) -> None:
            results = response.filter_results if denied else response.results
            done = all(one.error_code == errors.NONE for one in results)
            self.world.note(f"{'allowed' if denied else 'denied'}: {done}")
            self.world.after(self.rng.randint(50, 600), lambda: self._change(denied=denied != done))

        def lost() -> None:
            self.world.after(RETRY_MS, lambda: self._change(denied=denied))

        if not self._operator.call(request, answered, lost=lost):
            lost()

    def _client(self, partition: int, send: Any) -> None:
        def leader() -> int:
            node = self.store.tree.nodes.get(layout.partition_state(TOPIC, partition))
            return layout.decode_partition_state(node.data).leader if node is not None else -1

        entrance = Entrance(self.world.rng(f"{send.__name__}-{partition}"), self.machines, leader)
        caller = Caller(self.world, self.network, entrance, f"client-{partition}")
        send(caller, partition, 0)

    def _write(self, caller: Caller, partition: int, number: int) -> None:
        if self.world.now_ms >= self._ends_ms:
            return
        data = build_batch([(EPOCH_MS + self.world.now_ms, b"k", b"%d" % number, ())])
        part = PartitionProduceData(index=partition, records=data)
        request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[part])])
        self._send(caller, request, lambda: self._write(caller, partition, number + 1))

    def _read(self, caller: Caller, partition: int, number: int) -> None:
        if self.world.now_ms >= self._ends_ms:
            return
        ask = FetchPartition(partition=partition, fetch_offset=number, partition_max_bytes=1_000, current_leader_epoch=-1)
        request = FetchRequest(
            max_wait_ms=300, min_bytes=1, max_bytes=1_000, session_epoch=-1, topics=[FetchTopic(topic=TOPIC, partitions=[ask])]
        )
        self._send(caller, request, lambda: self._read(caller, partition, number + 1))

    def _send(self, caller: Caller, request: Any, then: Any) -> None:
        writes = isinstance(request, ProduceRequest)

        def answered(response: Any) -> None:
            codes = [one.error_code for topic in response.responses for one in (topic.partition_responses if writes else topic.partitions)]
            if any(code == errors.NotLeaderOrFollower.code for code in codes):
                caller.hang_up()
            self.world.after(self.rng.randint(5, 40), then)

        def lost() -> None:
            self.world.after(RETRY_MS, then)

        if not caller.call(request, answered, lost=lost):
            lost()

    def _agree(self) -> bool:
        """Whether every broker has the store's rules."""
        stored = {
            pattern: set(layout.decode_acls(node.data))
            for path, node in self.store.tree.nodes.items()
            if (pattern := layout.acl_of(path)) is not None
        }
        nodes = [machine.node for machine in self.machines.values()]
        return all(node is not None and {name: set(one) for name, one in node.context.image.acls.items()} == stored for node in nodes)
