"""Requests that write many offsets of a group: OffsetCommit, TxnOffsetCommit, OffsetDelete.

The entries are handled in portions, a turn for each (``turns.py``). A portion is checked and written as one batch in its turn. Between two
portions the request keeps only names and results::

    entries     1 2 3 ... 100   101 ... 200   201 ... 300                    a portion is refused as a whole:
    turn        check, write    check, write  check, write, await commit     it and all entries after it have the error
    answers     0 0 3 ...       0 ...         0 ...

A request that is one portion is one batch in one step: its entries are stored together or not at all. Another one may be stored in part, if
the group rebalances, the coordinator moves, or the connection closes between two turns. An entry is answered without an error only when it
is committed.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol

from ottla.base.ids import TopicId
from ottla.base.units import KiB
from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.groups.groups import Groups
from ottla.broker.groups.offsets import Entry
from ottla.broker.handlers import Refusal
from ottla.broker.metadata.image import Topic
from ottla.broker.node import Node
from ottla.broker.security.requirements import Requirement
from ottla.broker.turns import EFFECT_WEIGHT
from ottla.wire import errors
from ottla.wire.errors import NONE, KafkaError

#: What an entry weighs in a turn, with its share of the batch, and a topic without entries. Each KiB of names and metadata weighs 1 more.
ENTRY_WEIGHT, TOPIC_WEIGHT = 2, 1
#: Entries that are refused or changed between two yields.
SLICE = 500


class NamedOffsets(Protocol):
    """The entries of one topic in a request."""

    name: str
    topic_id: bytes
    partitions: list[Any]


class Answers(NamedTuple):
    """Classes of a response."""

    response: Callable[..., Any]
    topic: Callable[..., Any]
    partition: Callable[..., Any]


def all_refused(answers: Answers, topics: Sequence[NamedOffsets], code: int, *, by_id: bool) -> Generator[int, None, Any]:
    """Work of a turn: a response in which each entry has the same error."""
    response = answers.response()
    for topic in topics:
        answered = _topic(answers, topic, by_id=by_id)
        response.topics.append(answered)
        for start in range(0, len(topic.partitions), SLICE):
            some = topic.partitions[start : start + SLICE]
            answered.partitions += [answers.partition(partition_index=asked.partition_index, error_code=code) for asked in some]
            yield len(some) // 5
        yield TOPIC_WEIGHT
    return response


def done_at_once(work: Generator[int, None, Any]) -> Any:
    """The result of work without turns."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value


def _topic(answers: Answers, topic: NamedOffsets, *, by_id: bool) -> Any:
    return answers.topic(topic_id=topic.topic_id, partitions=[]) if by_id else answers.topic(name=topic.name, partitions=[])


