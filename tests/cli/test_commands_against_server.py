"""Commands against a real broker, in a pipe and on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from fcntl import ioctl
from struct import pack
from termios import TIOCSWINSZ
from typing import Any

import pytest

from commands import Ottla, documents, good, refused
from ottla.client.sync.producer import Producer
from serving import Serving

pytestmark = pytest.mark.server
COLUMNS = 60


@pytest.fixture
def at(ottla_server: Serving, ottla: Ottla) -> Ottla:
    return lambda *arguments, **more: ottla(*arguments, "-b", ottla_server.bootstrap, **more)


def read(at: Ottla, *words: str) -> Any:
    """JSON output of a command; the first two words name the command."""
    return documents(at(*words, "-o", "json"), *words[:2])


def test_topic_commands_create_describe_change_and_delete(ottla_server: Serving, at: Ottla) -> None:
    assert good(at("topic", "create", "nouns.life", "-p", "2", "-c", "retention.ms=7d", "--dry-run")) == "nouns.life\twould be created\n"
    assert good(at("topic", "create", "nouns.life", "-p", "2", "-c", "retention.ms=7d")) == "nouns.life\tcreated\n"
    assert "retention.m: Unknown topic config name; did you mean retention.ms?" in refused(
        at("topic", "create", "nouns.other", "-c", "retention.m=1", "--dry-run")
    )
    assert refused(at("topic", "describe", "nouns.lif")) == "Error: topic nouns.lif does not exist; did you mean nouns.life?\n"
    with Producer(bootstrap_servers=ottla_server.bootstrap) as producer:
        for number in range(10):
            producer.send("nouns.life", b"v", partition=number % 2)
    assert [one["records"] for one in read(at, "topic", "offsets", "nouns.life")] == [5, 5]
    assert [one["partition"] for one in read(at, "topic", "producers", "nouns.life")] == [0, 1]
    assert [one["outcome"] for one in read(at, "topic", "records-delete", "nouns.life:1", "--before-offset", "3", "-y")] == ["deleted"]
    (report,) = read(at, "topic", "describe", "nouns.life")
    assert [(one["start_offset"], one["end_offset"]) for one in report["partitions"]] == [(0, 5), (3, 5)]
    assert [one["outcome"] for one in read(at, "topic", "alter", "nouns.life", "-p", "3", "-d", "retention.ms")] == ["set", "deleted"]
    assert "nouns.life" not in {one["topic"] for one in read(at, "topic", "partitions", "--under-replicated")}
    (dry,) = read(at, "topic", "delete", "nouns.life", "--dry-run")
    assert (dry["partitions"], dry["records"]) == (3, 7)
    assert good(at("topic", "delete", "nouns.life", "-y")) == "nouns.life\tdeleted\n"


def test_a_subscription_of_client_metrics_is_set_and_described(at: Ottla) -> None:
    (changed,) = read(at, "config", "set", "client-metrics", "m", "interval.ms=1000")
    assert (changed["before"], changed["after"], changed["outcome"]) == ("300000", "1000", "set")
    (setting,) = read(at, "config", "describe", "client-metrics", "m")
    assert (setting["setting"], setting["source"]) == ("interval.ms", "client_metrics")
    assert "100" in refused(at("config", "set", "client-metrics", "m", "interval.ms=1"))


def test_log_levels_are_shown_changed_and_reset(at: Ottla) -> None:
    assert {one["logger"]: one["level"] for one in read(at, "broker", "log-level", "1")}["ottla.replica"] in ("INFO", "WARN")
    (changed,) = read(at, "broker", "log-level", "1", "ottla.replica=debug")
    assert (changed["setting"], changed["after"], changed["outcome"]) == ("ottla.replica", "DEBUG", "set")
    assert {one["logger"]: one["level"] for one in read(at, "broker", "log-level", "1")}["ottla.replica"] == "DEBUG"
    assert [one["outcome"] for one in read(at, "broker", "log-level", "1", "--reset", "ottla.replica")] == ["deleted"]
    (same,) = read(at, "config", "set", "broker-logger", "1", "ottla.group=WARN")
    assert same["outcome"] == "set"
    assert "there is no logger 'kafka'" in refused(at("broker", "log-level", "1", "kafka=DEBUG"))


def test_settings_of_topics_brokers_and_the_cluster(at: Ottla) -> None:
    good(at("topic", "create", "nouns.settings"))
    (changed,) = read(at, "config", "set", "topic", "nouns.settings", "cleanup.policy+=compact")
    assert (changed["before"], changed["after"]) == ("delete", "delete,compact")
    (report,) = read(at, "config", "describe", "topic", "nouns.settings")
    assert (report["value"], report["source"], report["default"], report["type"]) == ("delete,compact", "topic", "delete", "list")
    assert report["documentation"]
    (dry,) = read(at, "config", "set", "cluster", "log.retention.ms=1d", "--dry-run")
    assert dry["outcome"] == "would be set"
    assert read(at, "config", "describe", "cluster") == []
    assert "did you mean log.retention.ms?" in refused(at("config", "set", "cluster", "log.retention.m=1"))
    assert {"resource": "topic", "name": "nouns.settings"} in read(at, "config", "list", "topic")


def test_brokers_and_the_cluster(ottla_server: Serving, at: Ottla) -> None:
    (broker,) = read(at, "broker", "list")
    assert f"{broker['host']}:{broker['port']}" == ottla_server.bootstrap
    (described,) = read(at, "broker", "describe", str(broker["broker"]))
    assert described["log_dirs"][0]["error"] is None
    assert read(at, "broker", "log-dirs")[0]["path"] == described["log_dirs"][0]["path"]
    assert read(at, "cluster", "describe")["controller"] == broker["broker"]
    assert {"Produce", "Fetch"} <= {one["name"] for one in read(at, "cluster", "apis")}
    levels = {one["name"]: (one["supported_last"], one["finalized_last"]) for one in read(at, "cluster", "features")}
    assert levels["ottla.version"] == (2, 2) and levels["metadata.version"] == (33, 33)
    good(at("cluster", "features-update", "metadata.version=30", "--downgrade"))
    assert good(at("cluster", "features-update", "--latest")) == "metadata.version\t30 to 33\n"
    assert "cannot be lowered from 2 to 1" in refused(at("cluster", "features-update", "ottla.version=1", "--downgrade"))
    assert "Error: " in refused(at("cluster", "quorum"))


def test_elect_dry_run_reports_its_plan(at: Ottla) -> None:
    good(at("topic", "create", "nouns.elect"))
    assert good(at("cluster", "elect", "-t", "nouns.elect", "--dry-run")) == "nouns.elect-0\tnot needed\n"


def on_a_terminal(server: Serving, *arguments: str, typed: bytes = b"") -> tuple[int, str]:
    """Exit code and output on a narrow terminal."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {**os.environ, "OTTLA_BOOTSTRAP_SERVERS": server.bootstrap, "NO_COLOR": "1", "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "ottla", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        os.write(ours, typed)
        seen = b""
        try:
            while piece := os.read(ours, 65536):
                seen += piece
        except OSError:
            # The other end is closed: the command has ended.
            pass
        code = process.wait(30)
    os.close(ours)
    return code, seen.decode()


