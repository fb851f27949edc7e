"""Directories of Kafka, built by the tests, are imported: metadata log, znodes, plan, files."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.base.ids import TopicPartition
from ottla.broker.groups import records as group_records
from ottla.broker.transactions import records as transaction_records
from ottla.broker.transactions.states import TransactionState
from ottla.cli.import_.command import report
from ottla.log import checkpoints
from ottla.log.producer_snapshots import snapshot_file
from ottla.log.producer_state import Producer
from ottla.records.batch import patch
from ottla.records.build import build_batch
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, marker
from ottla.server.data_directory import STORE, CannotStart, LockedDirectory
from ottla.server.disk import RealDisk
from ottla.server.kafka_import import metadata_records as kinds
from ottla.server.kafka_import.carry_out import carry_out
from ottla.server.kafka_import.kafka_metadata import CannotImport
from ottla.server.kafka_import.metadata_log import read_metadata
from ottla.server.kafka_import.plan import ImportPlan, metadata_of_kraft, plan_import
from ottla.server.kafka_import.source import SourceDirectory, open_source
from ottla.server.kafka_import.verification import verify
from ottla.server.kafka_import.znodes import metadata_of
from ottla.store import layout, layout_quotas
from ottla.store.embedded.copies import read_store
from ottla.store.layout_quotas import QuotaEntity
from ottla.wire.codegen import uvarint
from ottla.wire.compile import encode
from ottla.wire.declare import Struct

CLUSTER = "04hFT5z9RUGY7MxnO0cuIQ"
ORDERS = bytes(range(16))
KEYS: dict[type[Any], int] = {kind: key for key, kind in kinds.TYPES.items()}


def metadata_value(record: Struct, version: int = 0) -> bytes:
    return uvarint(1) + uvarint(KEYS[type(record)]) + uvarint(version) + encode(record, version)


def metadata_batch(base: int, records: Sequence[Struct]) -> bytes:
    batch = build_batch([(0, None, metadata_value(record), ()) for record in records])
    return batch_at(bytearray(batch), base)


def batch_at(batch: bytearray, base: int, epoch: int = 0) -> bytes:
    patch(batch, base_offset=base, leader_epoch=epoch)
    return bytes(batch)


def data_batch(base: int, count: int = 2, epoch: int = 3) -> bytes:
    return batch_at(bytearray(build_batch([(1_000 + i, b"k", b"value %d" % (base + i), ()) for i in range(count)])), base, epoch)


def partition(number: int = 0, *, replicas: list[int], isr: list[int], epoch: int = 5, leader: int = 1) -> kinds.PartitionRecord:
    return kinds.PartitionRecord(partition_id=number, topic_id=ORDERS, replicas=replicas, isr=isr, leader=leader, leader_epoch=epoch)


def write_metadata(directory: Path, *batches: bytes) -> Path:
    log = directory / "__cluster_metadata-0"
    log.mkdir(parents=True)
    (log / f"{0:020}.log").write_bytes(b"".join(batches))
    return log


def kafka_directory(path: Path, node: int, *, segments: dict[int, list[bytes]], clean: bool = True, recovery_point: int = 0) -> Path:
    """A directory with partition orders-0."""
    log = path / "orders-0"
    log.mkdir(parents=True)
    (path / "meta.properties").write_text(f"version=1\nnode.id={node}\ncluster.id={CLUSTER}\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAg\n")
    (path / ".lock").touch()
    if clean:
        (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    for base, batches in segments.items():
        (log / f"{base:020}.log").write_bytes(b"".join(batches))
        (log / f"{base:020}.index").write_bytes(b"")
    (log / "partition.metadata").write_bytes(checkpoints.partition_metadata_file(ORDERS))
    (log / "leader-epoch-checkpoint").write_bytes(checkpoints.epochs_file([(3, 0)]))
    orders = TopicPartition("orders", 0)
    (path / "recovery-point-offset-checkpoint").write_bytes(checkpoints.offsets_file({orders: recovery_point}))
    (path / "replication-offset-checkpoint").write_bytes(checkpoints.offsets_file({orders: recovery_point}))
    return path


TWO_SEGMENTS = {0: [data_batch(0), data_batch(2)], 4: [data_batch(4)]}


def one_broker(path: Path, *, clean: bool = True, extra: Iterable[Struct] = ()) -> Path:
    kafka_directory(path, 1, segments=TWO_SEGMENTS, clean=clean, recovery_point=6 if clean else 0)
    records = [
        kinds.RegisterBrokerRecord(broker_id=1),
        kinds.TopicRecord(name="orders", topic_id=ORDERS),
        partition(replicas=[1], isr=[1]),
        kinds.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="77"),
        kinds.ProducerIdsRecord(broker_id=1, next_producer_id=4_000),
        *extra,
    ]
    write_metadata(path, metadata_batch(0, records))
    return path


def plan_of(sources: list[SourceDirectory], **options: bool) -> ImportPlan:
    try:
        return plan_import(sources, metadata_of_kraft(sources), **options)
    finally:
        for source in sources:
            source.release()


def fingerprint(path: Path) -> dict[str, tuple[int, str]]:
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {str(file): (file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files}


def ignore(done: int) -> None: ...


def acl_record(id: bytes, principal: str) -> kinds.AccessControlEntryRecord:
    """The principal may read topics that begin with ord."""
    return kinds.AccessControlEntryRecord(
        id=id, resource_type=2, resource_name="ord", pattern_type=4, principal=principal, host="*", operation=3, permission_type=3
    )


def test_changes_and_removals_in_the_metadata_log_are_applied(tmp_path: Path) -> None:
    other = bytes(reversed(ORDERS))
    records: list[Struct] = [
        kinds.TopicRecord(name="orders", topic_id=ORDERS),
        partition(replicas=[1, 2], isr=[1, 2]),
        kinds.TopicRecord(name="gone", topic_id=other),
        kinds.ConfigRecord(resource_type=2, resource_name="gone", name="retention.ms", value="1"),
        kinds.RemoveTopicRecord(topic_id=other),
        kinds.PartitionChangeRecord(partition_id=0, topic_id=ORDERS, isr=[2], leader=2),
        acl_record(ORDERS, "User:alice"),
        acl_record(other, "User:bob"),
        kinds.RemoveAccessControlEntryRecord(id=other),
    ]
    found = read_metadata(write_metadata(tmp_path, metadata_batch(0, records)))
    assert list(found.topics) == ["orders"] and not found.configs
    state = found.topics["orders"].partitions[0]
    assert (state.isr, state.leader, state.leader_epoch) == ((2,), 2, 6)
    [(pattern, entries)] = found.acls.items()
    assert (str(pattern), list(map(str, entries))) == ("Topic:PREFIXED:ord", ["Allow User:alice from * Read"])
    assert found.without_equal == {}


def test_an_access_rule_of_an_unknown_kind_is_not_left_out(tmp_path: Path) -> None:
    unknown = acl_record(ORDERS, "User:alice")
    unknown.operation = 99
    with pytest.raises(CannotImport, match="an access rule of User:alice has a value that this version"):
        read_metadata(write_metadata(tmp_path, metadata_batch(0, [unknown])))


def test_records_of_an_aborted_or_unfinished_metadata_transaction_are_left_out(tmp_path: Path) -> None:
    kept = kinds.TopicRecord(name="orders", topic_id=ORDERS)
    records: list[Struct] = [
        kept,
        kinds.BeginTransactionRecord(),
        kinds.TopicRecord(name="aborted"),
        kinds.AbortTransactionRecord(),
    ]
    records += [kinds.BeginTransactionRecord(), kinds.RegisterBrokerRecord(broker_id=3), kinds.EndTransactionRecord()]
    records += [kinds.BeginTransactionRecord(), kinds.TopicRecord(name="unfinished")]
    found = read_metadata(write_metadata(tmp_path, metadata_batch(0, records)))
    assert list(found.topics) == ["orders"] and found.brokers == {3}


def test_the_metadata_log_is_read_from_the_snapshot_on_and_up_to_a_torn_batch(tmp_path: Path) -> None:
    log = write_metadata(tmp_path)
    first = metadata_batch(10, [kinds.TopicRecord(name="orders", topic_id=ORDERS)])
    (log / f"{0:020}.log").unlink()
    torn = metadata_batch(11, [kinds.TopicRecord(name="torn")])[:-1]
    (log / f"{10:020}.log").write_bytes(first + torn)
    snapshot = metadata_batch(0, [kinds.RegisterBrokerRecord(broker_id=4)])
    footer = batch_at(bytearray(build_batch([(0, b"\x00\x00\x00\x04", b"\x00\x00", ())], control=True)), 1)
    (log / f"{10:020}-{2:010}.checkpoint").write_bytes(snapshot + footer)
    (log / f"{12:020}-{2:010}.checkpoint").write_bytes(snapshot)
    found = read_metadata(log)
    assert list(found.topics) == ["orders"] and found.brokers == {4}


def test_a_gap_between_snapshot_and_metadata_log_is_refused(tmp_path: Path) -> None:
    log = write_metadata(tmp_path)
    (log / f"{0:020}.log").unlink()
    (log / f"{10:020}.log").write_bytes(metadata_batch(10, [kinds.TopicRecord(name="orders")]))
    with pytest.raises(CannotImport, match="offsets from 0 on are missing"):
        read_metadata(log)


def test_an_import_is_equal_to_its_source_and_does_not_change_it(tmp_path: Path) -> None:
    source = one_broker(tmp_path / "kafka", extra=[acl_record(ORDERS, "User:alice")])
    before = fingerprint(source)
    plan = plan_of([open_source(source)])
    done = carry_out(plan, tmp_path / "data", copy=False, progress=ignore)
    assert done.linked_bytes == (source / "orders-0" / f"{0:020}.log").stat().st_size
    first, last = (tmp_path / "data" / "broker-1" / "orders-0" / f"{base:020}.log" for base in (0, 4))
    assert first.stat().st_nlink == 2 and last.stat().st_nlink == 1
    contents = read_store(tmp_path / "data" / STORE)
    assert contents is not None
    rows = {path: data for path, (data, _, _) in contents.rows.items()}
    state = layout.decode_partition_state(rows[layout.partition_state("orders", 0)])
    assert (state.leader, state.leader_epoch, state.isr) == (1, 6, (1,))
    assert layout.decode_topic(rows[layout.topic("orders")]).topic_id == ORDERS
    assert layout.decode_config(rows[layout.config("topics", "orders")]) == {"retention.ms": "77"}
    assert layout.decode_producer_id_block(rows[layout.PRODUCER_ID_BLOCK]).end == 3_999
    assert layout.decode_cluster_id(rows[layout.CLUSTER_ID]) == CLUSTER
    assert [entry.principal for entry in layout.decode_acls(rows["/kafka-acl-extended/prefixed/Topic/ord"])] == ["User:alice"]
    assert verify(plan, tmp_path / "data", progress=ignore).differences == []
    assert fingerprint(source) == before and not (tmp_path / "data.importing").exists()


def test_a_changed_byte_of_the_import_is_found(tmp_path: Path) -> None:
    plan = plan_of([open_source(one_broker(tmp_path / "kafka"))])
    carry_out(plan, tmp_path / "data", copy=True, progress=ignore)
    path = tmp_path / "data" / "broker-1" / "orders-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (difference,) = verify(plan, tmp_path / "data", progress=ignore).differences
    assert difference[0] == "orders-0 of broker 1" and "at offset 2" in difference[1]


def test_after_an_unclean_stop_segments_behind_the_recovery_point_are_copied(tmp_path: Path) -> None:
    plan = plan_of([open_source(one_broker(tmp_path / "kafka", clean=False))])
    done = carry_out(plan, tmp_path / "data", copy=False, progress=ignore)
    assert done.linked_bytes == 0
    assert not (tmp_path / "data" / "broker-1" / ".kafka_cleanshutdown").exists()


def test_a_failed_import_leaves_nothing(tmp_path: Path) -> None:
    plan = plan_of([open_source(one_broker(tmp_path / "kafka"))])

    def fails(done: int) -> None:
        raise OSError("the disk fails")

    with pytest.raises(OSError, match="the disk fails"):
        carry_out(plan, tmp_path / "data", copy=False, progress=fails)
    assert {path.name for path in tmp_path.iterdir()} == {"kafka"}


@pytest.mark.parametrize("name", ["orders-0/secret", f"orders-0/{0:020}.log", f"orders-0/{4:020}.log", "orders-0/partition.metadata"])
@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """A link of a directory from elsewhere could name any file of this machine, which would be copied or linked; a pipe never ends."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"of this machine")
    source = one_broker(tmp_path / "kafka")
    (source / name).unlink(missing_ok=True)
    match kind:
        case "link":
            (source / name).symlink_to(secret)
        case "pipe":
            os.mkfifo(source / name)
        case "directory":
            (source / name).mkdir()
    with pytest.raises(CannotImport, match="no regular file"):
        carry_out(plan_of([open_source(source)]), tmp_path / "ottla", copy=False, progress=ignore)
    assert not (tmp_path / "ottla").exists() and secret.stat().st_nlink == 1


