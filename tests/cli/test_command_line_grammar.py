"""Grammar of all commands: options that may stand before the command, the version, and errors as JSON."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fake_admin import FakeAdmin

from commands import Ottla, documents, good
from ottla.base.version import VERSION
from ottla.cli.main import main


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


#: Commands without `-o json`, and why.
WITHOUT_JSON = {
    ("serve",): "runs until it is stopped; --log-format json is for its log",
    ("zookeeper",): "runs until it is stopped",
    ("console",): "runs until it is stopped",
    ("registry", "serve"): "runs until it is stopped",
    ("registry", "delete"): "changes the registry and prints nothing",
    ("top",): "runs until it is stopped",
    ("completion",): "prints a script for a shell",
    ("service", "install"): "changes the machine; --dry-run prints its steps",
    ("service", "uninstall"): "changes the machine; --dry-run prints its steps",
    ("import", "znodes"): "prints JSON",
    ("sim", "run"): "prints traces of a simulation",
    ("sim", "replay"): "prints traces of a simulation",
}


def test_every_command_but_those_of_the_list_prints_json() -> None:
    plain = set()
    for path, command in leaves(main):
        choices = [one.type.choices for one in command.params if "--output" in one.opts and isinstance(one.type, click.Choice)]
        if not any("json" in each for each in choices):
            plain.add(path)
    assert plain == set(WITHOUT_JSON)


def test_no_line_of_a_list_of_commands_is_cut(ottla: Ottla) -> None:
    groups = {path[:-1] for path, _ in leaves(main)}
    lists = [good(ottla(*group, "--help")).partition("Commands:")[2] for group in sorted(groups)]
    assert len(lists) > 20
    assert [line for one in lists for line in one.splitlines() if line.endswith("...")] == []


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def test_changes_of_profiles_are_reported_as_json(ottla: Ottla) -> None:
    added = documents(ottla("profile", "add", "here", "h:9092", "-o", "json"), "profile", "add")
    assert added == {"name": "here", "outcome": "added", "error": None}
    used = documents(ottla("profile", "use", "here", "-o", "json"), "profile", "use")
    assert (used["outcome"], used["bootstrap_servers"]) == ("in use", "h:9092")
    planned = documents(ottla("profile", "remove", "here", "--dry-run", "-o", "json"), "profile", "remove")
    assert planned["outcome"] == "would be removed"
    assert documents(ottla("profile", "remove", "here", "-o", "json"), "profile", "remove")["outcome"] == "removed"


def test_an_empty_store_is_checked_as_json(ottla: Ottla, tmp_path: Path) -> None:
    report = documents(ottla("store", "check", "--data-dir", str(tmp_path), "-o", "json"), "store", "check")
    assert (report["good"], report["nodes"], report["copies"]) == (True, None, [])
