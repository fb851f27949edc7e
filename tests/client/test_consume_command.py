"""`ottla consume` against an in-memory cluster: where a group continues, and topics that are deleted while they are read."""

from __future__ import annotations

from pathlib import Path
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


def test_a_group_that_printed_nothing_continues_at_its_start(cluster: MemoryCluster) -> None:
    write(cluster, b"before")
    assert consume("t", "-g", "g", "-O", "end", "-e").stdout == ""
    write(cluster, b"between")
    assert consume("t", "-g", "g", "-e").stdout == "between\n"
    assert consume("t", "-g", "g", "-e").stdout == ""


def test_a_group_without_offsets_starts_at_the_beginning_and_reports_it_once(cluster: MemoryCluster) -> None:
    write(cluster, b"before")
    first = consume("t", "-g", "g", "-e")
    assert (first.stdout, first.stderr) == (
        "before\n",
        "Group g has no offsets yet: it begins at the start of the log (with -O end: at the end)\n",
    )
    write(cluster, b"after")
    second = consume("t", "-g", "g", "-e")
    assert (second.stdout, second.stderr) == ("after\n", "")


@pytest.mark.parametrize("how", [("-O", "end"), ("-X", "auto.offset.reset=latest")])
def test_a_group_without_offsets_starts_at_the_requested_position(cluster: MemoryCluster, how: tuple[str, ...]) -> None:
    write(cluster, b"before")
    result = consume("t", "-g", "g", "-e", *how)
    assert (result.stdout, result.stderr) == ("", "Group g has no offsets yet: it begins at the end of the log\n")


def test_new_partitions_of_a_group_that_start_at_the_beginning_are_reported(cluster: MemoryCluster) -> None:
    cluster.groups.offsets["many", 1] = (0, -1, "")
    write(cluster, b"a", topic="many", partition=2)
    result = consume("many", "-g", "g", "-n", "1")
    assert "Group g has no offsets for many-0, many-2 yet: it begins at the start" in result.stderr


