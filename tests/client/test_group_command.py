"""`ottla group` against an in-memory cluster: output, changes and refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from administered_groups import AdministeredGroup, GroupCluster
from click.testing import CliRunner, Result
from memory_cluster import CUT

from commands import documents, rows
from ottla.base.ids import TopicPartition
from ottla.cli.main import main
from ottla.wire import messages as m

T = TopicPartition("t", 0)
Ottla = Callable[..., Result]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> GroupCluster:
    """Topics: `t` with one partition of 10 records, a second apart until now; `many` with three. Groups: `orders` is idle, `busy` has a
    member."""
    made = GroupCluster()
    made.create("t")
    made.create("many", 3)
    now_ms = int(time.time() * 1000)
    made.write("t", 0, *(now_ms - 10_000 + 1000 * index for index in range(10)))
    for number in range(3):
        made.write("many", number, *range(1_700_000_000_000, 1_700_000_000_005))
    made.by_name = {
        "orders": AdministeredGroup(offsets={T: (4, "", -1), ("many", 1): (5, "", -1)}),
        "busy": AdministeredGroup(members={"m1": {"t": [0]}}, offsets={T: (10, "", -1)}),
    }
    monkeypatch.setattr("ottla.client.transport.network.open_connection", made.connect)
    return made


@pytest.fixture
def ottla(groups: GroupCluster) -> Ottla:
    return lambda *arguments, **more: CliRunner().invoke(main, ["group", *arguments, "-b", "boot:1"], **more)


def output_of(result: Result) -> str:
    """Output of a command that succeeded."""
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(result: Result, code: int = 1) -> str:
    """Error output of a command that failed."""
    assert result.exit_code == code, result.output
    return result.stderr


def offsets(groups: GroupCluster, name: str) -> dict[tuple[str, int], int]:
    """The group's committed offsets."""
    return {tp: message[0] for tp, message in groups.by_name[name].offsets.items()}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output goes to a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("ottla.cli.common.tables.is_terminal", lambda: True)


def squeezed(text: str) -> list[str]:
    """Lines with runs of spaces collapsed."""
    return [" ".join(line.split()) for line in text.splitlines()]


# -- list, describe


def test_list_prints_a_line_per_group(ottla: Ottla) -> None:
    assert rows(ottla("list")) == "busy\tStable\tclassic\tconsumer\norders\tEmpty\tclassic\t\n"
    assert rows(ottla("list", "--state", "empty")) == "orders\tEmpty\tclassic\t\n"
    assert rows(ottla("list", "--type", "consumer")) == ""
    assert json.loads(output_of(ottla("list", "-o", "json")))[1] == {
        "group": "orders", "state": "Empty", "type": "classic", "protocol_type": None,
    }  # fmt: skip


def test_describe_prints_members_and_their_partitions(ottla: Ottla) -> None:
    assert rows(ottla("describe", "busy")) == "busy\tm1\ti-m1\tclient-m1\t10.0.0.1\tt:0\n"
    (report,) = json.loads(output_of(ottla("describe", "busy", "-o", "json")))
    assert report["coordinator"] == {"id": 1, "host": "node1", "port": 9092}
    assert report["members"][0]["assignment"] == {"t": [0]}


@pytest.mark.parametrize("arguments", [["describe"], ["lag"], ["delete-offsets", "-t", "t"], ["delete", "-y"]])
def test_a_group_that_does_not_exist_suggests_a_similar_name(ottla: Ottla, arguments: list[str]) -> None:
    assert "did you mean orders?" in error_of(ottla(*arguments, "order"))


# -- lag


def test_lag_prints_a_line_per_partition(ottla: Ottla) -> None:
    first, second = (line.split("\t") for line in rows(ottla("lag", "orders")).splitlines())
    assert first == ["orders", "many", "1", "5", "5", "0", "0", "", ""]
    assert second[:6] == ["orders", "t", "0", "4", "10", "6"]
    assert 6000 <= int(second[6]) < 36_000


def test_lag_is_summed_by_topic_by_group_and_for_all_groups(ottla: Ottla) -> None:
    assert [line.split("\t")[:4] for line in rows(ottla("lag", "--by", "topic", "orders")).splitlines()] == [
        ["orders", "many", "1", "0"],
        ["orders", "t", "1", "6"],
    ]
    assert [line.split("\t")[:4] for line in rows(ottla("lag", "--by", "group")).splitlines()] == [
        ["busy", "Stable", "1", "0"],
        ["orders", "Empty", "2", "6"],
    ]


