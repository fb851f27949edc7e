"""OffsetCommit: store a group's offsets.

Behaviour: a member sends its id and generation; without both, offsets are accepted for a group without members, which is created if
necessary. Unknown partitions and metadata longer than offset.metadata.max.bytes are refused per entry, for every sender. If a request
names a partition twice, each entry has a response, and the last accepted one counts. The rest is answered when it is committed.

Up to 100 entries are written as one batch, if the metadata of each is less than 1 KiB; more take turns (``offset_portions.py``), with a
batch for each. Kafka writes one batch, and refuses a commit with INVALID_COMMIT_OFFSET_SIZE if that exceeds max.message.bytes. Here the
error is for a portion that does, and for the entries after it.

Versions: 2 to 4 can set the retention; 10 names topics by id.

Source: KIP-211, KIP-320, KIP-345, KIP-848.
"""

from collections.abc import Generator, Sequence
from typing import Any

from ottla.broker.apis.offset_portions import Answers, OffsetPortions, all_refused, done_at_once
from ottla.broker.coordinator import Shard
from ottla.broker.events import RequestArrived
from ottla.broker.groups.groups import Groups
from ottla.broker.groups.offsets import Entry, commit
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire.errors import KafkaError
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

BY_ID_SINCE = 10
TOPICS = REQUIREMENTS[8].parts["topics"]
ANSWERS = Answers(OffsetCommitResponse, OffsetCommitResponseTopic, OffsetCommitResponsePartition)


def refuse(call: RequestArrived[OffsetCommitRequest], error: KafkaError) -> OffsetCommitResponse:
    answer: OffsetCommitResponse = done_at_once(refuse_in_turns(call, error))
    return answer


def refuse_in_turns(call: RequestArrived[OffsetCommitRequest], error: KafkaError) -> Generator[int, None, Any]:
    return all_refused(ANSWERS, call.body.topics, error.code, by_id=call.api_version >= BY_ID_SINCE)


@handles(OffsetCommitRequest, (2, 10), refuse=refuse, refuse_in_turns=refuse_in_turns)
def offset_commit(node: Node, call: RequestArrived[OffsetCommitRequest]) -> OffsetCommitResponse | Deferred:
    def write(shard: Shard[Groups], entries: Sequence[Entry]) -> None:
        commit(shard.machine, call.body, call.api_version, entries)

    portions = OffsetPortions(node, call, ANSWERS, readable=TOPICS, by_id=call.api_version >= BY_ID_SINCE, write=write)
    answer: OffsetCommitResponse | Deferred = portions.answer()
    return answer
