"""`ottla consume` against a cluster in memory: where a group goes on, and topics that are deleted while they are read."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result
from memory_cluster import MemoryCluster, MemoryLog, MemoryNode

from ottla.cli.main import main
from ottla.records.build import build_batch
from ottla.wire import messages as m


def consume(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["consume", *arguments, "-b", "boot:1"])


def write(cluster: MemoryCluster, *values: bytes, topic: str = "t", partition: int = 0) -> None:
    cluster.logs[topic][partition].append(bytes(build_batch([(0, None, value, ()) for value in values])))


def test_a_group_that_saw_nothing_goes_on_where_it_was(cluster: MemoryCluster) -> None:
    write(cluster, b"before")
    assert consume("t", "-g", "g", "-e").stdout == ""
    write(cluster, b"between")
    assert consume("t", "-g", "g", "-e").stdout == "between\n"
    assert consume("t", "-g", "g", "-e").stdout == ""


@pytest.mark.parametrize(
    "how", [pytest.param((), id="assigned"), pytest.param(("-g", "g"), id="in a group", marks=pytest.mark.slow)]
)  # fmt: skip
def test_who_reads_a_topic_that_is_deleted_is_told(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]) -> None:
    monkeypatch.setattr("ottla.client.cluster.GONE_MS", 20)
    write(cluster, b"a")

    asked: list[int] = []

    def delete(node: MemoryNode, request: Any) -> None:
        # Before it is told to begin at the beginning, a consumer asks for what comes at the end.
        asked.extend(place.fetch_offset for topic in request.topics for place in topic.partitions)
        read = 0 in asked and asked[-1] == 1
        printed = not how or cluster.groups.offsets.get(("t", 0), (0, 0, ""))[0] == 1
        if "t" in cluster.logs and read and printed:
            cluster.delete("t")

    cluster.accidents["Fetch"].append(delete)
    result = consume("t", "--from-beginning", *how)
    assert (result.exit_code, result.stdout) == (1, "a\n")
    assert "Error: topic t was deleted" in result.stderr


def test_who_reads_a_partition_that_a_new_topic_of_the_name_has_not_is_told(cluster: MemoryCluster) -> None:
    def make_again(node: MemoryNode, request: Any) -> None:
        if len(cluster.logs["many"]) == 3:
            cluster.delete("many")
            cluster.create("many", 1)

    cluster.accidents["Fetch"].append(make_again)
    result = consume("many", "--from-beginning")
    assert result.exit_code == 1
    assert "topic many was made again with 1 partitions" in result.stderr


def test_a_group_reads_on_while_a_partition_has_no_leader(cluster: MemoryCluster) -> None:
    cluster.leaders["many", 1] = 9
    for partition in (0, 2):
        write(cluster, b"%d" % partition, topic="many", partition=partition)
    result = consume("many", "-g", "g", "--from-beginning", "-n", "2")
    assert (result.exit_code, sorted(result.stdout.split())) == (0, ["0", "2"]), result.stderr
    assert {tp: kept[0] for tp, kept in cluster.groups.offsets.items()} == {("many", 0): 1, ("many", 2): 1}


def test_the_end_of_a_partition_without_a_leader_is_waited_for_and_then_given_up(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.cli.consume_group.ENDS_MS", 20)
    monkeypatch.setattr("ottla.cli.consume_group.LOOK_S", 0.2)
    cluster.leaders["many", 1] = 9
    write(cluster, b"0", topic="many")
    result = consume("many", "-g", "g", "--from-beginning", "-e")
    assert (result.exit_code, result.stdout) == (1, "0\n")
    assert "many-1 has no leader" in result.stderr
    assert cluster.groups.offsets["many", 0][0] == 1, "what was printed is committed"


@pytest.mark.parametrize("where", ["beginning", "end", "-1", "0"])
def test_partitions_that_come_while_it_reads_are_read_too(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr("ottla.cli.consume.METADATA_MS", 20)
    monkeypatch.setattr("ottla.cli.consume_parts.NEW_S", 0.0)

    def grow(node: MemoryNode, request: Any) -> None:
        if len(cluster.logs["t"]) == 1:
            cluster.logs["t"].append(MemoryLog())
            cluster.leaders["t", 1] = node.node_id
            write(cluster, b"new", b"newer", partition=1)

    cluster.accidents["Fetch"].append(grow)
    result = consume("t", "-O", where, "-n", "2", "-f", "%p %s\\n")
    assert (result.exit_code, result.stdout) == (0, "1 new\n1 newer\n"), result.stderr


def test_a_commit_that_fails_is_told_and_made_again(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.consume_group.COMMIT_S", 0.0)
    write(cluster, b"a")

    def refuse(node: MemoryNode, request: Any) -> Any:
        topics = [
            m.offset_commit.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[m.offset_commit.OffsetCommitResponsePartition(partition_index=0, error_code=7)],
            )
            for topic in request.topics
        ]
        write(cluster, b"b")
        node.look_again()
        return m.OffsetCommitResponse(topics=topics)

    cluster.accidents["OffsetCommit"].append(refuse)
    result = consume("t", "-g", "g", "--from-beginning", "-n", "2")
    assert (result.exit_code, result.stdout) == (0, "a\nb\n")
    assert result.stderr.startswith("Warning: what was printed is not committed yet: committing t-0")
    assert cluster.groups.offsets["t", 0][0] == 2