def test_lag_as_json_has_totals_and_readers(ottla: Ottla) -> None:
    (report,) = json.loads(output_of(ottla("lag", "busy", "-o", "json")))
    assert (report["lag"], report["time_lag_ms"], report["topics"]) == (
        0, 0, [{"topic": "t", "partitions": 1, "lag": 0, "time_lag_ms": 0}],
    )  # fmt: skip
    assert (report["partitions"][0]["client_id"], report["partitions"][0]["committed_offset"]) == ("client-m1", 10)
    assert "read_per_s" not in report["partitions"][0]


def test_watch_prints_one_json_line_per_interval_with_rates(ottla: Ottla) -> None:
    first, second = map(json.loads, output_of(ottla("lag", "orders", "-w", "100ms", "-n", "2", "-o", "json")).splitlines())
    assert [one["partitions"][1]["read_per_s"] for one in (first, second)] == [None, 0.0]
    assert second["read_at_ms"] - first["read_at_ms"] >= 90


def test_watch_continues_when_a_request_fails(groups: GroupCluster, ottla: Ottla) -> None:
    def fail_later(node: Any, request: Any) -> Any:
        return CUT if len(groups.sent(m.DescribeGroupsRequest)) > 1 else None

    groups.faults["DescribeGroups"] += [fail_later] * 4
    result = ottla("lag", "orders", "-w", "100ms", "-n", "3", "--by", "group")
    headings, *lines = output_of(result).splitlines()
    assert headings.startswith("AT\tGROUP\t") and len(lines) == 2, "readings continue one table"
    assert "Error: " in result.stderr


def test_records_deleted_before_they_were_read_are_a_warning(groups: GroupCluster, ottla: Ottla) -> None:
    groups.logs["t"][0].start = 6
    assert "t-0: 2 records were deleted before the group read them" in ottla("lag", "orders").stderr


# -- reset


def test_reset_without_execute_prints_the_plan_and_changes_nothing(groups: GroupCluster, ottla: Ottla) -> None:
    result = ottla("reset", "orders", "--to-earliest", "--all-topics")
    assert rows(result) == "orders\tmany\t1\t5\t0\t\norders\tt\t0\t4\t0\t\n"
    assert "--execute" in result.stderr
    assert offsets(groups, "orders") == {T: 4, ("many", 1): 5}
    assert not groups.sent(m.OffsetCommitRequest)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["--to-earliest", "--all-topics"], {T: 0, ("many", 1): 0}),
        (["--to-latest", "-t", "t"], {T: 10, ("many", 1): 5}),
        (["--to-current", "-t", "many:0-1"], {T: 4, ("many", 1): 5, ("many", 0): 5}),
        (["--to-offset", "3", "-t", "many:2", "-t", "t"], {T: 3, ("many", 1): 5, ("many", 2): 3}),
        (["--shift-by", "-1", "--all-topics"], {T: 3, ("many", 1): 4}),
        (["--shift-by", "1", "-t", "many"], {T: 4, ("many", 1): 5}),
        (["--to-datetime", "1700000000003", "-t", "many:0"], {T: 4, ("many", 1): 5, ("many", 0): 3}),
        (["--by-duration", "1d", "--all-topics"], {T: 0, ("many", 1): 5}),
        (["--from-group", "busy"], {T: 10, ("many", 1): 5}),
    ],
)
def test_reset_moves_to_the_requested_position(
    groups: GroupCluster, ottla: Ottla, where: list[str], expected: dict[tuple[str, int], int]
) -> None:
    output_of(ottla("reset", "orders", *where, "--execute"))
    assert offsets(groups, "orders") == expected


def test_reset_restores_offsets_that_lag_and_export_printed(groups: GroupCluster, ottla: Ottla, tmp_path: Path) -> None:
    before = offsets(groups, "orders")
    lag, csv = tmp_path / "lag.json", tmp_path / "offsets.csv"
    lag.write_text(output_of(ottla("lag", "-o", "json")))
    csv.write_text(output_of(ottla("reset", "orders", "--to-current", "--all-topics", "--export")))
    assert csv.read_text() == "many,1,5\nt,0,4\n"
    for file in (lag, csv):
        output_of(ottla("reset", "orders", "--to-latest", "--all-topics", "--execute"))
        assert offsets(groups, "orders") != before
        output_of(ottla("reset", "orders", "--from-file", str(file), "--execute"))
        assert offsets(groups, "orders") == before
    report = json.loads(output_of(ottla("reset", "orders", "--from-file", "-", "-t", "t", "-o", "json", input=csv.read_text())))
    assert report["partitions"] == [{"topic": "t", "partition": 0, "from": 4, "to": 4, "note": None, "error": None}]


