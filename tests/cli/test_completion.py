"""Shell completion: commands without importing them, names of the selected cluster, and nothing after an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from fake_admin import FakeAdmin

from commands import Ottla, good, refused
from ottla.cli.main import main
from ottla.client.admin.results import Node
from ottla.client.admin.transaction_results import TransactionDescription, TransactionState

SOURCE = Path(__file__).resolve().parents[2] / "src"


def offered(*words: str) -> list[str]:
    """The completions of the last word."""
    shell = ShellComplete(main, {}, "ottla", "_OTTLA_COMPLETE")
    return [one.value for one in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["topi"], ["topic"]),
        (["topic", "re"], ["records-delete"]),
        (["topic", "describe", "or"], ["orders"]),
        (["topic", "describe", "orders", ""], ["payments"]),
        (["topic", "describe", "__"], ["__consumer_offsets"]),
        (["topic", "list", "--profile", ""], ["here"]),
        (["profile", "use", "h"], ["here"]),
        (["topic", "create", "x", "-c", "retention."], ["retention.bytes=", "retention.ms="]),
        (
            ["topic", "create", "x", "-c", "message.timestamp.type="],
            ["message.timestamp.type=CreateTime", "message.timestamp.type=LogAppendTime"],
        ),
        (["topic", "alter", "x", "-d", "retention.m"], ["retention.ms"]),
        (["broker", "describe", ""], ["1", "2"]),
        (["transaction", "describe", "bil"], ["billing-1"]),
        (["topic", "partitions", "--broker", ""], ["1", "2"]),
        (["config", "describe", ""], ["topic", "broker", "cluster", "group", "client-metrics", "broker-logger"]),
        (["config", "describe", "topic", "pay"], ["payments"]),
        (["config", "describe", "broker", ""], ["1", "2"]),
        (["config", "set", "topic", "pay"], ["payments"]),
        (["config", "set", "topic", "payments", "retention.m"], ["retention.ms="]),
        (["config", "set", "cluster", "num.io"], ["num.io.threads="]),
        (["config", "delete", "broker", "1", "num"], ["num.io.threads"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_names_are_completed_where_they_are_expected(
    isolated_environment: Path, cluster: FakeAdmin, words: list[str], expected: list[str]
) -> None:
    isolated_environment.write_text('[profiles.here]\nbootstrap_servers = "x:1"\n')
    cluster.transactions["billing-1"] = TransactionDescription(
        "billing-1", Node(1, "one", 9092), TransactionState.EMPTY, 7, 0, 60_000, None, []
    )
    assert offered(*words) == expected


def test_completion_asks_the_cluster_of_the_command_line_with_a_short_timeout(isolated_environment: Path, cluster: FakeAdmin) -> None:
    isolated_environment.write_text('[profiles.here]\nbootstrap_servers = "x:1"\nclient_id = "me"\n')
    offered("topic", "describe", "-b", "y:2", "")
    assert cluster.made[-1]["bootstrap_servers"] == "y:2"
    offered("topic", "describe", "--profile", "here", "")
    assert cluster.made[-1]["bootstrap_servers"] == "x:1"
    assert cluster.made[-1]["default_api_timeout_ms"] <= 1000


@pytest.mark.parametrize("failure", [OSError("no"), RuntimeError("no"), SystemExit(1)])
def test_an_error_completes_nothing_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: BaseException
) -> None:
    def fail(**_: Any) -> None:
        raise failure

    monkeypatch.setattr("ottla.client.sync.admin.Admin", fail)
    assert offered("topic", "describe", "") == []
    assert offered("topic", "list", "--profile", "absent", "") == []
    assert capsys.readouterr() == ("", "")


def test_commands_are_completed_without_importing_them() -> None:
    program = (
        "import sys\nfrom ottla.cli.main import main\ntry: main(prog_name='ottla')\nexcept SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('ottla.')), file=sys.stderr)"
    )
    environment = {"PYTHONPATH": str(SOURCE), "_OTTLA_COMPLETE": "bash_complete", "COMP_WORDS": "ottla topi", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment})
    assert done.stdout == "plain,topic\n", done.stderr
    assert eval(done.stderr) == ["ottla.cli", "ottla.cli.common", "ottla.cli.common.lazy", "ottla.cli.main"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_script_calls_ottla(ottla: Ottla, shell: str) -> None:
    script = good(ottla("completion", shell))
    assert f"_OTTLA_COMPLETE={shell}_complete" in script
    assert "ottla" in script
    assert ("-o nospace" in script) is (shell == "bash")


def test_an_unknown_shell_is_refused_with_the_known_ones(ottla: Ottla) -> None:
    assert "bash" in refused(ottla("completion", "tcsh"), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topik", "list"], "unknown command topik; did you mean topic?"),
        (["topic", "lst"], "unknown command lst; did you mean list?"),
        (["config", "descrbe"], "did you mean describe?"),
        (["cluster", "reassign", "exec"], "did you mean execute?"),
        (["profile", "zzz"], "commands are: add, list, remove, show, use"),
    ],
)
def test_a_missing_command_suggests_a_similar_name(ottla: Ottla, arguments: list[str], message: str) -> None:
    assert message in refused(ottla(*arguments), 2)