class OffsetPortions:
    """One request whose entries are written in portions."""

    __slots__ = (
        "_answers",
        "_by_id",
        "_call",
        "_check",
        "_failure",
        "_group_id",
        "_limit",
        "_node",
        "_portion",
        "_readable",
        "_refuse",
        "_response",
        "_shards",
        "_weight",
        "_write",
    )

    def __init__(
        self,
        node: Node,
        call: RequestArrived[Any],
        answers: Answers,
        *,
        readable: Requirement,
        by_id: bool,
        write: Callable[[Shard[Groups], Sequence[Entry]], None],
        check: Callable[[str, Topic], int] | None = None,
        refuse: Refusal[Any, Any] | None = None,
    ) -> None:
        """``readable``: what the client needs for a topic. ``write`` writes a portion as one batch, sets the errors of entries that it
        refuses, and raises KafkaError if it refuses all. ``check``: the error of all entries of a topic, checked in each turn; without it a
        partition must exist. ``refuse``: the answer after a write that was not committed; by default each written entry has the error.
        """
        self._node = node
        self._call = call
        self._answers = answers
        self._readable = readable
        self._by_id = by_id
        self._write = write
        self._check = check
        #: Not a method of this object: a cycle would leave request and response to the garbage collector.
        self._refuse = refuse
        self._group_id: str = call.body.group_id
        self._limit = node.context.turns.elements
        #: Entries that are checked and not written, and the weight of this turn.
        self._portion: list[Entry] = []
        self._weight = 0
        #: The error of the first portion that was refused as a whole.
        self._failure = NONE
        #: Shards that have written a portion. There are several if the coordinator moved and came back.
        self._shards: dict[Shard[Groups], None] = {}
        self._response = answers.response()

    def answer(self) -> Any:
        """The response, or PENDING; for the handler to return."""
        return self._node.context.turns.answer(self._call, self._work(), self._when_committed)

    def _work(self) -> Generator[int, None, Any]:
        for topic in self._call.body.topics:
            if self._weight >= self._limit:
                yield self._end_turn()
            answered = _topic(self._answers, topic, by_id=self._by_id)
            self._response.topics.append(answered)
            forbidden = self._forbidden(topic)
            start = 0
            while start < len(topic.partitions):
                if self._weight >= self._limit:
                    yield self._end_turn()
                start += self._take(topic, answered.partitions, start, forbidden)
        self._end_turn()
        return self._response

    def _name(self, topic: NamedOffsets) -> str:
        """The name of a topic; empty if its id is unknown."""
        if not self._by_id:
            return topic.name
        found = self._node.context.image.topics_by_id.get(TopicId(topic.topic_id))
        return found.name if found is not None else ""

    def _forbidden(self, topic: NamedOffsets) -> int:
        """The error of a topic that the client may not use. It is checked once, as the audit log has it."""
        context = self._node.context
        if not topic.partitions:
            self._weight += TOPIC_WEIGHT
        if context.access is None or not (name := self._name(topic)):
            return NONE
        before = len(context.effects)
        found = context.refusals(self._call, self._readable, (name,))
        self._weight += EFFECT_WEIGHT * (len(context.effects) - before)
        return found[name].code if found else NONE

    def _take(self, topic: NamedOffsets, answered: list[Any], start: int, forbidden: int) -> int:
        """Checks entries of a topic until the turn is over; returns their number."""
        name, partition_answer = self._name(topic), self._answers.partition
        code, count = (forbidden, 0) if forbidden else self._found(name)
        weight, one = self._weight, ENTRY_WEIGHT + (len(self._group_id) + len(name)) // KiB
        some = topic.partitions[start : start + max(-(-(self._limit - weight) // one), 1)]
        taken = 0
        for asked in some:
            answer = partition_answer(partition_index=asked.partition_index)
            answered.append(answer)
            taken += 1
            if code and not 0 <= asked.partition_index < count:
                answer.error_code = code
            else:
                self._portion.append((name, asked, answer))
            weight += one
            if (text := getattr(asked, "committed_metadata", None)) and len(text) >= KiB:
                weight += len(text) // KiB
                if weight >= self._limit:
                    break
        self._weight = weight
        return taken

    def _found(self, name: str) -> tuple[int, int]:
        """The error of entries of a topic, and the number of partitions that do not have it."""
        topic = self._node.context.image.topics.get(name)
        if topic is None:
            return errors.UnknownTopicOrPartition.code if name or not self._by_id else errors.UnknownTopicId.code, 0
        if self._check is not None:
            return self._check(name, topic), 0
        return errors.UnknownTopicOrPartition.code, len(topic.replicas)

    def _end_turn(self) -> int:
        """Writes the portion; returns the weight of the turn."""
        portion, weight, self._portion, self._weight = self._portion, self._weight, [], 0
        if portion and not self._failure:
            try:
                shard = self._node.groups.shard_of(self._group_id)
                self._write(shard, portion)
                self._shards[shard] = None
                return weight
            except KafkaError as error:
                self._failure = error.code
        for _, _, answer in portion:
            answer.error_code = self._failure
        return weight

    def _when_committed(self, response: Any) -> Any:
        about = [(shard, self._group_id) for shard in self._shards]
        return when_committed(self._call, response, about, refuse=self._refuse or self._refuse_written)

    def _refuse_written(self, call: RequestArrived[Any], error: KafkaError) -> Any:
        """Written entries have this error, since they are not committed."""
        return self._node.context.turns.answer(call, self._with_error(error.code))

    def _with_error(self, code: int) -> Generator[int, None, Any]:
        for topic in self._response.topics:
            for start in range(0, len(topic.partitions), SLICE):
                for answer in topic.partitions[start : start + SLICE]:
                    if answer.error_code == NONE:
                        answer.error_code = code
                yield SLICE // 10
            yield TOPIC_WEIGHT
        return self._response
