"""ElectLeaders: on the controller; preferred or unclean leader election.

Behaviour: each partition succeeds or fails alone.

==================  ==========================================  =============================================
partition           preferred (type 0)                          unclean (type 1)
==================  ==========================================  =============================================
does not exist      UNKNOWN_TOPIC_OR_PARTITION                  UNKNOWN_TOPIC_OR_PARTITION
needs no election   led by its first replica:                   led by a live broker:
                    ELECTION_NOT_NEEDED                         ELECTION_NOT_NEEDED
impossible          first replica down, or not in sync:         no replica is alive:
                    PREFERRED_LEADER_NOT_AVAILABLE              ELIGIBLE_LEADERS_NOT_AVAILABLE
elected             the first replica leads, in a new epoch     a member of the ISR leads, else any replica:
                                                                records may be lost
==================  ==========================================  =============================================

Null partitions mean all; those that need no election are then omitted. Answered when the store and this broker's image have the new states.
Versions: 0 has only preferred elections; 1 adds types, 2 is flexible.

Source: KIP-183, KIP-460.
"""

from collections.abc import Iterable

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op
from ottla.broker.apis.store_writes import Writes, note
from ottla.broker.controller import election
from ottla.broker.controller.election_queue import PORTION, change
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata.image import Image
from ottla.broker.node import Node
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, PartitionResult, ReplicaElectionResult

PREFERRED, UNCLEAN = 0, 1


def refuse(call: RequestArrived[ElectLeadersRequest], error: KafkaError) -> ElectLeadersResponse:
    asked = ((topic.topic, number) for topic in call.body.topic_partitions or () for number in topic.partitions)
    results = [(topic, _result(number, error)) for topic, number in asked]
    # Version 0 has no error of the whole request.
    return _response(results, error_code=error.code if call.api_version > 0 else 0)


@handles(ElectLeadersRequest, (0, 2), refuse=refuse, at_controller=True)
def elect_leaders(node: Node, call: RequestArrived[ElectLeadersRequest]) -> ElectLeadersResponse | Deferred:
    request = call.body
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise errors.InvalidRequest(f"there is no election of type {request.election_type}")
    image, everything = node.context.image, request.topic_partitions is None
    results: dict[TopicPartition, PartitionResult] = {}
    wanted: dict[TopicPartition, PartitionState] = {}
    for partition in _asked(image, request):
        result = _result(partition.partition)
        try:
            wanted[partition] = _elected(node, partition, request.election_type)
        except errors.ElectionNotNeeded as error:
            if everything:
                continue
            result = _result(partition.partition, error)
        except KafkaError as error:
            result = _result(partition.partition, error)
        results[partition] = result
    writes = Writes(node, call)
    response = _response(_in_order(request, results))
    names = list(wanted)
    for first in range(0, len(names), PORTION):
        _write(node, writes, {name: results[name] for name in names[first : first + PORTION]}, wanted, request.election_type)
    return writes.answer_when_done(response, request.timeout_ms)


def _asked(image: Image, request: ElectLeadersRequest) -> Iterable[TopicPartition]:
    if request.topic_partitions is None:
        return [TopicPartition(topic.name, number) for topic in image.topics.values() for number in topic.replicas]
    return dict.fromkeys(TopicPartition(topic.topic, number) for topic in request.topic_partitions for number in topic.partitions)


def _elected(node: Node, partition: TopicPartition, kind: int) -> PartitionState:
    """The state with the requested leader. Raises: KafkaError with the reason."""
    image, options = node.context.image, node.context.topic_options(partition.topic)
    topic = image.topics.get(partition.topic)
    state = topic.states.get(partition.partition) if topic is not None else None
    if topic is None or state is None or partition.partition not in topic.replicas:
        raise errors.UnknownTopicOrPartition(f"there is no partition {partition}")
    if kind == PREFERRED:
        first = topic.replicas[partition.partition][0]
        if state.leader == first:
            raise errors.ElectionNotNeeded(f"{partition} is led by broker {first}, which it prefers")
        found = election.preferred(image, topic, partition.partition, options=options)
        if found is None:
            raise errors.PreferredLeaderNotAvailable(f"{partition} prefers broker {first}, which is away or not in sync")
        return found
    if state.leader in image.brokers:
        raise errors.ElectionNotNeeded(f"{partition} is led by broker {state.leader}")
    found = election.election(image, topic, partition.partition, options=options)
    if found is None or found.leader < 0:
        found = election.unclean_election(election.ElectionContext.of(image, topic, partition.partition, options))
    if found is None or found.leader < 0:
        raise errors.EligibleLeadersNotAvailable(f"no broker with a replica of {partition} is alive")
    return found


def _write(
    node: Node, writes: Writes, results: dict[TopicPartition, PartitionResult], wanted: dict[TopicPartition, PartitionState], kind: int
) -> None:
    """Writes new states together; after a conflict, those that are still needed."""
    image = node.context.image

    def done(error: KafkaError | None) -> None:
        if error is not None:
            for result in results.values():
                if not result.error_code:
                    note(result, error)

    def again() -> list[Op]:
        ops = []
        for partition, result in results.items():
            try:
                ops.append(change(image.topics[partition.topic], partition.partition, _elected(node, partition, kind)))
            except (errors.ElectionNotNeeded, KeyError):
                continue
            except KafkaError as error:
                note(result, error)
        return ops

    writes.add([change(image.topics[name.topic], name.partition, wanted[name]) for name in results], done, again=again)


def _result(number: int, error: KafkaError | None = None) -> PartitionResult:
    if error is None:
        return PartitionResult(partition_id=number)
    return PartitionResult(partition_id=number, error_code=error.code, error_message=str(error))


def _in_order(request: ElectLeadersRequest, results: dict[TopicPartition, PartitionResult]) -> Iterable[tuple[str, PartitionResult]]:
    """Topic and result of each partition in the request, as often as it is named."""
    if request.topic_partitions is None:
        return [(partition.topic, result) for partition, result in results.items()]
    asked = (TopicPartition(topic.topic, number) for topic in request.topic_partitions for number in topic.partitions)
    return [(partition.topic, results[partition]) for partition in asked]


def _response(results: Iterable[tuple[str, PartitionResult]], error_code: int = 0) -> ElectLeadersResponse:
    topics: dict[str, ReplicaElectionResult] = {}
    for topic, result in results:
        found = topics.setdefault(topic, ReplicaElectionResult(topic=topic, partition_result=[]))
        found.partition_result.append(result)
    return ElectLeadersResponse(error_code=error_code, replica_election_results=list(topics.values()))
