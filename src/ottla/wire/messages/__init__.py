"""Every message, one module per Kafka API, under Kafka's own names; `API` is the table of the APIs by key.

All structures can be imported from here, except those whose name another structure has too. Those are imported from the module of their
API; a module that has one lists its other structures in `__all__`.
"""

from dataclasses import dataclass

import msgspec

from ottla.wire.declare import SCHEMAS, is_request, schema_of
from ottla.wire.messages.add_offsets_to_txn import *
from ottla.wire.messages.add_partitions_to_txn import *
from ottla.wire.messages.alter_client_quotas import *
from ottla.wire.messages.alter_configs import *
from ottla.wire.messages.alter_partition import *
from ottla.wire.messages.alter_partition_reassignments import *
from ottla.wire.messages.alter_replica_log_dirs import *
from ottla.wire.messages.alter_user_scram_credentials import *
from ottla.wire.messages.api_versions import *
from ottla.wire.messages.consumer_group_describe import *
from ottla.wire.messages.consumer_group_heartbeat import *
from ottla.wire.messages.consumer_protocol import *
from ottla.wire.messages.create_acls import *
from ottla.wire.messages.create_delegation_token import *
from ottla.wire.messages.create_partitions import *
from ottla.wire.messages.create_topics import *
from ottla.wire.messages.delete_acls import *
from ottla.wire.messages.delete_groups import *
from ottla.wire.messages.delete_records import *
from ottla.wire.messages.delete_topics import *
from ottla.wire.messages.describe_acls import *
from ottla.wire.messages.describe_client_quotas import *
from ottla.wire.messages.describe_cluster import *
from ottla.wire.messages.describe_configs import *
from ottla.wire.messages.describe_delegation_token import *
from ottla.wire.messages.describe_groups import *
from ottla.wire.messages.describe_log_dirs import *
from ottla.wire.messages.describe_producers import *
from ottla.wire.messages.describe_quorum import *
from ottla.wire.messages.describe_topic_partitions import *
from ottla.wire.messages.describe_transactions import *
from ottla.wire.messages.describe_user_scram_credentials import *
from ottla.wire.messages.elect_leaders import *
from ottla.wire.messages.end_txn import *
from ottla.wire.messages.envelope import *
from ottla.wire.messages.expire_delegation_token import *
from ottla.wire.messages.fetch import *
from ottla.wire.messages.find_coordinator import *
from ottla.wire.messages.get_telemetry_subscriptions import *
from ottla.wire.messages.heartbeat import *
from ottla.wire.messages.incremental_alter_configs import *
from ottla.wire.messages.init_producer_id import *
from ottla.wire.messages.join_group import *
from ottla.wire.messages.leader_hints import *
from ottla.wire.messages.leave_group import *
from ottla.wire.messages.list_config_resources import *
from ottla.wire.messages.list_groups import *
from ottla.wire.messages.list_offsets import *
from ottla.wire.messages.list_partition_reassignments import *
from ottla.wire.messages.list_transactions import *
from ottla.wire.messages.metadata import *
from ottla.wire.messages.offset_commit import *
from ottla.wire.messages.offset_delete import *
from ottla.wire.messages.offset_fetch import *
from ottla.wire.messages.offset_for_leader_epoch import *
from ottla.wire.messages.produce import *
from ottla.wire.messages.push_telemetry import *
from ottla.wire.messages.renew_delegation_token import *
from ottla.wire.messages.sasl_authenticate import *
from ottla.wire.messages.sasl_handshake import *
from ottla.wire.messages.sync_group import *
from ottla.wire.messages.txn_offset_commit import *
from ottla.wire.messages.unregister_broker import *
from ottla.wire.messages.update_features import *
from ottla.wire.messages.write_txn_markers import *

#: The release of Apache Kafka whose versions of APIs, settings and behaviour are the reference.
KAFKA_RELEASE = "4.4"


@dataclass(frozen=True, slots=True)
class ApiSchema:
    """One API: its two messages and the versions they are declared for."""

    key: int
    name: str
    request: type[msgspec.Struct]
    response: type[msgspec.Struct]
    #: First and last final version, both included: what a broker may advertise.
    versions: tuple[int, int]
    #: The first version with compact lengths and tagged fields; None when there is none.
    flexible_since: int | None

    def flexible(self, version: int) -> bool:
        """Whether this version is flexible; true of versions yet to come as well."""
        return self.flexible_since is not None and version >= self.flexible_since


def _api(key: int, request: type[msgspec.Struct], response: type[msgspec.Struct]) -> ApiSchema:
    schema = schema_of(request)
    assert schema == schema_of(response), f"{request.__name__} and its response agree on key and versions"
    name = request.__name__.removesuffix("Request")
    return ApiSchema(key, name, request, response, (schema.since, schema.stable_until), schema.flexible_since)


def _apis() -> dict[int, ApiSchema]:
    """The APIs of the declared messages: ``NAMERequest`` and ``NAMEResponse`` belong together."""
    by_name = {cls.__name__: cls for cls in SCHEMAS}
    requests = {schema.key: cls for cls, schema in SCHEMAS.items() if schema.key is not None and is_request(cls)}
    return {key: _api(key, cls, by_name[cls.__name__.removesuffix("Request") + "Response"]) for key, cls in sorted(requests.items())}


API: dict[int, ApiSchema] = _apis()
