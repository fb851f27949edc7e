"""OffsetDelete: delete a group's offsets of some partitions.

Behaviour: a topic that a member subscribes to is refused with GROUP_SUBSCRIBED_TO_TOPIC per partition; a group whose members are not
consumers is NON_EMPTY_GROUP as a whole. A missing offset is ignored. Many partitions take turns (``offset_portions.py``), with a batch for
each. Source: KIP-496.
"""

from collections.abc import Sequence

from ottla.broker.apis.offset_portions import Answers, OffsetPortions
from ottla.broker.coordinator import Shard
from ottla.broker.events import RequestArrived
from ottla.broker.groups.groups import Groups
from ottla.broker.groups.offsets import Entry
from ottla.broker.handlers import Deferred, handles, whole_error
from ottla.broker.metadata.image import Topic
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.errors import NONE
from ottla.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

TOPICS = REQUIREMENTS[47].parts["topics"]
ANSWERS = Answers(OffsetDeleteResponse, OffsetDeleteResponseTopic, OffsetDeleteResponsePartition)

refuse = whole_error(OffsetDeleteResponse)


@handles(OffsetDeleteRequest, (0, 0), refuse=refuse)
def offset_delete(node: Node, call: RequestArrived[OffsetDeleteRequest]) -> OffsetDeleteResponse | Deferred:
    group_id = call.body.group_id
    node.groups.shard_of(group_id).machine.find(group_id).check_offset_delete()

    def check(name: str, _topic: Topic) -> int:
        shard = node.groups.shard_for(group_id)
        group = shard.machine.by_id.get(group_id) if shard is not None else None
        return errors.GroupSubscribedToTopic.code if group is not None and group.subscribed(name) else NONE

    def write(shard: Shard[Groups], entries: Sequence[Entry]) -> None:
        shard.machine.find(group_id).check_offset_delete()
        shard.machine.delete_offsets(group_id, ((topic, asked.partition_index) for topic, asked, _ in entries))

    portions = OffsetPortions(node, call, ANSWERS, readable=TOPICS, by_id=False, write=write, check=check, refuse=refuse)
    answer: OffsetDeleteResponse | Deferred = portions.answer()
    return answer
