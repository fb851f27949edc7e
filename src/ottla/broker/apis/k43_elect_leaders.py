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

from collections.abc import Generator, Iterable

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
#: Of a partition in a turn.
WEIGHT = 3


def refuse(call: RequestArrived[ElectLeadersRequest], error: KafkaError) -> ElectLeadersResponse:
    topics: dict[str, ReplicaElectionResult] = {}
    code, message = error.code, str(error)
    for topic in call.body.topic_partitions or ():
        for number in topic.partitions:
            _add(topics, topic.topic, PartitionResult(partition_id=number, error_code=code, error_message=message))
    # Version 0 has no error of the whole request.
    return ElectLeadersResponse(error_code=code if call.api_version > 0 else 0, replica_election_results=list(topics.values()))


@handles(ElectLeadersRequest, (0, 2), refuse=refuse, at_controller=True)
def elect_leaders(node: Node, call: RequestArrived[ElectLeadersRequest]) -> ElectLeadersResponse | Deferred:
    request = call.body
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise errors.InvalidRequest(f"there is no election of type {request.election_type}")
    writes = Writes(node, call)
    return writes.answer_in_turns(_work(node, call, writes), request.timeout_ms)


def _work(node: Node, call: RequestArrived[ElectLeadersRequest], writes: Writes) -> Generator[int, None, ElectLeadersResponse]:
    request = call.body
    everything, kind = request.topic_partitions is None, request.election_type
    topics: dict[str, ReplicaElectionResult] = {}
    results: dict[TopicPartition, PartitionResult] = {}
    #: The next partitions to write.
    wanted: dict[TopicPartition, PartitionState] = {}
    for topic, numbers in _asked(node.context.image, request):
        for number in numbers:
            yield WEIGHT
            partition = TopicPartition(topic, number)
            result = results.get(partition)
            if result is None:
                result = PartitionResult(partition_id=number)
                try:
                    wanted[partition] = _elected(node, partition, kind)
                except errors.ElectionNotNeeded as error:
                    if everything:
                        continue
                    note(result, error)
                except KafkaError as error:
                    note(result, error)
                results[partition] = result
                if len(wanted) == PORTION:
                    _write(node, writes, {name: results[name] for name in wanted}, wanted, kind)
                    wanted = {}
            _add(topics, topic, result)
    if wanted:
        _write(node, writes, {name: results[name] for name in wanted}, wanted, kind)
    return ElectLeadersResponse(replica_election_results=list(topics.values()))


def _asked(image: Image, request: ElectLeadersRequest) -> Iterable[tuple[str, Iterable[int]]]:
    """Partitions of topics, as often as the request names them. The image may change while they are read."""
    if request.topic_partitions is not None:
        return ((topic.topic, topic.partitions) for topic in request.topic_partitions)
    names = list(image.topics)
    return ((name, list(image.topics[name].replicas)) for name in names if name in image.topics)


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


def _add(topics: dict[str, ReplicaElectionResult], topic: str, result: PartitionResult) -> None:
    found = topics.get(topic)
    if found is None:
        found = topics[topic] = ReplicaElectionResult(topic=topic, partition_result=[])
    found.partition_result.append(result)
