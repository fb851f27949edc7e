"""Grammar of all commands: options that may stand before the command, the version, and errors as JSON."""

import json

import pytest
from fake_admin import FakeAdmin

from commands import Ottla, good
from ottla.base.version import VERSION


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "json", "topic", "list"],
        ["--output=json", "-b", "h:1", "topic", "list"],
        ["-ojson", "topic", "list"],
        ["topic", "list", "-o", "json"],
    ],
)
def test_output_and_cluster_may_be_given_before_the_command(cluster: FakeAdmin, ottla: Ottla, arguments: list[str]) -> None:
    assert [topic["name"] for topic in json.loads(good(ottla(*arguments)))] == ["orders", "payments"]


def test_an_option_before_a_command_that_does_not_have_it_is_refused_by_the_command(ottla: Ottla) -> None:
    done = ottla("-o", "json", "completion", "bash")
    assert done.exit_code == 2
    assert "No such option" in done.output


def test_the_version_is_also_json(ottla: Ottla) -> None:
    assert good(ottla("--version")) == f"ottla {VERSION}\n"
    for arguments in (["-o", "json", "--version"], ["--version", "-o", "json"]):
        document = json.loads(good(ottla(*arguments)))
        assert document["version"] == VERSION
        assert document["codec"] in ("compiled", "python")


def test_errors_are_json_where_the_output_is(cluster: FakeAdmin, ottla: Ottla) -> None:
    done = ottla("topic", "describe", "nowhere", "-o", "json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "nowhere" in json.loads(done.stderr)["error"]["message"]
    usage = ottla("topic", "create", "-o", "json")
    assert usage.exit_code == 2
    assert "NAME" in json.loads(usage.stderr)["error"]["message"]
    assert ottla("topic", "describe", "nowhere").stderr.startswith("Error: ")


def test_a_table_is_synced_by_a_verb_as_everything_else(ottla: Ottla) -> None:
    assert "sync" in good(ottla("table", "--help"))
    assert "TOPIC[/PARTITIONS]" in good(ottla("table", "sync", "--help"))
    old = ottla("table", "status", "--to", "dir"), ottla("table", "orders", "--to", "a dir", "--once")
    assert [one.exit_code for one in old] == [2, 2]
    assert "write: ottla table sync orders --to 'a dir' --once" in old[1].stderr
