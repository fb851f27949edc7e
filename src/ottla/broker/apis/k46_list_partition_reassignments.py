"""ListPartitionReassignments: on the controller; partitions with adding or removing replicas.

Behaviour: other partitions are omitted. Source: KIP-455.
"""

from ottla.broker.controller.reassignment import is_moving
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


@handles(ListPartitionReassignmentsRequest, (0, 0), refuse=whole_error(ListPartitionReassignmentsResponse), at_controller=True)
def list_partition_reassignments(node: Node, call: RequestArrived[ListPartitionReassignmentsRequest]) -> ListPartitionReassignmentsResponse:
    request = call.body
    topics = node.context.image.topics
    if request.topics is None:
        asked = [(name, sorted({**topic.adding, **topic.removing})) for name, topic in topics.items()]
    else:
        asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
    response = ListPartitionReassignmentsResponse()
    for name, numbers in asked:
        topic = topics.get(name)
        if topic is None:
            continue
        found = [
            OngoingPartitionReassignment(
                partition_index=number,
                replicas=list(topic.replicas[number]),
                adding_replicas=list(topic.adding.get(number, ())),
                removing_replicas=list(topic.removing.get(number, ())),
            )
            for number in numbers
            if number in topic.replicas and is_moving(topic, number)
        ]
        if found:
            response.topics.append(OngoingTopicReassignment(name=name, partitions=found))
    return response
