"""Reads the metadata of a Kafka 3.x cluster with ZooKeeper: from the ensemble, or from a file to which its nodes were exported.

The file is a JSON object of path -> text, with paths below the chroot and null for an empty node. ``ottla import znodes`` writes it.
Nothing is written to ZooKeeper. Paths and contents are those of ``store/layout.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ottla.server.kafka_import.kafka_metadata import CannotImport, KafkaMetadata, SourcePartition, SourceTopic
from ottla.store import layout, layout_quotas

TOKENS = "/delegation_token/tokens"
#: Nodes that are read with everything below them.
ROOTS = (
    layout.CLUSTER_ID, layout.BROKER_IDS, layout.TOPICS, *(f"{layout.CONFIG}/{kind}" for kind in layout.CONFIG_TYPES),
    layout.DELETE_TOPICS, layout.PRODUCER_ID_BLOCK, layout.ACLS, layout.EXTENDED_ACLS, TOKENS,
)  # fmt: skip
#: How long a connection may take.
TIMEOUT_S = 15.0
_SCRAM = "SCRAM-"


def exported_nodes(path: Path) -> dict[str, str | None]:
    """The nodes in a file. Raises: CannotImport."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str | None])
    except (OSError, msgspec.DecodeError) as error:
        raise CannotImport(f"cannot read the znodes in {path}: {error}; write the file with: ottla import znodes") from None


def fetched_nodes(address: str) -> dict[str, str | None]:
    """The nodes of an ensemble, ``HOST:PORT[,HOST:PORT...][/chroot]``. Writes nothing. Raises: CannotImport."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts=address, timeout=TIMEOUT_S, read_only=True)
    nodes: dict[str, str | None] = {}
    try:
        client.start(timeout=TIMEOUT_S)
        waiting = list(ROOTS)
        while waiting:
            path = waiting.pop()
            try:
                data, _ = client.get(path)
                waiting += [f"{path}/{child}" for child in client.get_children(path)]
            except NoNodeError:
                continue
            nodes[path] = data.decode() if data else None
    except (KazooException, KazooTimeoutError, UnicodeDecodeError, ValueError) as error:
        raise CannotImport(f"cannot read Kafka's nodes from ZooKeeper at {address}: {type(error).__name__}: {error}") from None
    finally:
        client.stop()
        client.close()
    if layout.TOPICS not in nodes:
        raise CannotImport(f"ZooKeeper at {address} has no nodes of Kafka; check the address and the chroot of zookeeper.connect")
    return dict(sorted(nodes.items()))


def metadata_of(nodes: Mapping[str, str | None], origin: str) -> KafkaMetadata:
    """The metadata in the nodes. Raises: CannotImport."""
    contents = {path: text.encode() for path, text in nodes.items() if text}
    found = KafkaMetadata(origin)
    running = sorted(int(number) for path in nodes if (number := path.removeprefix(f"{layout.BROKER_IDS}/")).isdigit())
    if running:
        brokers = ", ".join(map(str, running))
        raise CannotImport(f"brokers {brokers} of Kafka are registered in {origin}: stop them, and import when their sessions ended")
    deleted = {name for path in nodes if (name := layout.deleted_topic_of(path)) is not None}
    try:
        if layout.CLUSTER_ID in contents:
            found.cluster_id = layout.decode_cluster_id(contents[layout.CLUSTER_ID])
        if layout.PRODUCER_ID_BLOCK in contents:
            found.next_producer_id = layout.decode_producer_id_block(contents[layout.PRODUCER_ID_BLOCK]).end + 1
        for path, data in contents.items():
            name = layout.topic_of(path)
            if name is not None and name not in deleted:
                found.topics[name] = _topic(name, layout.decode_topic(data), contents)
            elif path.startswith(f"{layout.CONFIG}/"):
                _take_config(found, path, layout.decode_config(data))
            elif (pattern := layout.acl_of(path)) is not None:
                found.acls[pattern] = list(layout.decode_acls(data))
    except (layout.MalformedNode, ValueError) as error:
        raise CannotImport(f"{origin}: {error}") from None
    if not found.topics and layout.TOPICS not in nodes:
        raise CannotImport(f"{origin} has no {layout.TOPICS}; export the nodes below Kafka's chroot with: ottla import znodes")
    found.count("delegation tokens", [path for path in nodes if path.startswith(f"{TOKENS}/")])
    found.count("topics that were being deleted", deleted)
    return found


def _topic(name: str, assignment: layout.TopicAssignment, contents: Mapping[str, bytes]) -> SourceTopic:
    """Raises: MalformedNode."""
    topic = SourceTopic(name, assignment.topic_id)
    for number, replicas in assignment.replicas.items():
        data = contents.get(layout.partition_state(name, number))
        if data is None:
            # Created, and no controller has elected a leader yet: there are no records.
            topic.partitions[number] = SourcePartition(replicas, replicas, -1, 0)
        else:
            state = layout.decode_partition_state(data)
            topic.partitions[number] = SourcePartition(replicas, state.isr, state.leader, state.leader_epoch)
    return topic


def _take_config(found: KafkaMetadata, path: str, texts: dict[str, str]) -> None:
    entity = layout.config_of(path)
    if entity is not None and entity[0] in ("topics", "brokers", "groups"):
        found.configs[entity] = texts
        return
    scram = [name for name in texts if name.startswith(_SCRAM)]
    found.count("SCRAM credentials", scram)
    owner = layout_quotas.quota_entity_of(path)
    quotas = {name: text for name, text in texts.items() if not name.startswith(_SCRAM)}
    if owner is not None and quotas:
        found.quotas[owner] = quotas