def test_a_partition_on_another_disk_is_followed(tmp_path: Path) -> None:
    source = one_broker(tmp_path / "kafka")
    (source / "orders-0").rename(tmp_path / "elsewhere")
    (source / "orders-0").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    carry_out(plan_of([open_source(source)]), tmp_path / "ottla", copy=False, progress=ignore)
    assert (tmp_path / "ottla" / "broker-1" / "orders-0" / f"{4:020}.log").is_file()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("meta.properties", "it is damaged"),
        ("recovery-point-offset-checkpoint", "it is damaged"),
        ("orders-0/leader-epoch-checkpoint", "it is damaged"),
        (f"orders-0/{4:020}.log", "free space"),
    ],
)
def test_a_file_with_a_hole_of_a_petabyte_takes_neither_memory_nor_time(tmp_path: Path, name: str, why: str) -> None:
    source = one_broker(tmp_path / "kafka")
    with (source / name).open("r+b") as file:
        try:
            file.truncate(1 << 50)
        except OSError:
            file.truncate(1 << 43)
    with pytest.raises(CannotImport, match=why):
        carry_out(plan_of([open_source(source)]), tmp_path / "ottla", copy=False, progress=ignore)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (kinds.RemoveTopicRecord(topic_id=bytes(15) + b"x"), "is unknown"),
        (kinds.PartitionChangeRecord(partition_id=7, topic_id=ORDERS), "is unknown"),
        (kinds.TopicRecord(name="../../../kafka-acl/Topic", topic_id=bytes(15) + b"x"), "a topic name holds"),
        (kinds.TopicRecord(name="x" * 30_000, topic_id=bytes(15) + b"x"), "at most 249"),
    ],
    ids=["removal", "change", "path", "length"],
)
def test_metadata_that_contradicts_itself_is_refused_with_the_file(tmp_path: Path, record: Struct, why: str) -> None:
    source = one_broker(tmp_path / "kafka", extra=[record])
    with pytest.raises(CannotImport, match=rf"__cluster_metadata-0.*{why}"):
        plan_of([open_source(source)])


