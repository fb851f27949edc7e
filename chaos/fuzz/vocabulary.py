"""Names and numbers that exist on the brokers under test: learned from their responses, and used in later requests.

The vocabulary is small: each list keeps at most ``KEPT`` entries and drops a random one. Entities of the well-behaved client are never
learned, since a hostile client could legitimately delete them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

KEPT = 24
#: Prefix of the well-behaved client's topics and groups.
RESERVED = "good"
#: MEMBER_ID_REQUIRED comes with the id that the member must join with.
MEMBER_ID_REQUIRED = 79
T = TypeVar("T")


@dataclass(slots=True)
class Topic:
    """A topic as last described."""

    name: str
    topic_id: bytes
    partitions: int


@dataclass(slots=True)
class Member:
    """A member of a group of either protocol."""

    group: str
    member_id: str
    #: Generation of a classic group, member epoch of a consumer group.
    epoch: int
    instance: str | None = None


@dataclass(slots=True)
class Producer:
    """An idempotent producer, and the next sequence numbers."""

    producer_id: int
    epoch: int
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True)
class Session:
    """An incremental fetch session."""

    session_id: int
    epoch: int


class Vocabulary:
    """Starts with names that the first steps of a chunk create."""

    def __init__(self, random: Random, *, topics: list[Topic], brokers: int) -> None:
        self._random = random
        self.topics = topics
        self.brokers = brokers
        self.groups = ["classic-1", "classic-2", "next-1", "next-2"]
        self.members = [Member(group, "", 0) for group in self.groups]
        self.producers = [Producer(-1, -1)]
        self.sessions = [Session(0, 0), Session(0, -1)]
        self._learners: dict[int, Callable[[Any, Any], None]] = {
            1: self._fetched,
            3: self._described,
            11: self._joined,
            19: self._created,
            20: self._deleted,
            22: self._producer,
            68: self._beaten,
        }

    def learn(self, key: int, request: Any, response: Any) -> None:
        """Learn the names in a response."""
        learner = self._learners.get(key)
        if learner is not None:
            learner(request, response)

    def _keep(self, entries: list[T], entry: T) -> None:
        if len(entries) >= KEPT:
            entries[int(self._random.random() * KEPT)] = entry
        else:
            entries.append(entry)

    def _topic(self, name: str | None, topic_id: bytes, partitions: int) -> None:
        if not name or name.startswith((RESERVED, "__")) or len(name) > 249:
            return
        for topic in self.topics:
            if topic.name == name:
                topic.topic_id = topic_id if any(topic_id) else topic.topic_id
                topic.partitions = max(partitions, 1)
                return
        self._keep(self.topics, Topic(name, topic_id, max(partitions, 1)))

    def _described(self, request: Any, response: Any) -> None:
        for topic in response.topics[:KEPT]:
            if topic.error_code == 0:
                self._topic(topic.name, topic.topic_id, len(topic.partitions))

    def _created(self, request: Any, response: Any) -> None:
        for topic in response.topics[:KEPT]:
            if topic.error_code == 0:
                self._topic(topic.name, topic.topic_id, topic.num_partitions)

    def _deleted(self, request: Any, response: Any) -> None:
        gone = {topic.name for topic in response.responses if topic.error_code == 0}
        if gone and self._random.random() < 0.5:
            self.topics = [topic for topic in self.topics if topic.name not in gone] or self.topics

    def _joined(self, request: Any, response: Any) -> None:
        if response.error_code in (0, MEMBER_ID_REQUIRED) and not request.group_id.startswith(RESERVED):
            epoch = max(response.generation_id, 0)
            self._member(Member(request.group_id, response.member_id, epoch, request.group_instance_id))

    def _beaten(self, request: Any, response: Any) -> None:
        if response.error_code == 0 and response.member_id and not request.group_id.startswith(RESERVED):
            self._member(Member(request.group_id, response.member_id, response.member_epoch, request.instance_id))

    def _member(self, member: Member) -> None:
        if member.group.startswith("__"):
            # Requests may use a group's name as a topic, and would alter the topic of offsets.
            return
        for known in self.members:
            if known.group == member.group and known.member_id == member.member_id:
                known.epoch, known.instance = member.epoch, member.instance
                return
        self._keep(self.members, member)
        if member.group not in self.groups:
            self._keep(self.groups, member.group)

    def _producer(self, request: Any, response: Any) -> None:
        if response.error_code == 0:
            self._keep(self.producers, Producer(response.producer_id, response.producer_epoch))

    def _fetched(self, request: Any, response: Any) -> None:
        if response.session_id and response.error_code == 0:
            for session in self.sessions:
                if session.session_id == response.session_id:
                    session.epoch = request.session_epoch + 1
                    return
            self._keep(self.sessions, Session(response.session_id, 1))
