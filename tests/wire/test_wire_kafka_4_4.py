"""Messages of Kafka 4.4, against bytes that kafka-clients 4.4.0 wrote."""

from __future__ import annotations

import msgspec
import pytest

from ottla.wire.compile import decode, encode
from ottla.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from ottla.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

WRITTEN_BY_KAFKA: dict[str, tuple[msgspec.Struct, int, str]] = {
    "ApiVersionsRequest": (
        ApiVersionsRequest(client_software_name="name", client_software_version="1", cluster_id="cluster", node_id=7),
        5,
        "056e616d65023108636c75737465720000000700",
    ),
    "ApiVersionsResponse": (
        ApiVersionsResponse(
            error_code=129,
            api_keys=[ApiVersion(api_key=18, min_version=0, max_version=5)],
            supported_features=[SupportedFeatureKey(name="group.version", min_version=0, max_version=1)],
            finalized_features_epoch=3,
            finalized_features=[FinalizedFeatureKey(name="group.version", max_version_level=1, min_version_level=1)],
        ),
        5,
        "0081020012000000050000000000030014020e67726f75702e76657273696f6e000000010001"
        "0800000000000000030214020e67726f75702e76657273696f6e0001000100",
    ),
    "DeleteGroupsRequest": (DeleteGroupsRequest(groups_names=["g"]), 3, "02026700"),
    "DeleteGroupsResponse": (
        DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=69, error_message="no such group")]),
        3,
        "0000000002026700450e6e6f20737563682067726f75700000",
    ),
}


@pytest.mark.parametrize("name", WRITTEN_BY_KAFKA)
def test_a_message_of_kafka_4_4_has_kafkas_bytes(name: str) -> None:
    message, version, data = WRITTEN_BY_KAFKA[name]
    assert encode(message, version).hex() == data
    assert decode(type(message), bytes.fromhex(data), version) == message
