"""Responses of a stopping broker."""

from cluster import Cluster

from ottla.base.ids import ConnectionId
from ottla.broker import effects, events
from ottla.wire.messages import MetadataRequest


def test_a_broker_that_stops_closes_on_new_requests_instead_of_naming_no_brokers() -> None:
    broker = Cluster().brokers[1]
    node = broker.node
    node.stop(node.context.now_ms)
    request = events.RequestArrived(
        connection=ConnectionId(77), correlation_id=1, api_key=3, api_version=12, client_id=None, body=MetadataRequest(topics=None)
    )
    asked = node.step(request, node.context.now_ms)
    assert [type(effect) for effect in asked] == [effects.Close]
