"""DescribeCluster: live brokers and the controller.

Behaviour: brokers with the listener that the client uses appear at the addresses of that listener, as in Metadata. There is no separate
controller listener, so endpoint type 2 is MISMATCHED_ENDPOINT_TYPE; any other type except 1 is UNSUPPORTED_ENDPOINT_TYPE. Unregistered
brokers are unknown, so none is listed as fenced. Source: KIP-700, KIP-919, KIP-1073.
"""

from ottla.broker.apis.authorized_operations import cluster_operations
from ottla.broker.apis.partition_leaders import address_for
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.metadata.image import NO_LEADER
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2
OPERATIONS = REQUIREMENTS[60].parts["cluster operations"]


@handles(DescribeClusterRequest, (0, 2), refuse=whole_error(DescribeClusterResponse))
def describe_cluster(node: Node, call: RequestArrived[DescribeClusterRequest]) -> DescribeClusterResponse:
    request = call.body
    if request.endpoint_type == CONTROLLERS:
        raise errors.MismatchedEndpointType("this is a broker; controllers have no listener of their own")
    if request.endpoint_type != BROKERS:
        raise errors.UnsupportedEndpointType(f"there are no endpoints of type {request.endpoint_type}")
    controller = node.context.image.controller
    response = DescribeClusterResponse(
        cluster_id=node.context.cluster_id,
        controller_id=controller if controller in node.context.image.brokers and controller is not None else NO_LEADER,
        brokers=[
            DescribeClusterBroker(broker_id=broker.broker, host=address[0], port=address[1], rack=broker.rack)
            for broker in node.context.image.brokers.values()
            if (address := address_for(node, call, broker)) is not None
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(node, call, OPERATIONS)
    return response
