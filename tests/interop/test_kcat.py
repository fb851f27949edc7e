"""kcat in a shell. Debian has it in the package of that name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from client_adapters import ADAPTERS, Sent

from serving import SOURCE

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.server,
    pytest.mark.skipif(KCAT is None, reason="kcat is not installed (on Debian: apt-get install kcat)"),
]


def kcat(bootstrap: str, *arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run([str(KCAT), "-b", bootstrap, *arguments], input=stdin, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def read(bootstrap: str, topic: str, *arguments: str) -> list[dict[str, object]]:
    """Records of partition 0 from the beginning to the current end."""
    lines = kcat(bootstrap, "-C", "-q", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-J", *arguments).decode().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "zstd"])
def test_kcat_reads_what_it_wrote_in_every_codec(bootstrap: str, new_topic: Callable[..., str], codec: str) -> None:
    topic = new_topic()
    lines = "".join(f"k{i % 3}:value {i} {'x' * 50}\n" for i in range(500)).encode()
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", "-K:", "-z", codec, "-H", "source=kcat", stdin=lines)
    found = read(bootstrap, topic)
    assert [record["payload"] for record in found] == [f"value {i} {'x' * 50}" for i in range(500)]
    assert [record["key"] for record in found] == [f"k{i % 3}" for i in range(500)]
    assert [record["offset"] for record in found] == list(range(500))
    assert all(record["headers"] == ["source", "kcat"] for record in found)
    assert [r.value for r in ADAPTERS[1].consume(bootstrap, topic, 500)] == [str(r["payload"]).encode() for r in found]


def test_kcat_writes_and_shows_nulls_and_is_idempotent_when_asked(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", "-K:", "-Z", "-X", "enable.idempotence=true", stdin=b"gone:\n:bare\nk:v\n")
    assert [(r["key"], r["payload"]) for r in read(bootstrap, topic)] == [("gone", None), (None, "bare"), ("k", "v")]


def test_kcat_copies_a_large_file_through_a_topic(bootstrap: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic()
    file = tmp_path / "file"
    file.write_bytes(Random(4).randbytes(900_000))
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", str(file))
    assert kcat(bootstrap, "-C", "-q", "-t", topic, "-p", "0", "-o", "0", "-c", "1", "-D", "") == file.read_bytes()


def test_kcat_lists_topics_and_finds_offsets_by_time(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    at_ms = Sent(None, b"").timestamp_ms
    ADAPTERS[0].produce(bootstrap, topic, [Sent(None, b"%d" % i, (), at_ms + i) for i in range(10)], partition=1)
    listed = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    assert [p["partition"] for found in listed["topics"] if found["topic"] == topic for p in found["partitions"]] == [0, 1]
    asked = kcat(bootstrap, "-Q", "-t", f"{topic}:1:{at_ms + 4}", "-t", f"{topic}:0:{at_ms}")
    assert f"{topic} [1] offset 4".encode() in asked
    lines = kcat(bootstrap, "-C", "-q", "-t", topic, "-p", "1", "-o", f"s@{at_ms + 7}", "-e", "-f", "%o %s\n")
    assert lines.split() == [b"7", b"7", b"8", b"8", b"9", b"9"]
    tail = kcat(bootstrap, "-C", "-q", "-t", topic, "-p", "1", "-o", "-2", "-e", "-f", "%s ")
    assert tail.split() == [b"8", b"9"]


def test_consume_prints_every_token_as_kcat_does(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", "-K:", "-Z", "-H", "a=1", "-H", "a=2", "-H", "null", stdin=b"k:v\n:bare\ngone:\n")
    form = r"%t %p %o %k %K %s %S %T %h %%|%R\x41\t\n"
    theirs = kcat(bootstrap, "-C", "-q", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-f", form)
    ours = subprocess.run(
        [sys.executable, "-m", "ottla", "consume", f"{topic}/0@:end", "-f", form, "-b", bootstrap],
        capture_output=True, timeout=60, check=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert ours.stdout == theirs
