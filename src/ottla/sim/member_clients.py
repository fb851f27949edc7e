"""Simulated members of consumer groups: the client's own membership state machines, driven by a simulated user that polls and commits.

The user's program is one generator, ``MemberProcess._program`` (``client_process.py``). A member is one process: a restarted one is another
``MemberProcess``, with the same instance id if it is static.

Real: ``client.group.classic_membership``, ``client.group.consumer_membership``, messages of ``client.group.commits``, frames. Simulated:
the loop around them (``client.group.coordinator_client``, ``client.consumer.rebalance``), sockets, and the user.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, Protocol

from ottla.base.ids import TopicPartition
from ottla.client.errors import ConnectionFailed
from ottla.client.group import commits
from ottla.client.group.assignors import assignors_from
from ottla.client.group.classic_membership import Membership
from ottla.client.group.commits import OffsetAndMetadata
from ottla.client.group.consumer_membership import Reconciliation
from ottla.client.group.coordinator_search import COORDINATOR_MOVED, AssignmentChange, AssignmentChangeKind, CoordinatorRequest
from ottla.client.options import ConsumerOptions
from ottla.client.transport.cluster import Cluster
from ottla.records.batch import crc_ok, headers
from ottla.records.errors import RecordsError
from ottla.records.read import records
from ottla.sim.client_connection import RETRY_MS, VERSIONS, Caller
from ottla.sim.client_process import ClientProcess, Program
from ottla.sim.group_environment import Callers, GroupBrokers
from ottla.sim.network import Network
from ottla.sim.world import World
from ottla.wire import errors
from ottla.wire.messages import FetchPartition, FetchRequest, FetchTopic, JoinGroupRequest, OffsetFetchRequest, SyncGroupRequest

#: Probability that a user processes polled records for longer than max.poll.interval.ms.
STUCK = 0.003
#: Errors of a commit that may have been written.
UNCLEAR = frozenset((*COORDINATOR_MOVED, errors.UnknownServerError.code, errors.RequestTimedOut.code))


class GroupListener(Protocol):
    """Receives what members do. ``who`` is a present or former member."""

    topic: str
    #: Faults are over, and users do not misbehave any more.
    calm: bool

    @property
    def partitions(self) -> int:
        """Present number of partitions of the topic."""
        ...

    def topic_id(self) -> bytes: ...

    def assigned(self, who: "MemberProcess", partitions: list[int]) -> None: ...

    def released(self, who: "MemberProcess", partitions: list[int], *, lost: bool) -> None: ...

    def began(self, who: "MemberProcess", partition: int, offset: int) -> None: ...

    def delivered(self, who: "MemberProcess", partition: int, offset: int, value: bytes) -> None: ...

    def commit_sent(self, group: str, who: tuple[str, int] | None, offsets: dict[int, int]) -> Any: ...

    def commit_answered(self, ticket: Any, partition: int, outcome: str) -> None:
        """``outcome`` is acknowledged, refused or unclear."""

    def fetch_sent(self, group: str) -> Any: ...

    def fetch_answered(self, ticket: Any, offsets: dict[int, int]) -> None: ...

    def synced(self, who: "MemberProcess", asked_ms: int, generation: int) -> None: ...

    def died(self, who: "MemberProcess") -> None: ...

    def ended(self, who: "MemberProcess") -> None:
        """Its program ended, or it was killed."""
        ...

    def complaint(self, text: str) -> None: ...


class MemberProcess:
    """One process of one member of a group."""

    def __init__(
        self,
        world: World,
        network: Network,
        stage: GroupBrokers,
        history: GroupListener,
        options: ConsumerOptions,
        *,
        name: str,
        rng: Random,
    ) -> None:
        self.name = name
        self.group = options.group_id
        self.options = options
        self._world = world
        self._history = history
        self._rng = rng
        self._cluster = Cluster(max_age_ms=60_000)
        self.machine: Membership | Reconciliation
        if options.group_protocol == "consumer":
            self.machine = Reconciliation(options, rng, lambda topic: history.topic_id(), lambda: {history.topic_id(): history.topic})
        else:
            made = assignors_from(list(options.partition_assignment_strategy))
            self.machine = Membership(options, made, rng, lambda topic: history.partitions)
        self._stage = stage
        #: Connections to coordinators, and other connections, by broker.
        self._coordinating = Callers(world, network, stage, name)
        self._fetching = Callers(world, network, stage, name)
        self._process = ClientProcess(world, self._over)
        self._leaving = False
        #: When the membership machine is next called; calls scheduled for another time are ignored.
        self._step_at_ms = float("inf")
        #: Requests to the coordinator that may be answered late, so requests behind them are not late.
        self._patience_ms: dict[CoordinatorRequest, float] = {}
        #: Next offset to read, for partitions with a known committed offset.
        self.positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self.machine.subscribe([history.topic])
        self._process.run(self._program())

    def __repr__(self) -> str:
        return self.name

    # Faults.

    def kill(self) -> None:
        """Ends the process without notice."""
        if not self.dead:
            self._process.kill()
            self._world.note(f"{self.name} dies")
            self._history.died(self)
            for callers in (self._coordinating, self._fetching):
                callers.hang_up()

    def pause(self, duration_ms: int) -> None:
        """Sends SIGSTOP, and SIGCONT after a while."""
        self._world.note(f"{self.name} pauses for {duration_ms}")
        self._process.pause(duration_ms)

    def leave(self) -> None:
        """Closes the consumer at its next poll."""
        self._leaving = True

    @property
    def owned(self) -> list[int]:
        """Partitions that the user reads."""
        return [] if self.dead else [tp.partition for tp in self.machine.owned]

    @property
    def dead(self) -> bool:
        return self._process.dead

    def _over(self) -> None:
        """The program ended."""
        self.kill()
        self._history.ended(self)

    @property
    def _coordinator(self) -> Caller:
        """The coordinator that the member knows."""
        place = self.machine.coordinator.place
        return self._coordinating.to(place.node_id if place is not None else self._stage.anyone())

    # Requests of the membership machine.

    def _pump(self) -> None:
        now_ms = self._world.now_ms
        for call in self.machine.step(now_ms):
            self._carry(call)
        at_ms = self.machine.next_ms(now_ms)
        if at_ms != self._step_at_ms:
            self._step_at_ms = at_ms
            if at_ms != float("inf"):
                self._world.after(int(at_ms - now_ms) + 1, lambda: self._process.awake(lambda: self._due(at_ms)))

    def _due(self, at_ms: float) -> None:
        if at_ms == self._step_at_ms:
            self._step_at_ms = float("inf")
            self._pump()

    def _carry(self, call: CoordinatorRequest) -> None:
        caller = self._coordinator if call.to_coordinator else self._fetching.to(self._stage.anyone())
        if call.request in (JoinGroupRequest, SyncGroupRequest):
            self._patience_ms[call] = call.timeout_ms

        def answered(response: Any) -> None:
            self._patience_ms.pop(call, None)
            self.machine.answered(call, response, self._world.now_ms)
            if call.request is SyncGroupRequest and not response.error_code:
                self._history.synced(self, asked_ms, message.generation_id)
            self._pump()

        def lost() -> None:
            self._patience_ms.pop(call, None)
            self.machine.failed(call, ConnectionFailed("simulated"), self._world.now_ms)
            self._pump()

        asked_ms = self._world.now_ms
        message = call.build(VERSIONS[call.request])
        timeout_ms = int(max([call.timeout_ms, *self._patience_ms.values()]) if call.to_coordinator else call.timeout_ms)
        sent = caller.call(
            message,
            lambda response: self._process.awake(lambda: answered(response)),
            lost=lambda: self._process.awake(lost),
            timeout_ms=timeout_ms,
        )
        if not sent:
            self._world.after(RETRY_MS, lambda: self._process.awake(lost))

    # The user.

    def _program(self) -> Program:
        """Polls, processes and sometimes commits, until the user leaves or gets a fatal error."""
        machine, rng = self.machine, self._rng
        yield self._process.sleep(rng.randint(0, 300))
        while not self._leaving:
            machine.poll_began()
            self._pump()
            yield from self._attend()
            error = machine.error()
            if error is not None:
                self._world.note(f"{self.name} gets {type(error).__name__}")
                return
            yield from self._find_positions()
            found = yield from self._fetch()
            for partition, offset, value in found:
                self._history.delivered(self, partition, offset, value)
                self.positions[partition] = offset + 1
            machine.poll_ended(self._world.now_ms)
            self._pump()
            if rng.random() < 0.3:
                yield from self._commit(patient=False)
            stuck = rng.random() < STUCK and not self._history.calm
            yield self._process.sleep(int(self.options.max_poll_interval_ms * 1.3) if stuck else rng.choice((0, 1, 10, 50)))
        yield from self._close()

    def _close(self) -> Program:
        yield from self._commit(patient=True)
        self._history.released(self, self.owned, lost=False)
        call = self.machine.leave("the user closed the consumer")
        if call is not None:
            yield self._process.ask(self._coordinator, call.build(VERSIONS[call.request]), int(call.timeout_ms))

    def _attend(self) -> Program:
        """Adopts assigned and revoked partitions."""
        while (change := self.machine.change()) is not None:
            if change.kind is AssignmentChangeKind.REVOKED:
                yield from self._commit(patient=True)
            self._carry_out(change)
            self._pump()

    def _carry_out(self, change: AssignmentChange) -> None:
        partitions = [tp.partition for tp in change.partitions]
        # Partitions may have been lost meanwhile.
        there = self.machine.change() is change
        self.machine.changed(change)
        if change.kind is not AssignmentChangeKind.ASSIGNED:
            for partition in partitions:
                self.positions.pop(partition, None)
                self._committed.pop(partition, None)
            self._history.released(self, partitions, lost=change.kind is AssignmentChangeKind.LOST)
        elif there:
            self._history.assigned(self, partitions)

    def _find_positions(self) -> Program:
        """Starts at the committed offsets."""
        unknown = [tp for tp in self.machine.owned if tp.partition not in self.positions]
        if not unknown or self.machine.coordinator.place is None:
            return
        ticket = self._history.fetch_sent(self.group)
        found = yield from self._committed_offsets(unknown)
        if found is None:
            return
        offsets = {tp.partition: kept.offset if isinstance(kept, OffsetAndMetadata) else -1 for tp, kept in found.items()}
        self._history.fetch_answered(ticket, offsets)
        for tp in unknown:
            if tp in self.machine.owned:
                self.positions[tp.partition] = max(offsets[tp.partition], 0)
                self._committed[tp.partition] = self.positions[tp.partition]
                self._history.began(self, tp.partition, self.positions[tp.partition])

    def _committed_offsets(self, partitions: list[TopicPartition]) -> Program:
        """Committed offsets, or errors, by partition; None if there is no answer, or one for the whole group."""
        member = self.machine.committing if isinstance(self.machine, Reconciliation) else ("", -1)
        request = commits.fetch_request(self.options, self._cluster, partitions, member, VERSIONS[OffsetFetchRequest])
        response = yield self._process.ask(self._coordinator, request, self._timeout_ms())
        if response is None:
            return None
        code, found = commits.fetched(response, self.options, {})
        if code in COORDINATOR_MOVED:
            self.machine.coordinator.lost(self._world.now_ms)
        if code:
            self._world.note(f"{self.name}: error {code} for its offsets")
            return None
        return found

    def _timeout_ms(self) -> int:
        return int(max([self.options.request_timeout_ms, *self._patience_ms.values()]))

    def _fetch(self) -> Program:
        """Fetches records of the assigned partitions."""
        if not self.positions:
            yield self._process.sleep(self._rng.choice((10, 50)))
            return []
        size = self._rng.choice((1, 2000, 1 << 20))
        leader, asked = self._stage.readable(self.positions, self._rng)
        partitions = [FetchPartition(partition=each, fetch_offset=at, partition_max_bytes=size) for each, at in asked.items()]
        request = FetchRequest(
            max_wait_ms=self._rng.choice((0, 100, 300)),
            min_bytes=1,
            session_epoch=-1,
            topics=[FetchTopic(topic=self._history.topic, partitions=partitions)],
        )
        response = yield self._process.ask(self._fetching.to(leader), request, self.options.request_timeout_ms)
        found: list[tuple[int, int, bytes]] = []
        for data in response.responses[0].partitions if response is not None and response.responses else ():
            partition = data.partition_index
            if data.error_code:
                if data.error_code == errors.OffsetOutOfRange.code and self._stage.leads(leader, partition):
                    self._history.complaint(f"{self.name}: offset {asked[partition]} of partition {partition} is out of range")
                continue
            try:
                records = list(decoded(data.records, asked[partition]))
            except RecordsError:
                # Damaged on the broker's disk; reading again shows it.
                continue
            found += [(partition, offset, value) for offset, value in records]
        if not found:
            yield self._process.sleep(self._world.unhurried(10))
        return found

    def _commit(self, *, patient: bool) -> Program:
        """Commits the user's positions; if patient, until the outcome is certain or the rebalance would be over."""
        deadline_ms = self._world.now_ms + self.options.max_poll_interval_ms
        while True:
            news = {partition: at for partition, at in self.positions.items() if self._committed.get(partition) != at}
            if not news:
                return
            code = yield from self._commit_once(news)
            if not patient or code == 0 or self._world.now_ms >= deadline_ms:
                return
            if code is not None and not (errors.error_for(code).retriable or code == errors.StaleMemberEpoch.code):
                return
            yield self._process.sleep(RETRY_MS)
            self._pump()

    def _commit_once(self, news: dict[int, int]) -> Program:
        """Error code of one attempt, 0 for none, None without a response."""
        machine, history = self.machine, self._history
        if machine.coordinator.place is None:
            return errors.CoordinatorNotAvailable.code
        who = machine.committing
        if who[1] < 0:
            # As in ``client.group.coordinator_client``: a client that is not a member at the moment does not commit.
            return errors.UnknownMemberId.code
        offsets = {TopicPartition(history.topic, partition): OffsetAndMetadata(at) for partition, at in news.items()}
        request = commits.commit_request(self.options, self._cluster, offsets, who)
        ticket = history.commit_sent(self.group, (self.name, who[1]), news)
        response = yield self._process.ask(self._coordinator, request, self._timeout_ms())
        if response is None:
            for partition in news:
                history.commit_answered(ticket, partition, "unclear")
            return None
        refused = {tp.partition: code for tp, code in commits.commit_errors(response, {}).items()}
        for partition, at in news.items():
            code = refused.get(partition, 0)
            history.commit_answered(ticket, partition, "acknowledged" if not code else "unclear" if code in UNCLEAR else "refused")
            if not code and partition in self.positions:
                self._committed[partition] = at
        worst = next(iter(refused.values()), 0)
        if worst:
            self._world.note(f"{self.name}: error {worst} for its commit")
            machine.commit_refused(worst)
            if worst in COORDINATOR_MOVED:
                machine.coordinator.lost(self._world.now_ms)
            self._pump()
        return worst


def decoded(batches: memoryview, position: int) -> Iterator[tuple[int, bytes]]:
    """(offset, value) of fetched records from an offset on, without a torn tail. Raises: RecordsError for a damaged batch."""
    for place, header in headers(batches):
        if place + header.size > len(batches):
            break
        if not crc_ok(batches, place):
            raise RecordsError("checksum")
        yield from ((offset, value or b"") for offset, _, _, value, _ in records(batches, place) if offset >= position)
