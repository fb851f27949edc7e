"""`ottla log dump` on files written by the test."""

from __future__ import annotations

import json
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from click.testing import Result

from commands import Ottla, command, good
from ottla.broker.groups.records import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue, encode_record
from ottla.broker.transactions.records import PartitionsSchema, TransactionLogKey, TransactionLogValue
from ottla.broker.transactions.records import encode_record as encode_transaction
from ottla.cli.common.output_formats import fields_of
from ottla.cli.log.index_check import log_of
from ottla.records.build import build_batch

NAME = "00000000000000000000"


def batch(offset: int, *times: int) -> bytes:
    return bytes(build_batch([(time, b"k", b"v", ()) for time in times], base_offset=offset))


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Batches of offsets 0-1, 2 and 3-5, with valid indexes."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    parts = [batch(0, 10, 20), batch(2, 15), batch(3, 30, 25, 26)]
    (directory / f"{NAME}.log").write_bytes(b"".join(parts))
    # Kafka preallocates its indexes: zeros are not entries.
    (directory / f"{NAME}.index").write_bytes(pack(">ii", 2, len(parts[0])) + pack(">ii", 5, len(parts[0] + parts[1])) + bytes(16))
    (directory / f"{NAME}.timeindex").write_bytes(pack(">qi", 20, 1) + pack(">qi", 30, 5))
    return directory


def rows(result: Result, *, code: int = 0) -> list[dict[str, Any]]:
    """The JSON output. Each of its fields must be in the reference."""
    assert result.exit_code == code, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    named = set(fields_of(command("log", "dump")))
    assert not {field for row in found for field in row} - named
    return found


def test_valid_indexes_are_skipped(ottla: Ottla, partition: Path) -> None:
    found = rows(ottla("log", "dump", "--verify", str(partition), "-o", "json"))
    assert {Path(row["file"]).suffix for row in found} == {".log"}
    assert len(rows(ottla("log", "dump", str(partition), "-o", "json"))) == 3 + 2 + 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("index", pack(">ii", 2, 5), "no batch begins at this position"),
        ("index", pack(">ii", 4, 0), "the batch there ends at offset 1"),
        ("index", pack(">ii", 1, 0) * 2, "does not increase"),
        ("timeindex", pack(">qi", 19, 1), "the largest timestamp of the batch there is 20"),
        ("timeindex", pack(">qi", 30, 9), "no batch has this offset"),
        ("timeindex", pack(">qi", 30, 5) + pack(">qi", 20, 5), "does not increase"),
    ],
)
def test_an_invalid_index_entry_is_damage(ottla: Ottla, partition: Path, name: str, content: bytes, message: str) -> None:
    index = partition / f"{NAME}.{name}"
    index.write_bytes(content)
    (row,) = rows(ottla("log", "dump", "--verify", str(index), "-o", "json"), code=1)
    assert message in row["damage"]


def test_an_index_is_compared_with_the_log_at_the_same_moment() -> None:
    assert log_of(Path(f"d/{NAME}.index")) == Path(f"d/{NAME}.log")
    assert log_of(Path(f"d/{NAME}.timeindex.deleted")) == Path(f"d/{NAME}.log.deleted")


def test_a_batch_with_repeated_offsets_is_damage(ottla: Ottla, partition: Path) -> None:
    log = partition / f"{NAME}.log"
    log.write_bytes(batch(0, 1, 2) + batch(1, 3))
    first, second = rows(ottla("log", "dump", str(log), "-o", "json"), code=1)
    assert "damage" not in first
    assert "last offset 1 of the previous batch" in second["damage"]


def test_a_limit_of_bytes_is_no_damage(ottla: Ottla, partition: Path) -> None:
    log = partition / f"{NAME}.log"
    found = rows(ottla("log", "dump", str(log), "--max-bytes", str(len(batch(0, 10, 20)) + 5), "-o", "json"))
    assert [row["last"] for row in found] == [1]


def test_records_of_group_coordinators_are_reported_field_by_field(ottla: Ottla, tmp_path: Path) -> None:
    directory = tmp_path / "__consumer_offsets-7"
    directory.mkdir()
    written = [
        encode_record(OffsetCommitKey("billing", "orders", 3), OffsetCommitValue(offset=42, commit_timestamp=5)),
        encode_record(GroupMetadataKey("billing"), None),
        (b"\xff", b"?"),
    ]
    (directory / f"{NAME}.log").write_bytes(build_batch([(1, key, value, ()) for key, value in written]))
    _, commit, tombstone, unknown = rows(ottla("log", "dump", "--deep", str(directory), "-o", "json"))
    assert (commit["type"], commit["key"]) == ("OffsetCommit", {"group": "billing", "topic": "orders", "partition": 3})
    assert commit["value"]["offset"] == 42
    assert (tombstone["type"], tombstone["value"]) == ("GroupMetadata", None)
    assert unknown["key"] == {"base64": "/w=="}
    assert 'key {"group":"billing","topic":"orders","partition":3}' in good(ottla("log", "dump", "--deep", str(directory)))


def test_records_of_transaction_coordinators_are_reported_field_by_field(ottla: Ottla, tmp_path: Path) -> None:
    directory = tmp_path / "__transaction_state-7"
    directory.mkdir()
    key = TransactionLogKey(transactional_id="billing-1")
    partitions = [PartitionsSchema(topic="orders", partition_ids=[0, 2])]
    state = TransactionLogValue(producer_id=7, producer_epoch=3, transaction_status=1, transaction_partitions=partitions)
    written = [encode_transaction(key, state, 1), encode_transaction(key, None, 1)]
    (directory / f"{NAME}.log").write_bytes(build_batch([(1, key, value, ()) for key, value in written]))
    _, ongoing, tombstone = rows(ottla("log", "dump", "--deep", str(directory), "-o", "json"))
    assert (ongoing["type"], ongoing["key"]) == ("TransactionLog", {"transactional_id": "billing-1"})
    assert (ongoing["value"]["state"], ongoing["value"]["producer_epoch"]) == ("Ongoing", 3)
    assert ongoing["value"]["transaction_partitions"] == [{"topic": "orders", "partition_ids": [0, 2]}]
    assert (tombstone["type"], tombstone["value"]) == ("TransactionLog", None)


def test_yaml_is_a_document_per_entry(ottla: Ottla, partition: Path) -> None:
    printed = good(ottla("log", "dump", str(partition / f"{NAME}.timeindex"), "-o", "yaml"))
    assert printed.count("---\n") == 2
    assert "timestamp: 30" in printed