def test_a_directory_that_is_not_empty_is_not_imported_into(tmp_path: Path) -> None:
    plan = plan_of([open_source(one_broker(tmp_path / "kafka"))])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    with pytest.raises(CannotImport, match="is not empty"):
        carry_out(plan, tmp_path / "data", copy=False, progress=ignore)


def three_brokers(path: Path, ids: Sequence[int], isr: list[int]) -> list[Path]:
    """Three replicas of orders-0, of which the last one has the longest log."""
    paths = [kafka_directory(path / str(node), node, segments={0: [data_batch(0)]}, recovery_point=2) for node in ids[:2]]
    paths.append(kafka_directory(path / str(ids[2]), ids[2], segments={0: [data_batch(0), data_batch(2)]}, recovery_point=4))
    registered = [kinds.RegisterBrokerRecord(broker_id=node) for node in ids]
    topic = [kinds.TopicRecord(name="orders", topic_id=ORDERS), partition(replicas=list(ids), isr=isr, leader=isr[0])]
    write_metadata(paths[0], metadata_batch(0, [*registered, *topic]))
    return paths


def state_of(plan: ImportPlan) -> layout.PartitionState:
    return layout.decode_partition_state(plan.contents.rows[layout.partition_state("orders", 0)][0])


def test_the_isr_member_with_the_longest_log_leads_and_ids_with_gaps_are_mapped(tmp_path: Path) -> None:
    plan = plan_of([open_source(path) for path in three_brokers(tmp_path, (3, 5, 9), [3, 9])])
    assert plan.brokers == {3: 3, 5: 4, 9: 5} and plan.serve_arguments == "--broker-id 3 --brokers 3"
    assert (state_of(plan).leader, state_of(plan).isr) == (5, (3, 5))
    rows = plan.contents.rows
    assert layout.decode_topic(rows[layout.topic("orders")][0]).replicas == {0: (3, 4, 5)}


