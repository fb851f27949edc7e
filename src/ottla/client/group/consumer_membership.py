"""Membership in the consumer protocol (KIP-848): the coordinator assigns, members reconcile. Pure.

There is one request, the heartbeat. It has the subscription and owned partitions; the response has the member epoch, the heartbeat
interval and, if it changed, the target assignment.

    target arrives -> revoke partitions that are not in it (`AssignmentChange`, in the user's poll)
                   -> acknowledge: a heartbeat with the remaining partitions    the coordinator can assign the others now
                   -> add new partitions (`AssignmentChange`)
                   -> acknowledge

A heartbeat is full when the member joins (epoch 0) and after any failure; otherwise it has only changes. The member generates its id and
keeps it (KIP-1082). Topics have ids; those with unknown names are in `unknown` until `names` has them.

    response                                   | action
    NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE | look up the coordinator; nothing is lost
    COORDINATOR_LOAD_IN_PROGRESS, broken link  | send a full heartbeat after a backoff
    UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH     | partitions are lost; join again with the same id
    FENCED_INSTANCE_ID                         | another client has the instance id: every poll raises this error
    any other                                  | the poll raises it; the next poll retries

The interface to the user, and the effect of missing polls, are those of `classic_membership`. A static member leaves with epoch -2 and
keeps its partitions until its session expires.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.group.coordinator_search import (
    COORDINATOR_LOADING,
    COORDINATOR_MOVED,
    AssignmentChange,
    AssignmentChangeKind,
    CoordinatorRequest,
    group_error,
)
from ottla.client.group.membership_state import PolledMembership
from ottla.client.options import ConsumerOptions
from ottla.wire.errors import FencedInstanceId, FencedMemberEpoch, KafkaError, StaleMemberEpoch, UnknownMemberId
from ottla.wire.messages import ConsumerGroupHeartbeatRequest, FindCoordinatorRequest
from ottla.wire.messages.consumer_group_heartbeat import TopicPartitions

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2
REGEX_SINCE = 1
GONE = (UnknownMemberId.code, FencedMemberEpoch.code)


class Reconciliation(PolledMembership):
    """A member of the consumer protocol. `now_ms` is monotonic; `topic_id` and `names` are cluster metadata."""

    def __init__(
        self, options: ConsumerOptions, rng: Random, topic_id: Callable[[str], bytes], names: Callable[[], dict[bytes, str]]
    ) -> None:
        super().__init__(options, rng)
        self._topic_id = topic_id
        self._names = names
        self.member_id = urlsafe_b64encode(rng.randbytes(16)).rstrip(b"=").decode()
        #: 0 until the member has joined.
        self.epoch = JOINING
        #: Topics of the target with unknown names.
        self.unknown: frozenset[bytes] = frozenset()
        self._pattern = ""
        self._target: dict[bytes, list[int]] | None = None
        #: The subscription that the coordinator knows; None to send it again.
        self._told_subscription: tuple[frozenset[str], str] | None = None
        self._told_owned: list[TopicPartition] | None = None
        self._beating: tuple[CoordinatorRequest, tuple[frozenset[str], str], list[TopicPartition]] | None = None
        self._beat_at_ms = float("-inf")
        self._interval_ms = float("inf")

    # -- For the consumer.

    def subscribe(self, topics: Iterable[str], pattern: str = "") -> None:
        """Subscribes to these topics, and to those that match a regular expression evaluated by the brokers."""
        self._topics, self._pattern = frozenset(topics), pattern
        self.wanted = self._topics

    def rejoin(self, reason: str) -> None:
        """No-op: the coordinator decides about rebalances."""
        self._beat_at_ms = float("-inf")

    def change(self) -> AssignmentChange | None:
        """The next change for the user to apply; `changed` must follow."""
        if not self._changes:
            self._reconcile()
        return super().change()

    @property
    def subscribed(self) -> bool:
        return bool(self._topics or self._pattern)

    @property
    def committing(self) -> tuple[str, int]:
        """Member id and epoch for commits."""
        return (self.member_id, self.epoch) if self.epoch > 0 else ("", -1)

    @property
    def settled(self) -> bool:
        """Whether the member has its target assignment, and the coordinator knows."""
        return self.epoch > 0 and self._target is None and not self._changes and self._told_owned == sorted(self.owned)

    def commit_refused(self, code: int) -> None:
        """Handles an error of a commit that concerns membership."""
        if code == StaleMemberEpoch.code:
            self._beat_at_ms = float("-inf")
        elif code in GONE and self.epoch > 0:
            self._out()

    def leave(self, reason: str, for_good: bool | None = None) -> CoordinatorRequest | None:
        """Leaves the group: returns the request, if one is needed. Nothing is owned afterwards. A static member that does not leave for
        good reports that it is away.
        """
        told = None
        static = bool(self._options.group_instance_id)
        if self.epoch > 0 and (static or for_good is not False) and self.coordinator.place is not None:
            epoch = LEAVING_FOR_A_WHILE if static and not for_good else LEAVING
            message = self._message(epoch)
            told = CoordinatorRequest(ConsumerGroupHeartbeatRequest, partial(_as_is, message), self._options.request_timeout_ms)
        self._out()
        self.owned = []
        self._changes.clear()
        self._alive = False
        return told

    # -- Requests.

    def _request(self, calls: list[CoordinatorRequest], now_ms: float) -> None:
        self._reconcile()
        if self.epoch == JOINING and self.owned:
            # A joining member owns nothing: the user must first learn of lost partitions.
            return
        if self._beating is None and (now_ms >= self._beat_at_ms or self._has_news()):
            calls.append(self._beat())

    def _due_ms(self, found: bool) -> list[float]:
        return [self._beat_at_ms] if found and self._beating is None else []

    def _has_news(self) -> bool:
        """Whether there is a change to send before the heartbeat interval ends; not while a full heartbeat is due after a failure."""
        if self._told_subscription is None or self._told_owned is None or self.epoch <= 0:
            return False
        return self._told_subscription != (self._topics, self._pattern) or self._told_owned != sorted(self.owned)

    def _beat(self) -> CoordinatorRequest:
        whole = self.epoch == JOINING or self._told_subscription is None or self._told_owned is None
        message = self._message(self.epoch)
        subscription, owned = (self._topics, self._pattern), sorted(self.owned)
        if whole:
            message.rebalance_timeout_ms = self._options.max_poll_interval_ms
            message.server_assignor = self._options.group_remote_assignor or None
            message.rack_id = self._options.client_rack or None
        if whole or subscription != self._told_subscription:
            message.subscribed_topic_names = sorted(self._topics)
            if self._pattern or (self._told_subscription and self._told_subscription[1]):
                # An empty pattern removes the previous one.
                message.subscribed_topic_regex = self._pattern
        if whole or owned != self._told_owned:
            message.topic_partitions = self._by_id(owned)
        at_least = REGEX_SINCE if message.subscribed_topic_regex is not None else 0
        call = CoordinatorRequest(
            ConsumerGroupHeartbeatRequest, partial(_as_is, message), self._options.request_timeout_ms, at_least=at_least
        )
        self._beating = (call, subscription, owned)
        return call

    def _message(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self._options.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self._options.group_instance_id or None,
        )

    def _by_id(self, partitions: list[TopicPartition]) -> list[TopicPartitions]:
        topics: dict[bytes, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(self._topic_id(topic), []).append(partition)
        return [TopicPartitions(topic_id=topic_id, partitions=some) for topic_id, some in topics.items()]

    # -- Responses.

    def failed(self, call: CoordinatorRequest, error: KafkaError, now_ms: float) -> None:
        """A request got no response."""
        if call.request is FindCoordinatorRequest:
            self.coordinator.failed(error, now_ms)
            if not error.retriable:
                self._tell(error)
        elif self._beating is not None and call is self._beating[0]:
            self._beating = None
            if error.retriable:
                self.coordinator.lost(now_ms, error)
                self._tell_all(now_ms)
            else:
                self._out()
                self._tell(error)

    def answered(self, call: CoordinatorRequest, response: Any, now_ms: float) -> None:
        """A request got a response."""
        if call.request is FindCoordinatorRequest:
            error = self.coordinator.answered(response, now_ms)
            if error is not None:
                self._tell(error)
        elif self._beating is not None and call is self._beating[0]:
            _, subscription, owned = self._beating
            self._beating = None
            if response.error_code:
                self._refused(response, now_ms)
                return
            self._backoff.succeeded()
            self._told_subscription, self._told_owned = subscription, owned
            self.member_id = response.member_id or self.member_id
            self.epoch = response.member_epoch
            self._interval_ms = response.heartbeat_interval_ms
            self._beat_at_ms = now_ms + self._interval_ms
            if response.assignment is not None:
                self._target = {one.topic_id: one.partitions for one in response.assignment.topic_partitions}
            self._reconcile()

    def _refused(self, response: Any, now_ms: float) -> None:
        code = response.error_code
        error = group_error(code, self._options, response.error_message)
        if code in COORDINATOR_MOVED:
            self.coordinator.lost(now_ms, error)
            self._tell_all(now_ms)
            self._beat_at_ms = now_ms
        elif code == COORDINATOR_LOADING or error.retriable:
            self._tell_all(now_ms)
        elif code in GONE:
            self._out()
            self._beat_at_ms = now_ms
        else:
            self._out()
            self._tell(group_error(code, self._options) if code == FencedInstanceId.code else error)

    def _tell_all(self, now_ms: float) -> None:
        """The coordinator's knowledge is uncertain: the next heartbeat is full."""
        self._told_subscription = self._told_owned = None
        self._beat_at_ms = now_ms + self._backoff.failed()

    def _out(self) -> None:
        """The member was removed from the group."""
        self.epoch = JOINING
        self._target = None
        self.unknown = frozenset()
        self._beating = None
        self._told_subscription = self._told_owned = None
        self._beat_at_ms = float("-inf")
        self._lose()

    def _reconcile(self) -> None:
        """The next change towards the target: first revoke, and add only after the coordinator knows."""
        if self._target is None or self._changes:
            return
        names = self._names()
        self.unknown = frozenset(topic_id for topic_id in self._target if topic_id not in names)
        target = [
            TopicPartition(names[topic_id], partition)
            for topic_id, partitions in self._target.items()
            if topic_id in names
            for partition in partitions
        ]
        owned = set(self.owned)
        going = tuple(tp for tp in self.owned if tp not in set(target))
        coming = tuple(tp for tp in target if tp not in owned)
        if going:
            self._changes.append(AssignmentChange(AssignmentChangeKind.REVOKED, going))
        elif coming:
            if self._told_owned == sorted(self.owned):
                self._changes.append(AssignmentChange(AssignmentChangeKind.ASSIGNED, coming))
        elif not self.unknown:
            self._target = None


def _as_is(message: ConsumerGroupHeartbeatRequest, version: int) -> ConsumerGroupHeartbeatRequest:
    return message