def test_a_terminal_gets_a_table_that_fits_and_a_confirmation_before_a_topic_is_deleted(ottla_server: Serving, at: Ottla) -> None:
    name = "nouns.a.topic.with.a.name.that.takes.more.than.the.half.of.it"
    good(at("topic", "create", name, "-p", "2"))
    code, seen = on_a_terminal(ottla_server, "topic", "list", "nouns.a.*")
    lines = seen.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines] == ["NAME", "PARTITIONS", "REPLICAS", "RECORDS", "SIZE", "WRITTEN/S"], "a block"
    assert lines[0].split() == ["NAME", name], "a name is not broken, even if it is wider than the terminal"
    assert max(map(len, lines[1:])) <= COLUMNS
    code, seen = on_a_terminal(ottla_server, "topic", "delete", name, typed=b"n\n")
    assert code == 1
    assert f"{name}: 2 partitions, 0 records" in seen.replace("\r\n", "")
    code, seen = on_a_terminal(ottla_server, "topic", "delete", name, typed=b"y\n")
    assert code == 0
    assert name not in {one["name"] for one in read(at, "topic", "list")}


def completed(server: str) -> tuple[str, str]:
    """The completions for `ottla topic describe nouns.c`, and other output that its user would see."""
    environment = {"_OTTLA_COMPLETE": "bash_complete", "COMP_WORDS": "ottla topic describe nouns.c", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "ottla"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={**os.environ, "OTTLA_BOOTSTRAP_SERVERS": server, **environment},
    )
    return done.stdout, done.stderr


def test_names_are_completed_and_nothing_is_printed_without_a_broker(at: Ottla, ottla_server: Serving) -> None:
    good(at("topic", "create", "nouns.completed"))
    # A slow machine can exceed the completion timeout: there are no completions then.
    deadline = time.monotonic() + 30
    while completed(ottla_server.bootstrap) != ("plain,nouns.completed\n", ""):
        assert time.monotonic() < deadline, "the name is completed"
    assert completed("127.0.0.1:1") == ("\n", "")