def test_a_partition_without_a_replica_in_sync_is_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    paths = three_brokers(tmp_path, (1, 2, 3), [3])
    with pytest.raises(CannotImport, match=r"1 partitions have no replica.*orders-0.*--incomplete"):
        plan_of([open_source(path) for path in paths[:2]])
    plan = plan_of([open_source(path) for path in paths[:2]], allow_incomplete=True)
    assert plan.incomplete == [TopicPartition("orders", 0)] and state_of(plan).leader in (1, 2)


def test_the_directories_of_one_broker_become_one(tmp_path: Path) -> None:
    source = one_broker(tmp_path / "kafka")
    other = kafka_directory(tmp_path / "other", 1, segments={})
    (other / "orders-0").rename(other / "stale-0")
    plan = plan_of([open_source(source), open_source(other)])
    assert plan.brokers == {1: 1}
    assert ("log", str(other / "stale-0"), "the topic does not exist any more") in plan.not_imported


def test_directories_of_separate_controllers_and_of_metadata_log_dir_become_no_broker(tmp_path: Path) -> None:
    """Compared with real clusters of Kafka 3.9.2 and 4.4.0 with one and three controllers."""
    broker = kafka_directory(tmp_path / "broker", 1, segments=TWO_SEGMENTS, recovery_point=6)
    registered = [kinds.RegisterBrokerRecord(broker_id=1), kinds.TopicRecord(name="orders", topic_id=ORDERS)]
    records: list[Struct] = [*registered, partition(replicas=[1], isr=[1])]
    more = metadata_batch(3, [kinds.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="77")])
    others = {"of the broker": (1, []), "behind": (100, []), "newest": (101, [more])}
    for name, (node, batches) in others.items():
        directory = kafka_directory(tmp_path / name, node, segments={}, clean=False)
        (directory / "orders-0").rename(tmp_path / f"unused {name}")
        write_metadata(directory, metadata_batch(0, records), *batches)
    plan = plan_of([open_source(path) for path in (broker, *(tmp_path / name for name in others))])
    assert plan.brokers == {1: 1} and plan.metadata.configs[("topics", "orders")] == {"retention.ms": "77"}
    [one] = report(plan, tmp_path / "data", None)["brokers"]
    assert one["clean"] and one["directories"] == [str(broker), str(tmp_path / "of the broker")]


