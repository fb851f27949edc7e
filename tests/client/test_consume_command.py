"""`ottla consume` against a cluster in memory: where a group goes on, and topics that are deleted while they are read."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result
from memory_cluster import MemoryCluster, MemoryNode

from ottla.cli.main import main
from ottla.records.build import build_batch


def consume(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["consume", *arguments, "-b", "boot:1"])


def write(cluster: MemoryCluster, *values: bytes) -> None:
    cluster.logs["t"][0].append(bytes(build_batch([(0, None, value, ()) for value in values])))


def test_a_group_that_saw_nothing_goes_on_where_it_was(cluster: MemoryCluster) -> None:
    write(cluster, b"before")
    assert consume("t", "-g", "g", "-e").stdout == ""
    write(cluster, b"between")
    assert consume("t", "-g", "g", "-e").stdout == "between\n"
    assert consume("t", "-g", "g", "-e").stdout == ""


@pytest.mark.parametrize("how", [(), ("-g", "g")], ids=["assigned", "in a group"])
def test_who_reads_a_topic_that_is_deleted_is_told(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]) -> None:
    monkeypatch.setattr("ottla.client.cluster.GONE_MS", 20)
    write(cluster, b"a")

    def delete(node: MemoryNode, request: Any) -> None:
        read = any(place.fetch_offset == 1 for topic in request.topics for place in topic.partitions)
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
