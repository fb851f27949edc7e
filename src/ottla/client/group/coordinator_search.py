"""Types shared by both memberships: requests, changes of partitions, coordinator search. Pure.

A membership state machine returns requests from `step(now_ms)`, each a `CoordinatorRequest`; `answered` or `failed` follows for each.
Changes of the user's partitions are `AssignmentChange`s, which wait until the user polls, because only then its records are processed.

    REVOKED   call the listener, commit, then stop reading      the partitions are still owned meanwhile
    LOST      stop reading, call the listener                    other members may own them: commits are not possible
    ASSIGNED  start reading, call the listener
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, NamedTuple

from ottla.base.acls import Operation
from ottla.base.ids import TopicPartition
from ottla.client.access_errors import refused_access
from ottla.client.options import ConsumerOptions
from ottla.client.transport.backoff import Backoff
from ottla.wire import errors
from ottla.wire.errors import KafkaError, error_for
from ottla.wire.messages import FindCoordinatorRequest

#: Errors after which the coordinator is looked up again.
COORDINATOR_MOVED = frozenset({errors.CoordinatorNotAvailable.code, errors.NotCoordinator.code})
COORDINATOR_LOADING = errors.CoordinatorLoadInProgress.code
#: FindCoordinator: first version with several keys.
KEYS_SINCE = 4


class AssignmentChangeKind(Enum):
    """Kind of a change; see the module's table."""

    REVOKED = "revoked"
    LOST = "lost"
    ASSIGNED = "assigned"


class AssignmentChange(NamedTuple):
    """Partitions that are assigned, revoked or lost."""

    kind: AssignmentChangeKind
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True, eq=False)
class CoordinatorRequest:
    """A request to send."""

    request: type[Any]
    #: The message for a version.
    build: Callable[[int], Any]
    timeout_ms: float
    #: False: to any broker.
    to_coordinator: bool = True
    at_least: int = 0
    at_most: int = 1000


class CoordinatorAddress(NamedTuple):
    """A broker that coordinates the group."""

    node_id: int
    host: str
    port: int


class CoordinatorSearch:
    """Looks up the group's coordinator if it is unknown; after an error, again after a backoff."""

    def __init__(self, options: ConsumerOptions, rng: Random) -> None:
        self._options = options
        self._group_id = options.group_id
        self._backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, rng)
        #: None while it is unknown.
        self.place: CoordinatorAddress | None = None
        self._asking = False
        #: Time of the next attempt.
        self.retry_at_ms = float("-inf")
        #: The last error, for callers that time out.
        self.last_error: KafkaError | None = None

    def call(self, now_ms: float) -> CoordinatorRequest | None:
        """The request to send now, if it is due."""
        if self.place is not None or self._asking or now_ms < self.retry_at_ms:
            return None
        self._asking = True
        return CoordinatorRequest(FindCoordinatorRequest, self._request, self._options.request_timeout_ms, to_coordinator=False)

    def _request(self, version: int) -> FindCoordinatorRequest:
        if version >= KEYS_SINCE:
            return FindCoordinatorRequest(coordinator_keys=[self._group_id])
        return FindCoordinatorRequest(key=self._group_id)

    def answered(self, response: Any, now_ms: float) -> KafkaError | None:
        """Handles the response. Returns an error that is not retriable."""
        self._asking = False
        said = response.coordinators[0] if response.coordinators else response
        if not said.error_code:
            self.place = CoordinatorAddress(said.node_id, said.host, said.port)
            self._backoff.succeeded()
            self.last_error = None
            return None
        error = group_error(said.error_code, self._options)
        self.last_error = error
        self.retry_at_ms = now_ms + self._backoff.failed()
        return None if error.retriable else error

    def failed(self, error: KafkaError, now_ms: float) -> None:
        """No broker answered."""
        self._asking = False
        self.last_error = error
        self.retry_at_ms = now_ms + self._backoff.failed()

    def lost(self, now_ms: float, why: KafkaError | None = None) -> None:
        """The coordinator moved: looks it up again after a backoff, because other brokers learn it at the same time."""
        if self.place is not None:
            self.place = None
            self.last_error = why
            self.retry_at_ms = now_ms + self._backoff.failed()


def group_error(code: int, options: ConsumerOptions, message: str | None = None) -> KafkaError:
    """A coordinator's error, with a remedy."""
    group, instance = options.group_id, options.group_instance_id
    plain = error_for(code)
    advice = {
        errors.FencedInstanceId: f"another consumer has joined with group_instance_id {instance!r}: give each its own",
        errors.UnreleasedInstanceId: f"a consumer with group_instance_id {instance!r} is in the group: give each its own, or wait for"
        " its session to end",
        errors.GroupMaxSizeReached: "the group is full: stop a member, or raise group.max.size at the brokers",
        errors.InvalidSessionTimeout: f"session_timeout_ms {options.session_timeout_ms} is outside of what the brokers allow"
        " (group.min.session.timeout.ms to group.max.session.timeout.ms)",
        errors.InconsistentGroupProtocol: "no assignor is known to all members, or the group is not one of consumers: set"
        f" partition_assignment_strategy to one that the others have (here: {', '.join(options.partition_assignment_strategy)})",
        errors.GroupAuthorizationFailed: refused_access(code, options, Operation.READ, group),
        errors.InvalidGroupId: "this is no valid name of a group",
        errors.UnsupportedAssignor: f"the brokers have no assignor {options.group_remote_assignor!r}; they say which in"
        " group.consumer.assignors",
        errors.InvalidRegularExpression: "the brokers cannot read the pattern; they take RE2's syntax",
        errors.UnsupportedVersion: 'the brokers do not have this group protocol: use group_protocol="classic"',
        errors.FencedMemberEpoch: "the coordinator has given this member up",
    }.get(type(plain))
    return error_for(code, f"group {group}: {message or advice or plain.sentence}")