def test_reset_creates_a_missing_group(groups: GroupCluster, ottla: Ottla) -> None:
    assert "Group new does not exist" in ottla("reset", "new", "--from-group", "orders").stderr
    output_of(ottla("reset", "new", "--from-group", "orders", "--execute"))
    assert offsets(groups, "new") == offsets(groups, "orders")


def test_reset_refuses_a_group_with_members(groups: GroupCluster, ottla: Ottla) -> None:
    dry = ottla("reset", "busy", "--to-earliest", "--all-topics")
    assert rows(dry) == "busy\tt\t0\t10\t0\t\n"
    assert "Stop its consumers first" in dry.stderr
    assert "ottla group describe busy" in error_of(ottla("reset", "busy", "--to-earliest", "--all-topics", "--execute"))
    assert offsets(groups, "busy") == {T: 10}


def test_reset_reports_a_member_that_joined_after_the_plan(groups: GroupCluster, ottla: Ottla) -> None:
    def joined(node: Any, request: Any) -> Any:
        groups.by_name["orders"].members["m9"] = {}

    groups.faults["OffsetCommit"].append(joined)
    assert "Error: t-0: " in (message := error_of(ottla("reset", "orders", "--to-earliest", "-t", "t", "--execute")))
    assert "Stop its consumers first" in message


def test_reset_of_all_topics_skips_a_deleted_topic(groups: GroupCluster, ottla: Ottla) -> None:
    groups.by_name["orders"].offsets["gone", 0] = (3, "", -1)
    result = ottla("reset", "orders", "--to-earliest", "--all-topics")
    assert [line.split("\t")[1] for line in rows(result).splitlines()] == ["many", "t"]
    assert "gone-0: left out" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--to-earliest"], 2, "missing the partitions"),
        (["--all-topics"], 2, "expected one of --to-earliest"),
        (["--to-earliest", "--to-latest", "--all-topics"], 2, "expected one of --to-earliest"),
        (["--to-earliest", "--all-topics", "-t", "t"], 2, "--topic and --all-topics exclude each other"),
        (["--to-earliest", "-t", "t:x"], 2, "TOPIC:0,2-5"),
        (["--by-duration", "soon", "-t", "t"], 2, "--by-duration expects a duration"),
        (["--to-datetime", "soon", "-t", "t"], 2, "--to-datetime expects"),
        (["--to-earliest", "-t", "man"], 1, "topic man does not exist; did you mean many?"),
        (["--to-earliest", "-t", "t:0,7"], 1, "topic t has 1 partitions; partition 7 does not exist"),
        (["--from-group", "bus"], 1, "group bus does not exist; did you mean busy?"),
    ],
)
def test_reset_names_the_missing_option(ottla: Ottla, arguments: list[str], code: int, message: str) -> None:
    assert message in error_of(ottla("reset", "orders", *arguments), code)


def test_an_invalid_file_is_refused_with_its_line(ottla: Ottla) -> None:
    assert "line 2: " in error_of(ottla("reset", "orders", "--from-file", "-", input="t,0,1\nt\n"))


def test_reset_of_all_topics_without_committed_offsets_requires_topics(ottla: Ottla) -> None:
    assert "--topic TOPIC" in error_of(ottla("reset", "new", "--to-earliest", "--all-topics"))


# -- delete, delete-offsets


def test_delete_removes_idle_groups_and_refuses_others(groups: GroupCluster, ottla: Ottla) -> None:
    result = ottla("delete", "orders", "busy", "nowhere", "--if-exists", "-y")
    assert result.stdout == "orders\tdeleted\nnowhere\tnot there\n"
    assert "Error: busy: " in (message := error_of(result))
    assert "Stop its consumers first" in message
    assert set(groups.by_name) == {"busy"}


def test_delete_offsets_removes_the_offsets_of_some_partitions(groups: GroupCluster, ottla: Ottla) -> None:
    assert output_of(ottla("delete-offsets", "orders", "-t", "many:0-2", "-y")) == "many-1\tdeleted\n"
    assert offsets(groups, "orders") == {T: 4}
    assert "no offsets in many" in error_of(ottla("delete-offsets", "orders", "-t", "many", "-t", "t", "-y"))
    assert offsets(groups, "orders") == {T: 4}


