"""ListOffsets: offsets by timestamp, in partitions led here; for a tool that compares replicas also in partitions followed here.

==========  =======  ======================================================
timestamp   version  result
==========  =======  ======================================================
>= 0        1        the first record at or after that time
-1          1        the high watermark; the last stable offset for read_committed
-2          1        the log start
-3          7        the record with the greatest timestamp
-4          8        the log start: the whole log is local
-5          9        offset -1: there is no tiered storage
-6          11       offset -1: there is no tiered storage
==========  =======  ======================================================

Behaviour: a special timestamp of a later version is UNSUPPORTED_VERSION, a partition named twice INVALID_REQUEST. Without a match,
timestamp and offset are -1. The epoch is that of the record. A consumer's request waits for a flush in progress:
``partition_requests.py``.

Consumers have replica id -1. For other replica ids -1 is the log end, and a look-up by time also finds records above the high watermark.
With replica id -2, a tool that compares replicas, followers answer too.

Source: KIP-79, KIP-320, KIP-734, KIP-405, KIP-1005, KIP-1023; Kafka's Partition.fetchOffsetForTimestamp (replica ids).
"""

from collections import Counter
from collections.abc import Generator

from ottla.broker.apis.partition_requests import when_settled
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
AT_THE_START = (EARLIEST, EARLIEST_LOCAL)
EPOCH_SINCE = 4
#: Replica ids of a consumer, and of a tool that compares replicas.
CONSUMER, DEBUGGING = -1, -2
TOPICS = REQUIREMENTS[2].parts["topics"]
#: What a partition weighs in a turn: by time, it is looked up in an index and in batches.
WEIGHT, WEIGHT_BY_TIME = 2, 10
#: Before this version there is no OFFSET_NOT_AVAILABLE.
UNAVAILABLE_SINCE = 5
#: First version of each special timestamp.
SINCE = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


def refuse(call: RequestArrived[ListOffsetsRequest], error: KafkaError) -> ListOffsetsResponse:
    topics = [
        ListOffsetsTopicResponse(name=topic.name, partitions=[_refused(ask, error) for ask in topic.partitions])
        for topic in call.body.topics
    ]
    return ListOffsetsResponse(topics=topics)


@handles(ListOffsetsRequest, (1, 11), refuse=refuse)
def list_offsets(node: Node, call: RequestArrived[ListOffsetsRequest]) -> ListOffsetsResponse | Deferred:
    asks = ((topic.name, ask) for topic in call.body.topics for ask in topic.partitions)
    waits = call.body.replica_id == CONSUMER
    about = ((topic, ask.partition_index) for topic, ask in asks if waits and ask.timestamp not in AT_THE_START)
    return when_settled(node, call, about, lambda: node.context.turns.answer(call, _answer(node, call)))


def _answer(node: Node, call: RequestArrived[ListOffsetsRequest]) -> Generator[int, None, ListOffsetsResponse]:
    request = call.body
    asked: dict[str, dict[int, ListOffsetsPartition]] = {}
    repeated: set[tuple[str, int]] = set()
    for named in request.topics:
        earlier, last = asked.get(named.name, {}), {ask.partition_index: ask for ask in named.partitions}
        if earlier or len(last) < len(named.partitions):
            times = Counter(ask.partition_index for ask in named.partitions)
            repeated |= {(named.name, number) for number, count in times.items() if count > 1 or number in earlier}
            last = earlier | last
        asked[named.name] = last
        yield 1 + len(last) // 10
    response = ListOffsetsResponse()
    for topic, partitions in asked.items():
        refused = node.context.refusals(call, TOPICS, (topic,)).get(topic)
        answers: list[ListOffsetsPartitionResponse] = []
        response.topics.append(ListOffsetsTopicResponse(name=topic, partitions=answers))
        for ask in partitions.values():
            if refused is not None:
                # To raise it again and again would lengthen its traceback each time.
                answers.append(_refused(ask, refused))
                yield WEIGHT
                continue
            try:
                if (topic, ask.partition_index) in repeated:
                    raise errors.InvalidRequest(f"the request names partition {topic}-{ask.partition_index} more than once")
                answers.append(_look_up(node, call, topic, ask))
            except KafkaError as error:
                answers.append(_refused(ask, error))
            yield WEIGHT if ask.timestamp < 0 else WEIGHT_BY_TIME
    return response


def _look_up(node: Node, call: RequestArrived[ListOffsetsRequest], topic: str, ask: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
    replica_id = call.body.replica_id
    find = node.partitions.readable if replica_id == DEBUGGING else node.partitions.leader
    replica = find(topic, ask.partition_index)
    replica.check_epoch(ask.current_leader_epoch)
    if ask.timestamp < 0 and call.api_version < SINCE.get(ask.timestamp, 1 << 15):
        raise errors.UnsupportedVersion(f"ListOffsets version {call.api_version} knows no timestamp {ask.timestamp}")
    if replica_id != CONSUMER:
        upto: int = replica.log.end_offset
    else:
        upto = replica.readable_end(call.body.isolation_level)
        if isinstance(replica, Leader) and not replica.knows_watermark and ask.timestamp not in AT_THE_START:
            unknown = f"the high watermark of {replica.partition} is not known yet in epoch {replica.epoch}; try again"
            raise errors.OffsetNotAvailable(unknown) if call.api_version >= UNAVAILABLE_SINCE else errors.LeaderNotAvailable(unknown)
    try:
        timestamp, offset, epoch = _found(replica, ask.timestamp, upto)
    except OSError as error:
        node.partitions.directory_failed(replica.directory.root, str(error))
        raise errors.KafkaStorageError(f"the log directory of {replica.partition} failed: {error}") from error
    found = ListOffsetsPartitionResponse(partition_index=ask.partition_index, timestamp=timestamp, offset=offset)
    if call.api_version >= EPOCH_SINCE:
        found.leader_epoch = epoch
    return found


def _found(replica: Leader | Follower, timestamp: int, upto: int) -> tuple[int, int, int]:
    """Timestamp, offset and leader epoch; -1 each without a record."""
    log = replica.log
    match timestamp:
        case -1:
            return -1, upto, replica.epoch
        case -2 | -4:
            return -1, log.start_offset, log.epoch_at(log.start_offset)
        case -5 | -6:
            return -1, -1, -1
        case -3:
            found = log.max_timestamp(upto)
        case _:
            found = log.offset_for_time(timestamp, upto=upto)
    return (found.timestamp, found.offset, found.epoch) if found is not None else (-1, -1, -1)


def _refused(ask: ListOffsetsPartition, error: KafkaError) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=ask.partition_index, error_code=error.code)