def test_client_quotas_are_imported(tmp_path: Path) -> None:
    def quota(key: str, value: float, *entity: tuple[str, str | None], remove: bool = False) -> Struct:
        return kinds.ClientQuotaRecord(entity=[kinds.QuotaEntity(*part) for part in entity], key=key, value=value, remove=remove)

    both = (("client-id", None), ("user", "a b"))
    extra = [
        quota("producer_byte_rate", 1048576.0, *both),
        quota("request_percentage", 12.5, *both),
        quota("consumer_byte_rate", 5.0, ("client-id", "etl")),
        quota("consumer_byte_rate", 0.0, ("client-id", "etl"), remove=True),
        quota("connection_creation_rate", 7.0, ("ip", "10.0.0.1")),
    ]
    plan = plan_of([open_source(one_broker(tmp_path / "kafka", extra=extra))])
    found = {
        path: layout.decode_config(data)
        for path, (data, _, _) in plan.contents.rows.items()
        if layout_quotas.quota_entity_of(path) and data
    }
    assert found == {
        "/config/users/a%20b/clients/<default>": {"producer_byte_rate": "1048576", "request_percentage": "12.5"},
        "/config/ips/10.0.0.1": {"connection_creation_rate": "7"},
    }
    assert "/config/users/a%20b/clients" in plan.contents.rows
    assert not [kind for kind, _, _ in plan.not_imported if "quota" in kind]


def test_what_has_no_equal_is_reported(tmp_path: Path) -> None:
    extra = [
        kinds.TopicRecord(name="__share_group_state", topic_id=bytes(reversed(ORDERS))),
        kinds.UserScramCredentialRecord(name="alice", mechanism=1),
        kinds.ClientQuotaRecord(entity=[kinds.QuotaEntity("user", "alice")], key="producer_byte_rate", value=-1.0),
        kinds.ConfigRecord(resource_type=2, resource_name="orders", name="remote.storage.enable", value="true"),
        kinds.FeatureLevelRecord(name="metadata.version", feature_level=29),
    ]
    plan = plan_of([open_source(one_broker(tmp_path / "kafka", extra=extra))])
    reported = {(kind, what) for kind, what, _ in plan.not_imported}
    assert {
        ("topic", "__share_group_state"), ("SCRAM credentials", "1"), ("quota", "/config/users/alice: producer_byte_rate=-1"),
        ("remote segments", "orders"),
        ("finalized feature levels", "1"), ("setting", "topics/orders: remote.storage.enable"),
    } <= reported  # fmt: skip