def test_offsets_of_a_member_are_not_deleted(ottla: Ottla) -> None:
    result = ottla("delete-offsets", "busy", "-t", "t", "-y", "-o", "json")
    assert "unsubscribe" in json.loads(result.stdout)[0]["error"]["message"]
    assert result.exit_code == 1


def test_dry_runs_report_deletions_and_obstacles(groups: GroupCluster, ottla: Ottla) -> None:
    result = ottla("delete", "orders", "busy", "--dry-run")
    assert result.stdout == "orders\twould be deleted\n"
    assert "Stop its consumers first" in error_of(result)
    assert output_of(ottla("delete-offsets", "orders", "-t", "many", "--dry-run")) == "many-1\twould be deleted\n"
    assert "unsubscribe" in error_of(ottla("delete-offsets", "busy", "-t", "t", "--dry-run"))
    assert output_of(ottla("remove-members", "busy", "--all", "--dry-run")) == "m1\twould be removed\n"
    for kind in (m.DeleteGroupsRequest, m.OffsetDeleteRequest, m.LeaveGroupRequest):
        assert not groups.sent(kind)


def test_nothing_is_deleted_before_confirmation(groups: GroupCluster, ottla: Ottla) -> None:
    for arguments in (["delete", "orders"], ["delete-offsets", "orders", "-t", "t"], ["remove-members", "busy", "--all"]):
        assert "--yes" in error_of(ottla(*arguments), 2)
    for kind in (m.DeleteGroupsRequest, m.OffsetDeleteRequest, m.LeaveGroupRequest):
        assert not groups.sent(kind)


def test_members_are_removed_by_instance_id_or_all_at_once(groups: GroupCluster, ottla: Ottla) -> None:
    assert "did you mean i-m1?" in error_of(ottla("remove-members", "busy", "--instance", "i-m2", "-y"))
    assert output_of(ottla("remove-members", "busy", "--instance", "i-m1", "-y")) == "i-m1\tremoved\n"
    assert not groups.by_name["busy"].members
    assert "has no members" in error_of(ottla("remove-members", "busy", "--all", "-y"))
    error_of(ottla("remove-members", "busy"), 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["describe", "busy"],
        ["lag"],
        ["lag", "orders", "-w", "100ms", "-n", "1"],
        ["reset", "orders", "--to-earliest", "--all-topics"],
        ["delete", "orders", "-y"],
        ["delete-offsets", "orders", "-t", "t", "-y"],
        ["remove-members", "busy", "--all", "-y"],
    ],
)
def test_json_documents_have_the_fields_of_the_reference(ottla: Ottla, arguments: list[str]) -> None:
    assert documents(ottla(*arguments, "-o", "json"), "group", arguments[0])


# -- on a terminal


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_tables_with_titles_and_durations(ottla: Ottla) -> None:
    assert "orders Empty classic -" in squeezed(output_of(ottla("list")))
    described = squeezed(output_of(ottla("describe", "busy", "orders")))
    assert described[0] == "busy classic Stable range coordinator 1 (node1:9092)"
    assert "m1 i-m1 client-m1 10.0.0.1 t:0" in described
    assert described[-1] == "orders classic Empty coordinator 1 (node1:9092) no members"
    lag = squeezed(output_of(ottla("lag", "orders")))
    assert lag[0].startswith("orders Empty lag 6 time lag 6")
    assert lag[1] == "TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG TIME-LAG CLIENT-ID HOST"
    assert "many 1 5 5 0 0s - -" in lag
    assert squeezed(output_of(ottla("lag", "--by", "group")))[0] == "GROUP STATE PARTITIONS LAG TIME-LAG"
    assert "t 0 4 0 -" in squeezed(output_of(ottla("reset", "orders", "--to-earliest", "--all-topics")))


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("by", ["partition", "topic", "group"])
def test_watch_redraws_its_table_with_rates_on_a_terminal(groups: GroupCluster, ottla: Ottla, by: str) -> None:
    def written(node: Any, request: Any) -> Any:
        groups.write("t", 0, int(time.time() * 1000))

    groups.faults["OffsetFetch"].append(written)
    shown = squeezed(output_of(ottla("lag", "orders", "--watch", "100ms", "-n", "2", "--by", by)))
    assert any(line.endswith("READ/S WRITTEN/S") for line in shown)
    (row,) = [line for line in shown if line.startswith({"partition": "t 0", "topic": "t 1", "group": "orders Empty 2"}[by])]
    read_per_s, written_per_s = row.split()[-2:]
    assert read_per_s == "0.0"
    assert float(written_per_s) > 0
