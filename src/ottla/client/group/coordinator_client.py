"""The task around a membership state machine: sends its requests, refreshes topic metadata, commits and fetches offsets.

The coordinator has a connection of its own: a connection's requests are answered in order, so a waiting fetch or join would delay
heartbeats. A member that leaves while its join waits uses the other connection.

A commit with patience is retried while errors are retriable; those of `commit_async` and auto-commit are sent once, so that an old commit
does not overtake a newer one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.consumer.metrics import ConsumerMetrics
from ottla.client.errors import METADATA_IS_STALE, ConnectionFailed
from ottla.client.group import commits
from ottla.client.group.assignor import Assignor
from ottla.client.group.classic_membership import Membership
from ottla.client.group.commits import GroupMetadata, OffsetAndMetadata
from ottla.client.group.consumer_membership import GONE, Reconciliation
from ottla.client.group.coordinator_search import COORDINATOR_LOADING, COORDINATOR_MOVED, CoordinatorRequest, group_error
from ottla.client.group.matching_topics import MatchingTopics
from ottla.client.options import ConsumerOptions
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.network import Network
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages import (
    JoinGroupRequest,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

#: Requests that wait for other members.
JOINING = (JoinGroupRequest, SyncGroupRequest)
#: Errors that are part of joining.
NO_FAILURES = (errors.MemberIdRequired.code, errors.RebalanceInProgress.code)
#: Number of the coordinator's connection among those to the brokers.
COORDINATOR = 2**31 - 1
#: First Metadata version with topic ids.
METADATA_BY_ID_SINCE = 12
#: Poll interval of a caller that waits for the coordinator.
LOOK_MS = 20


class CoordinatorClient:
    """The coordinator client of one consumer. Belongs to one event loop; `changed` is called after each event."""

    def __init__(
        self, network: Network, options: ConsumerOptions, assignors: list[Assignor], rng: Random, metrics: ConsumerMetrics,
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._network = network
        self._metrics = metrics
        self._options = options
        self._rng = rng
        self._changed = changed
        self.machine: Membership | Reconciliation
        if options.group_protocol == "consumer":
            self.machine = Reconciliation(options, rng, network.cluster.topic_id, lambda: network.cluster.names)
        else:
            self.machine = Membership(options, assignors, rng, self._count)
        #: Topics that are subscribed to by name, and those that match a pattern that is evaluated here.
        self.topics: frozenset[str] = frozenset()
        self._matching: MatchingTopics | None = None
        self._waiting: set[CoordinatorRequest] = set()
        self._resolving = False
        #: Topics that the coordinator named by id.
        self._named: set[str] = set()

    # -- Subscription.

    def subscribe(self, topics: Iterable[str], pattern: str | re.Pattern[str] | None) -> None:
        """Subscribes to these topics, or to those that match."""
        if self._matching is not None:
            self._matching.stop()
        self.topics, self._matching = frozenset(topics), None
        if isinstance(pattern, str) and isinstance(self.machine, Reconciliation):
            self.machine.subscribe(self.topics, pattern)
        elif pattern is not None:
            self._matching = MatchingTopics(self._network, self._options, re.compile(pattern), self.machine.subscribe, self._changed)
        else:
            self.machine.subscribe(self.topics)

    def _count(self, topic: str) -> int | None:
        cluster = self._network.cluster
        error = cluster.errors.get(topic)
        if error is not None and not isinstance(error, errors.LeaderNotAvailable):
            return 0
        return cluster.partition_count(topic)

    def fatal(self) -> KafkaError | None:
        """The permanent error of a topic that was subscribed to by name."""
        return next((error for topic in sorted(self.topics) if (error := self._network.cluster.fatal(topic)) is not None), None)

    # -- Requests.

    def pump(self, now_ms: float) -> float:
        """Sends requests that are due; returns the time of the next call."""
        machine, network = self.machine, self._network
        listed_ms = float("inf") if self._matching is None else self._matching.pump(now_ms)
        if isinstance(machine, Reconciliation) and machine.unknown and not self._resolving:
            self._resolving = True
            network.spawn(self._resolve(machine.unknown))
        for topic in machine.wanted | self._named:
            network.cluster.want(topic, now_ms)
        for call in machine.step(now_ms):
            network.spawn(self._carry(call))
        return min(machine.next_ms(now_ms), listed_ms)

    async def _carry(self, call: CoordinatorRequest) -> None:
        network, machine, metrics = self._network, self.machine, self._metrics
        try:
            response = await self.ask(call)
        except KafkaError as error:
            machine.failed(call, error, network.clock_ms())
        else:
            now_ms = network.clock_ms()
            if call.request in JOINING and response.error_code and response.error_code not in NO_FAILURES:
                metrics.rebalance_failed(now_ms)
            machine.answered(call, response, now_ms)
        metrics.rebalance(machine.settled, network.clock_ms())
        self._changed()

    async def ask(self, call: CoordinatorRequest, *, aside: bool = False) -> Any:
        """Sends a request to the coordinator or a broker. `aside`: not behind a waiting join. Raises: KafkaError."""
        network = self._network
        if not call.to_coordinator:
            return await network.ask_any_as(call.request, call.build, at_least=call.at_least, at_most=call.at_most)
        place = self.machine.coordinator.place
        if place is None:
            raise ConnectionFailed("the group's coordinator is not known")
        network.places[COORDINATOR] = (place.host, place.port)
        node = place.node_id if aside and self._waiting and place.node_id in network.cluster.brokers else COORDINATOR
        timeout_ms = call.timeout_ms
        if node == COORDINATOR:
            # A request behind a long one gets the longer timeout.
            timeout_ms = max([timeout_ms, *(waiting.timeout_ms for waiting in self._waiting)])
        holds_up, sent_ms = call.request in JOINING, network.clock_ms()
        if holds_up:
            self._waiting.add(call)
        try:
            response = await network.ask_as(
                node, call.request, call.build, timeout_ms=timeout_ms, at_least=call.at_least, at_most=call.at_most
            )
            now_ms = network.clock_ms()
            self._metrics.answered(call.request, now_ms - sent_ms, now_ms)
            return response
        finally:
            self._waiting.discard(call)

    async def leave(self, reason: str, limit_ms: float, for_good: bool | None = None) -> None:
        """Leaves the group without waiting for success. `for_good` as in the state machine."""
        call = self.machine.leave(reason, for_good)
        if call is None:
            return
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self.ask(call, aside=True)
        except (KafkaError, TimeoutError):
            pass

    async def _resolve(self, topic_ids: frozenset[bytes]) -> None:
        """Looks up the names of topics that the coordinator sent by id."""
        try:
            wanted = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in sorted(topic_ids)]
            request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
            response = await self._network.ask_any(request, at_least=METADATA_BY_ID_SINCE)
            self._named = {topic.name for topic in response.topics if topic.name and topic.topic_id in topic_ids} | self._named
            self.pump(self._network.clock_ms())
            await self._network.refresh()
            if not topic_ids <= self._network.cluster.names.keys():
                # The coordinator may know a topic before other brokers do.
                await asyncio.sleep(self._options.retry_backoff_ms / 1000)
        except KafkaError:
            await asyncio.sleep(self._options.retry_backoff_max_ms / 1000)
        finally:
            self._resolving = False
        self._changed()

    # -- Offsets.

    async def _coordinator(self, deadline_ms: float) -> None:
        """Waits until the coordinator is known. Raises: KafkaError."""
        search, network = self.machine.coordinator, self._network
        while search.place is None:
            now_ms = network.clock_ms()
            if search.last_error is not None and not search.last_error.retriable:
                raise search.last_error
            if now_ms >= deadline_ms:
                raise search.last_error or errors.RequestTimedOut(
                    f"the coordinator of group {self._options.group_id} was not found in time"
                )
            call = search.call(now_ms)
            if call is not None:
                await self._carry(call)
            else:
                await asyncio.sleep(min(max(search.retry_at_ms - now_ms, LOOK_MS), max(deadline_ms - now_ms, 1)) / 1000)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_ms: float, patient: bool = True) -> None:
        """Commits offsets. Raises: CommitFailed, RebalanceInProgress, OffsetMetadataTooLarge and others; RequestTimedOut; without patience
        the error of one attempt.
        """
        network, machine, options = self._network, self.machine, self._options
        deadline_ms = network.clock_ms() + timeout_ms
        backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, self._rng)
        left = dict(offsets)
        while left:
            await self._coordinator(deadline_ms)
            at_least = commits.EPOCH_SINCE if isinstance(machine, Reconciliation) and machine.epoch > 0 else 0
            asked: dict[bytes, str] = {}
            build = partial(self._commit_request, dict(left), asked)
            at_most = commits.at_most(network.cluster, {tp.topic for tp in left})
            call = CoordinatorRequest(OffsetCommitRequest, build, options.request_timeout_ms, at_least=at_least, at_most=at_most)
            error: KafkaError | None = None
            try:
                response = await self.ask(call)
            except errors.NetworkError as failed:
                error = failed
                machine.coordinator.lost(network.clock_ms(), failed)
            except errors.RequestTimedOut as failed:
                error = failed
            else:
                codes = commits.commit_errors(response, asked)
                error = self._sorted_out(left, codes)
            if error is None:
                return
            if not patient or network.clock_ms() >= deadline_ms:
                raise error
            await asyncio.sleep(min(backoff.failed(), max(deadline_ms - network.clock_ms(), 0)) / 1000)

    def _commit_request(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], asked: dict[bytes, str], version: int
    ) -> OffsetCommitRequest:
        """``asked`` gets the topic ids and their names: metadata may have changed when the response arrives."""
        # The membership counts when the request is sent.
        member = self.machine.committing
        if self.machine.subscribed and member[1] < 0:
            # An empty group would accept it from any client, and overwrite later commits.
            raise commits.not_a_member(self._options)
        request = commits.commit_request(self._options, self._network.cluster, offsets, member)
        asked |= {topic.topic_id: topic.name for topic in request.topics}
        return request

    def _sorted_out(self, left: dict[TopicPartition, OffsetAndMetadata], codes: dict[TopicPartition, int]) -> KafkaError | None:
        """Keeps in `left` what was not committed; returns a retriable error. Raises: other errors."""
        for tp in [tp for tp in left if tp not in codes]:
            del left[tp]
        network = self._network
        passing: KafkaError | None = None
        for tp, code in codes.items():
            self.machine.commit_refused(code)
            error = commits.commit_error(code, self._options, tp)
            if code in COORDINATOR_MOVED:
                self.machine.coordinator.lost(network.clock_ms(), error)
            elif code in METADATA_IS_STALE:
                network.cluster.invalidate()
                deleted = network.cluster.deleted(*tp, network.clock_ms())
                if deleted is not None:
                    self._changed()
                    raise deleted
            elif not (error.retriable or code in (COORDINATOR_LOADING, errors.StaleMemberEpoch.code)):
                self._changed()
                raise error
            passing = error
        self._changed()
        return passing

    async def committed(self, partitions: Iterable[TopicPartition], *, timeout_ms: float) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets, None without one. Raises: GroupAuthorizationFailed and others; RequestTimedOut."""
        network, options = self._network, self._options
        deadline_ms = network.clock_ms() + timeout_ms
        backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, self._rng)
        wanted = list(partitions)
        while wanted:
            await self._coordinator(deadline_ms)
            asked: dict[bytes, str] = {}
            call = CoordinatorRequest(
                OffsetFetchRequest,
                partial(self._fetch_request, wanted, asked),
                options.request_timeout_ms,
                at_least=1,
                at_most=commits.at_most(network.cluster, {tp.topic for tp in wanted}),
            )
            error: KafkaError
            try:
                response = await self.ask(call)
            except errors.NetworkError as failed:
                error = failed
                self.machine.coordinator.lost(network.clock_ms(), failed)
            except errors.RequestTimedOut as failed:
                error = failed
            else:
                found, passing = self._read(response, wanted, asked)
                if passing is None:
                    return found
                error = passing
            if network.clock_ms() >= deadline_ms:
                raise error
            await asyncio.sleep(min(backoff.failed(), max(deadline_ms - network.clock_ms(), 0)) / 1000)
        return {}

    def _fetch_request(self, wanted: list[TopicPartition], asked: dict[bytes, str], version: int) -> OffsetFetchRequest:
        """``asked`` as for ``_commit_request``."""
        member = self.machine.committing if isinstance(self.machine, Reconciliation) else ("", -1)
        request = commits.fetch_request(self._options, self._network.cluster, wanted, member, version)
        asked |= {topic.topic_id: topic.name for group in request.groups for topic in group.topics or ()}
        return request

    def _read(
        self, response: Any, wanted: list[TopicPartition], asked: dict[bytes, str]
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], KafkaError | None]:
        """The offsets, or a retriable error. Raises: other errors."""
        code, answers = commits.fetched(response, self._options, asked)
        if code:
            error = group_error(code, self._options)
            self.machine.commit_refused(code)
            if code in COORDINATOR_MOVED:
                self.machine.coordinator.lost(self._network.clock_ms(), error)
            elif not (error.retriable or code in (*GONE, errors.StaleMemberEpoch.code)):
                raise error
            return {}, error
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for tp in wanted:
            one = answers.get(tp, errors.UnknownServerError(f"the coordinator left {tp} out of its answer"))
            if isinstance(one, KafkaError):
                if one.code in COORDINATOR_MOVED:
                    self.machine.coordinator.lost(self._network.clock_ms(), one)
                elif one.code in METADATA_IS_STALE:
                    self._network.cluster.invalidate()
                elif not one.retriable:
                    raise one
                return {}, one
            found[tp] = one
        return found, None

    @property
    def metadata(self) -> GroupMetadata:
        """The present membership."""
        member_id, generation = self.machine.committing
        return GroupMetadata(self._options.group_id, generation, member_id, self._options.group_instance_id or None)