def test_a_running_kafka_and_a_directory_of_ottla_are_refused(tmp_path: Path) -> None:
    source = one_broker(tmp_path / "kafka")
    # POSIX locks belong to a process, so another one holds it.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        held = os.open(source / ".lock", os.O_RDWR)
        fcntl.lockf(held, fcntl.LOCK_EX)
        os.write(writing, b"x")
        signal.pause()
    try:
        os.read(reading, 1)
        with pytest.raises(CannotImport, match="in use by a running Kafka broker"):
            open_source(source)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    carry_out(plan_of([open_source(source)]), tmp_path / "data", copy=False, progress=ignore)
    with pytest.raises(CannotImport, match="is a log directory of Ottla"):
        open_source(tmp_path / "data" / "broker-1")


@pytest.mark.parametrize("version", ["version=0\nbroker.id", "version=1\nnode.id"])
def test_a_server_refuses_a_directory_of_kafka_and_names_the_import(tmp_path: Path, version: str) -> None:
    source = one_broker(tmp_path / "kafka")
    (source / "meta.properties").write_text(f"{version}=1\ncluster.id={CLUSTER}\n")
    before = fingerprint(source)
    with pytest.raises(CannotStart, match=f"log directory of Apache Kafka.*ottla import {source} --data-dir NEW"):
        LockedDirectory(source)
    assert fingerprint(source) == before


def test_a_file_with_two_names_is_copied_before_it_is_truncated_or_appended_to(tmp_path: Path) -> None:
    for change in ("truncate", "append"):
        (tmp_path / "source").write_bytes(b"0123456789")
        os.link(tmp_path / "source", tmp_path / "linked")
        file = RealDisk(tmp_path).open("linked")
        file.truncate(3) if change == "truncate" else file.append(b"more")
        assert (tmp_path / "source").read_bytes() == b"0123456789"
        assert (tmp_path / "linked").read_bytes() == (b"012" if change == "truncate" else b"0123456789more")
        assert file.read(0, 3) == b"012"
        (tmp_path / "linked").unlink()


def test_znodes_of_a_kafka_with_zookeeper_are_read() -> None:
    nodes: dict[str, str | None] = {
        "/brokers/topics": None,
        "/cluster/id": json.dumps({"version": "1", "id": CLUSTER}),
        "/brokers/topics/orders": json.dumps({"version": 3, "topic_id": "AAECAwQFBgcICQoLDA0ODw", "partitions": {"0": [1, 2]}}),
        "/brokers/topics/orders/partitions/0/state": json.dumps(
            {"version": 1, "leader": 2, "leader_epoch": 8, "controller_epoch": 3, "isr": [2]}
        ),
        "/brokers/topics/doomed": json.dumps({"version": 3, "partitions": {"0": [1]}}),
        "/admin/delete_topics/doomed": None,
        "/config/topics/orders": json.dumps({"version": 1, "config": {"retention.ms": "5"}}),
        "/config/users/alice": json.dumps({"version": 1, "config": {"SCRAM-SHA-256": "x", "producer_byte_rate": "1"}}),
        "/config/users/<default>/clients/a%2Fb": json.dumps({"version": 1, "config": {"consumer_byte_rate": "2"}}),
        "/kafka-acl/Topic/orders": json.dumps(
            {"version": 1, "acls": [{"principal": "User:a", "permissionType": "Deny", "operation": "All", "host": "10.0.0.7"}]}
        ),
    }
    found = metadata_of(nodes, "nodes")
    assert (found.cluster_id, list(found.topics)) == (CLUSTER, ["orders"])
    state = found.topics["orders"].partitions[0]
    assert (found.topics["orders"].topic_id, state.isr, state.leader_epoch) == (ORDERS, (2,), 8)
    assert found.configs == {("topics", "orders"): {"retention.ms": "5"}}
    assert found.without_equal == {
        "SCRAM credentials": 1, "topics that were being deleted": 1,
    }  # fmt: skip
    assert [(str(pattern), list(map(str, entries))) for pattern, entries in found.acls.items()] == [
        ("Topic:LITERAL:orders", ["Deny User:a from 10.0.0.7 All"])
    ]
    with pytest.raises(CannotImport, match="Perhaps"):
        metadata_of({**nodes, "/kafka-acl/Topic/orders": nodes["/kafka-acl/Topic/orders"].replace("Deny", "Perhaps")}, "nodes")  # type: ignore[union-attr]
    assert found.quotas == {
        QuotaEntity(user="alice"): {"producer_byte_rate": "1"},
        QuotaEntity(user="", client="a/b"): {"consumer_byte_rate": "2"},
    }
    with pytest.raises(CannotImport, match="brokers 1 of Kafka are registered"):
        metadata_of({**nodes, "/brokers/ids/1": "{}"}, "nodes")