@pytest.mark.parametrize(
    "how", [pytest.param((), id="assigned"), pytest.param(("-g", "g"), id="in a group", marks=pytest.mark.slow)]
)  # fmt: skip
def test_a_topic_that_is_deleted_while_it_is_read_is_an_error(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    monkeypatch.setattr("ottla.client.transport.cluster.GONE_MS", 20)
    write(cluster, b"a")

    asked: list[int] = []

    def delete(node: MemoryNode, request: Any) -> None:
        # The consumer fetches at the end first, before its start position is set to the beginning.
        asked.extend(place.fetch_offset for topic in request.topics for place in topic.partitions)
        read = 0 in asked and asked[-1] == 1
        printed = not how or cluster.groups.offsets.get(("t", 0), (0, 0, ""))[0] == 1
        if "t" in cluster.logs and read and printed:
            cluster.delete("t")

    cluster.faults["Fetch"].append(delete)
    result = consume("t", "--from-beginning", *how)
    assert (result.exit_code, result.stdout) == (1, "a\n")
    assert "Error: topic t was deleted" in result.stderr


def test_a_partition_missing_in_a_recreated_topic_is_reported(cluster: MemoryCluster) -> None:
    def make_again(node: MemoryNode, request: Any) -> None:
        if len(cluster.logs["many"]) == 3:
            cluster.delete("many")
            cluster.create("many", 1)

    cluster.faults["Fetch"].append(make_again)
    result = consume("many", "--from-beginning")
    assert result.exit_code == 1
    assert "topic many was recreated with 1 partitions" in result.stderr


def test_a_group_continues_while_a_partition_has_no_leader(cluster: MemoryCluster) -> None:
    cluster.leaders["many", 1] = 9
    for partition in (0, 2):
        write(cluster, b"%d" % partition, topic="many", partition=partition)
    result = consume("many", "-g", "g", "--from-beginning", "-n", "2")
    assert (result.exit_code, sorted(result.stdout.split())) == (0, ["0", "2"]), result.stderr
    assert {tp: kept[0] for tp, kept in cluster.groups.offsets.items()} == {("many", 0): 1, ("many", 2): 1}


def test_the_end_of_a_partition_without_a_leader_times_out(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.consume.group.ENDS_MS", 20)
    monkeypatch.setattr("ottla.cli.consume.group.ENDS_TIMEOUT_S", 1.0)
    cluster.leaders["many", 1] = 9
    write(cluster, b"0", topic="many")
    result = consume("many", "-g", "g", "--from-beginning", "-e")
    assert (result.exit_code, result.stdout) == (1, "0\n")
    assert "many-1 has no leader" in result.stderr
    assert cluster.groups.offsets["many", 0][0] == 1, "printed records are committed"


@pytest.mark.parametrize("where", ["beginning", "end", "-1", "0"])
def test_partitions_added_while_reading_are_read_too(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr("ottla.cli.consume.command.METADATA_MS", 20)
    monkeypatch.setattr("ottla.cli.consume.ranges.NEW_S", 0.0)

    def grow(node: MemoryNode, request: Any) -> None:
        if len(cluster.logs["t"]) == 1:
            cluster.logs["t"].append(MemoryLog())
            cluster.leaders["t", 1] = node.node_id
            write(cluster, b"new", b"newer", partition=1)

    cluster.faults["Fetch"].append(grow)
    result = consume("t", "-O", where, "-n", "2", "-f", "%p %s\\n")
    assert (result.exit_code, result.stdout) == (0, "1 new\n1 newer\n"), result.stderr


def test_a_failed_commit_is_reported_and_retried(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.consume.group.COMMIT_S", 0.0)
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

    cluster.faults["OffsetCommit"].append(refuse)
    result = consume("t", "-g", "g", "--from-beginning", "-n", "2")
    assert (result.exit_code, result.stdout) == (0, "a\nb\n")
    assert "Warning: committing printed offsets failed: committing t-0" in result.stderr
    assert cluster.groups.offsets["t", 0][0] == 2


def test_ranges_are_read_to_their_end(cluster: MemoryCluster) -> None:
    write(cluster, b"a", b"b", b"c", b"d")
    for partition in range(3):
        write(cluster, *(b"%d%d" % (partition, number) for number in range(3)), topic="many", partition=partition)
    assert consume("t@1:3").stdout == "b\nc\n"
    assert consume("t", "-O", "-2:end").stdout == "c\nd\n"
    assert consume("t@+1:+2").stdout == "b\nc\n"
    assert consume("t@4:9").stdout == ""
    assert sorted(consume("many/0,2@2:", "-e").stdout.split()) == ["02", "22"]
    assert sorted(consume("many@2:3", "t@0:1", "--show", "topic,value").stdout.split("\n")) == [
        "",
        "many\t02",
        "many\t12",
        "many\t22",
        "t\ta",
    ]
    assert sorted(consume("many", "-p", "1", "-p", "0", "-O", ":1").stdout.split()) == ["00", "10"]


def test_topics_of_a_pattern_are_read(cluster: MemoryCluster) -> None:
    write(cluster, b"a")
    write(cluster, b"b", topic="many", partition=1)
    assert sorted(consume("-r", "t|ma.*", "--from-beginning", "-e").stdout.split()) == ["a", "b"]
    assert consume("-r", "m", "-e").stderr == "Error: no topic matches m\n"
    assert sorted(consume("-r", "t", "man.", "-g", "g", "--from-beginning", "-n", "2").stdout.split()) == ["a", "b"]


def test_a_topic_created_later_is_read_if_it_matches_the_pattern(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.consume.ranges.TOPICS_S", 0.0)
    write(cluster, b"a")

    def add(node: MemoryNode, request: Any) -> None:
        if "t2" not in cluster.logs:
            cluster.create("t2")
            write(cluster, b"later", topic="t2")

    cluster.faults["Fetch"].append(add)
    result = consume("-r", "t.?", "--from-beginning", "-n", "2")
    assert (result.exit_code, sorted(result.stdout.split())) == (0, ["a", "later"]), result.stderr


def test_the_tail_is_the_newest_records_of_all_partitions(cluster: MemoryCluster) -> None:
    for partition, times in enumerate(((1, 5, 9), (2, 3), (8,))):
        cluster.logs["many"][partition].append(bytes(build_batch([(ms, None, b"%d" % ms, ()) for ms in times])))
    assert consume("many", "--tail", "3").stdout == "5\n8\n9\n"
    assert consume("many", "--tail", "0").stdout == ""
    assert consume("many", "--tail", "100").stdout == "1\n2\n3\n5\n8\n9\n"


def test_follow_continues_after_the_tail(cluster: MemoryCluster) -> None:
    write(cluster, b"1", b"2", b"3")

    def append_later(node: MemoryNode, request: Any) -> None:
        if any(place.fetch_offset == 3 for topic in request.topics for place in topic.partitions) and cluster.logs["t"][0].end == 3:
            write(cluster, b"4")

    cluster.faults["Fetch"].append(append_later)
    result = consume("t", "--tail", "2", "-F", "-n", "3")
    assert (result.exit_code, result.stdout) == (0, "2\n3\n4\n"), result.stderr


def test_filters_select_and_the_limit_counts_printed_records(cluster: MemoryCluster) -> None:
    write(cluster, *(b'{"n":%d}' % number for number in range(20)))
    assert consume("t@0:end", "--filter", ".n >= 5", "--filter", ".n < 8", "-f", "%o ").stdout == "5 6 7 "
    assert consume("t", "--from-beginning", "--filter", ".n > 9", "-n", "2", "-f", "%o ").stdout == "10 11 "


def test_a_group_continues_after_the_last_record_examined_before_the_limit(cluster: MemoryCluster) -> None:
    write(cluster, *(b'{"n":%d}' % number for number in range(20)))
    first = consume("t", "-g", "g", "--from-beginning", "--filter", ".n > 4", "-n", "2", "-f", "%o ")
    assert (first.exit_code, first.stdout) == (0, "5 6 "), first.stderr
    assert cluster.groups.offsets["t", 0][0] == 7
    assert consume("t", "-g", "g", "-e", "-f", "%o ").stdout.split()[0] == "7"


def test_records_that_the_format_cannot_print_are_named(cluster: MemoryCluster) -> None:
    write(cluster, b"1", b"xx", b"{}", b"4")
    result = consume("t@0:end", "--value-format", "json")
    assert (result.exit_code, result.stdout) == (1, "1\n")
    assert result.stderr.startswith("Error: t-0 at offset 1: not JSON")
    lenient = consume("t@0:end", "--value-format", "json", "--keep-going")
    assert (lenient.exit_code, lenient.stdout) == (0, "1\n{}\n4\n")
    assert lenient.stderr.startswith("Warning: t-0 at offset 1: not JSON")


def test_nulls_and_delimiters_are_printed_as_requested(cluster: MemoryCluster) -> None:
    cluster.logs["t"][0].append(bytes(build_batch([(0, b"k", None, ()), (0, None, b"v", ())])))
    assert consume("t@:end", "-Z", "--show", "key,value", "-D", "|").stdout == "k\tNULL|NULL\tv|"
    assert consume("t@:end", "--null", "~", "-f", "%k=%s;").stdout == "k=~;~=v;"
    assert consume("t@:end", "-o", "raw").stdout == "v"


def test_a_parquet_file_is_complete_when_the_command_ends(cluster: MemoryCluster, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write(cluster, b"a", b"b", b"c")
    result = consume("t@1:end", "--parquet", str(tmp_path / "t.parquet"), "--show", "offset,value")
    assert (result.exit_code, result.output) == (0, "")
    assert parquet.read_table(tmp_path / "t.parquet").to_pylist() == [{"offset": 1, "value": b"b"}, {"offset": 2, "value": b"c"}]


def test_records_deleted_by_retention_are_skipped(cluster: MemoryCluster) -> None:
    write(cluster, b"a")
    write(cluster, b"b")
    cluster.logs["t"][0].start = 1
    assert consume("t@0:end").stdout == "b\n"
    assert consume("t", "--from-beginning", "-n", "1").stdout == "b\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("t", "-f", "%z"), "-f: unknown token %z"),
        (("t", "-f", "%s", "-o", "json"), "-f cannot be combined"),
        (("t", "--format", "json"), "for json use -o json"),
        (("t", "--show", "colour"), "unknown column 'colour'"),
        (("t", "--filter", "colour = red"), "unknown field 'colour'"),
        (("t", "--rate", "0"), "--rate expects"),
        (("t", "-O", "yesterday"), "'yesterday' is no place in a log"),
        (("t@9:3",), "ends before it begins"),
        (("t@-2:", "--tail", "3"), "--tail cannot be combined"),
        (("t", "--tail", "3", "-O", "5"), "--tail cannot be combined"),
        (("t", "-F"), "--follow needs --tail"),
        (("t", "-g", "g", "-p", "1"), "-g cannot be combined with -p and ranges"),
        (("t@5:", "-g", "g"), "-g cannot be combined with -p and ranges"),
        (("t", "-g", "g", "--tail", "3"), "-g cannot be combined with --tail and Parquet"),
        (("t", "-g", ""), "-g needs the name"),
        (("-r", "("), "not a regular expression"),
        (("t", "--key-format", "avro"), "avro needs a schema"),
        (("t", "--parquet", "x", "-o", "csv"), "--parquet cannot be combined"),
        (("t", "--from-beginning", "-O", "5"), "--from-beginning cannot be combined"),
    ],
)
def test_invalid_options_are_reported_before_reading(cluster: MemoryCluster, arguments: tuple[str, ...], why: str) -> None:
    result = consume(*arguments)
    assert result.exit_code == 2, result.output
    assert why in result.stderr
    assert not cluster.requests


@pytest.mark.parametrize("arguments", [("none",), ("t", "none@1:2"), ("none", "-g", "g")])
def test_a_missing_topic_is_reported(cluster: MemoryCluster, arguments: tuple[str, ...]) -> None:
    result = consume(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: topic none does not exist\n"


def test_a_missing_partition_is_reported(cluster: MemoryCluster) -> None:
    assert consume("many/1-3").stderr == "Error: topic many has 3 partitions; partition 3 does not exist\n"