# Transactions.

STATE_ID, OFFSETS_ID = bytes(range(16, 32)), bytes(range(32, 48))


def transactional_batch(base: int, producer_id: int, *values: tuple[bytes | None, bytes]) -> bytes:
    records = [(1_000, key, value, ()) for key, value in values or ((None, b"value"),)]
    return batch_at(
        bytearray(build_batch(records, producer_id=producer_id, producer_epoch=1, base_sequence=0, transactional=True)), base, 3
    )


def marker_batch(base: int, producer_id: int, kind: int) -> bytes:
    key, value = marker(kind, 0)
    return batch_at(bytearray(build_batch([(1_000, key, value, ())], producer_id=producer_id, producer_epoch=1, control=True)), base, 3)


def transaction_record(transactional_id: str, state: TransactionState | None, producer_id: int = 0) -> tuple[bytes, bytes | None]:
    """The record of an id with a transaction in orders-0; None is a tombstone."""
    key = transaction_records.TransactionLogKey(transactional_id=transactional_id)
    if state is None:
        return transaction_records.encode_record(key, None, 1)
    partitions = [transaction_records.PartitionsSchema(topic="orders", partition_ids=[0])]
    value = transaction_records.TransactionLogValue(
        producer_id=producer_id,
        producer_epoch=1,
        transaction_status=state.code,
        transaction_partitions=partitions,
    )
    return transaction_records.encode_record(key, value, 1)


def add_log(directory: Path, name: str, topic_id: bytes, batches: Sequence[bytes]) -> None:
    """A further partition of the directory."""
    log = directory / name
    log.mkdir()
    (log / f"{0:020}.log").write_bytes(b"".join(batches))
    (log / "partition.metadata").write_bytes(checkpoints.partition_metadata_file(topic_id))


def internal_topic(name: str, topic_id: bytes) -> list[Struct]:
    state = kinds.PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1, leader_epoch=5)
    return [kinds.TopicRecord(name=name, topic_id=topic_id), state]


def of_transactions(path: Path, orders: Sequence[bytes], states: Sequence[tuple[bytes, bytes | None]]) -> Path:
    """A broker that was killed, with these batches of orders-0 and these records of __transaction_state."""
    one_broker(path, clean=False, extra=internal_topic("__transaction_state", STATE_ID))
    for file in (path / "orders-0").glob("0*"):
        file.unlink()
    (path / "orders-0" / f"{0:020}.log").write_bytes(b"".join(orders))
    add_log(
        path,
        "__transaction_state-0",
        STATE_ID,
        [batch_at(bytearray(build_batch([(1_000, key, value, ())])), base) for base, (key, value) in enumerate(states)],
    )
    return path


def hanging(plan: ImportPlan) -> list[str]:
    return [what for kind, what, _ in plan.not_imported if kind == "hanging transactions"]


def test_transactional_ids_are_imported_and_only_transactions_without_one_are_reported(tmp_path: Path) -> None:
    orders = [transactional_batch(0, 7), transactional_batch(1, 8), transactional_batch(2, 9), marker_batch(3, 9, COMMIT_MARKER)]
    states = [
        transaction_record("open", TransactionState.ONGOING, 7),
        transaction_record("decided", TransactionState.ONGOING, 70),
        transaction_record("decided", TransactionState.PREPARE_ABORT, 70),
        transaction_record("done", TransactionState.COMPLETE_COMMIT, 9),
        transaction_record("gone", TransactionState.ONGOING, 10),
        transaction_record("gone", None),
    ]
    plan = plan_of([open_source(of_transactions(tmp_path / "kafka", orders, states))])
    assert sorted(plan.transactions.values) == ["decided", "done", "open"]
    assert (plan.transactions.ongoing, plan.transactions.decided) == (1, 1)
    assert hanging(plan) == ["1 in orders-0, of producers 8"]
    carry_out(plan, tmp_path / "data", copy=False, progress=ignore)
    assert (tmp_path / "data" / "broker-1" / "__transaction_state-0" / f"{0:020}.log").exists()
    assert verify(plan, tmp_path / "data", progress=ignore).differences == []


def test_transactions_begun_and_ended_after_the_newest_snapshot_are_read_from_the_log(tmp_path: Path) -> None:
    """After kill -9 the snapshot is as old as the last segment."""
    orders = [
        transactional_batch(0, 7),
        transactional_batch(1, 8),
        marker_batch(2, 7, ABORT_MARKER),
        transactional_batch(3, 9),
        data_batch(4),
    ]
    source = of_transactions(tmp_path / "kafka", orders, [])
    open_at_2 = {number: Producer(1, -1, 1_000, number - 7, 0) for number in (7, 8)}
    (source / "orders-0" / f"{2:020}.snapshot").write_bytes(snapshot_file(open_at_2))
    (source / "orders-0" / f"{99:020}.snapshot").write_bytes(snapshot_file({}))
    (source / "orders-0" / f"{5:020}.snapshot").write_bytes(b"torn")
    assert hanging(plan_of([open_source(source)])) == ["2 in orders-0, of producers 8, 9"]


def test_a_transactional_id_with_an_unknown_state_is_refused(tmp_path: Path) -> None:
    key, value = transaction_record("x", TransactionState.ONGOING, 7)
    assert value is not None
    at = value.index(bytes((TransactionState.ONGOING.code,)), 2 + 8 + 2 + 4)
    damaged = value[:at] + b"\x63" + value[at + 1 :]
    with pytest.raises(CannotImport, match="__transaction_state-0: the record at offset 0 has the unknown state 99"):
        plan_of([open_source(of_transactions(tmp_path / "kafka", [], [(key, damaged)]))])


def offset_record(partition: int, offset: int) -> tuple[bytes, bytes]:
    key = group_records.OffsetCommitKey(group="g", topic="orders", partition=partition)
    written, value = group_records.encode_record(key, group_records.OffsetCommitValue(offset=offset))
    assert value is not None
    return written, value


def test_offsets_of_a_transaction_count_when_it_is_committed(tmp_path: Path) -> None:
    batches = [
        transactional_batch(0, 7, offset_record(0, 10)),
        transactional_batch(1, 8, offset_record(1, 11)),
        transactional_batch(2, 9, offset_record(2, 12)),
        transactional_batch(3, 10, offset_record(3, 13)),
        batch_at(bytearray(build_batch([(1_000, *offset_record(3, 30), ())])), 4),
        marker_batch(5, 7, COMMIT_MARKER),
        marker_batch(6, 8, ABORT_MARKER),
        marker_batch(7, 10, COMMIT_MARKER),
    ]
    source = one_broker(tmp_path / "kafka", clean=False, extra=internal_topic("__consumer_offsets", OFFSETS_ID))
    add_log(source, "__consumer_offsets-0", OFFSETS_ID, batches)
    values = plan_of([open_source(source)]).groups.values
    assert values == dict((offset_record(0, 10), offset_record(3, 30))), "an offset committed later than in a transaction stays"


def test_verification_is_refused_after_a_compaction(tmp_path: Path) -> None:
    plan = plan_of([open_source(one_broker(tmp_path / "kafka"))])
    carry_out(plan, tmp_path / "data", copy=False, progress=ignore)
    cleaned = checkpoints.offsets_file({TopicPartition("orders", 0): 4})
    (tmp_path / "data" / "broker-1" / "cleaner-offset-checkpoint").write_bytes(cleaned)
    with pytest.raises(CannotImport, match=r"1 logs were compacted since the import.*orders-0 of broker 1; verify an import before"):
        verify(plan, tmp_path / "data", progress=ignore)
