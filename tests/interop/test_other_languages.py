"""Clients of other languages: Apache Kafka's own for Java, franz-go, KafkaJS; each a small program in `foreign/`.

What it takes to build them comes from their registries and is kept under `~/.cache/ottla-interop` (or `$OTTLA_INTEROP_CACHE`). Where a
compiler or a registry is out of reach the test is skipped and says what is missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from bench import maven
from bench.maven import PeerUnavailable
from faces import FACES
from test_clients import address, expected, sample

from plain_kafka import CODECS, Record, fetch_all

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(420), pytest.mark.xdist_group("other_languages")]

FOREIGN = Path(__file__).parent / "foreign"
CACHE = Path(os.environ.get("OTTLA_INTEROP_CACHE") or Path.home() / ".cache" / "ottla-interop")
FRANZ_GO, KADM, KAFKAJS = "v1.19.5", "v1.16.1", "2.2.4"
COUNT = 200
BUILD_TIMEOUT_S = 300


def run(command: Sequence[str | Path], **more: object) -> str:
    """What a program prints; its failure is the test's."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=90, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    return str(done.stdout)


def built(name: str, version: str, source: Path, build: Callable[[Path], None]) -> Path:
    """The directory of a built program, made when its source or version is new. Skips where it cannot be made."""
    target = CACHE / f"{name}-{hashlib.sha256(version.encode() + source.read_bytes()).hexdigest()[:16]}"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        place = Path(scratch) / "build"
        place.mkdir()
        shutil.copy2(source, place / source.name)
        build(place)
        if not target.exists():
            place.rename(target)
    return target


def built_by(place: Path, *commands: Sequence[str], missing: str) -> None:
    """Runs the steps of a build; where one fails, the registry it asks is taken to be out of reach."""
    for command in commands:
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{missing}: {command[0]} did not end within {BUILD_TIMEOUT_S} s")
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip().splitlines()
            pytest.skip(f"{missing}: {' '.join(command[:3])} failed: {said[-1][:200] if said else ''}")


@pytest.fixture(scope="session")
def java() -> Callable[..., str]:
    """Runs the Java program with arguments."""
    try:
        runtime = maven.java()
        version, lib = maven.newest("kafka-clients", "org.apache.kafka", "kafka-clients", pattern=r"4\.\d+\.\d+")
    except PeerUnavailable as why:
        pytest.skip(f"Apache Kafka's Java client cannot be had here: {why}")
    compiler = Path(runtime.home) / "bin" / "javac"
    found = str(compiler) if compiler.exists() else shutil.which("javac")
    if not found:
        pytest.skip("there is a Java here, but no compiler (javac)")

    def build(place: Path) -> None:
        run([found, "-cp", f"{lib}/*", "-d", place, place / "JavaClient.java"])

    classes = built("java", version, FOREIGN / "JavaClient.java", build)

    def client(*arguments: str) -> str:
        return run([runtime.path, "-Xmx256M", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}{os.pathsep}{lib}/*", "JavaClient", *arguments])

    return client


def fresh(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:10]}"


def test_java_writes_idempotently_with_every_codec_and_others_read_it(java: Callable[..., str], bootstrap: str) -> None:
    topic = fresh("java")
    offsets = [line.split() for line in java("write", bootstrap, topic, str(COUNT)).splitlines()]
    assert offsets == [[codec, str(i * COUNT), str((i + 1) * COUNT - 1)] for i, codec in enumerate(CODECS)]
    stored = fetch_all(address(bootstrap), topic)
    for number, codec in enumerate(CODECS):
        own = [batch for batch in stored if number * COUNT <= batch.base_offset < (number + 1) * COUNT]
        assert {batch.codec for batch in own} == {codec}
        assert min(batch.producer_id for batch in own) >= 0 and own[0].base_sequence == 0, "it is idempotent by itself"
    for face in FACES:
        read = face.consume(bootstrap, topic, COUNT * len(CODECS))
        assert [record.offset for record in read] == list(range(COUNT * len(CODECS)))
        for record in read:
            codec, number = CODECS[record.offset // COUNT], record.offset % COUNT
            assert record.value == (None if number % 5 == 4 else f"{codec} value {number}".encode() * 5)
            assert record.key == (None if number % 3 == 0 else b"key %d" % (number % 7))
            assert record.headers == (("number", b"%d" % number), ("null", None))


def test_java_reads_what_every_other_client_wrote(java: Callable[..., str], bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    records: list[Record] = []
    for face in FACES:
        for codec in CODECS:
            sent = sample(face)[:40]
            face.produce(bootstrap, topic, sent, codec=codec)
            records += expected(sent, len(records))
    assert [parsed(line) for line in java("read", bootstrap, topic, str(len(records))).splitlines()] == records


def parsed(line: str) -> Record:
    def unhexed(text: str) -> bytes | None:
        return None if text == "null" else bytes.fromhex(text[1:])

    offset, timestamp_ms, key, value, *headers = line.split(" ")
    pairs = (header.split("=") for header in headers)
    named = tuple(((unhexed(name) or b"").decode(), unhexed(content)) for name, content in pairs)
    return Record(int(offset), int(timestamp_ms), unhexed(key), unhexed(value), named)


def test_java_administers_topics(java: Callable[..., str], bootstrap: str) -> None:
    assert java("admin", bootstrap, fresh("java")).splitlines()[-1] == "fine"


def test_franz_go_administers_writes_with_every_codec_and_reads(bootstrap: str) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    modules = [f"github.com/twmb/franz-go@{FRANZ_GO}", f"github.com/twmb/franz-go/pkg/kadm@{KADM}"]

    def build(place: Path) -> None:
        missing = "franz-go cannot be had here"
        steps = (["go", "mod", "init", "ottla.test/client"], ["go", "get", *modules], ["go", "build", "-o", "client", "."])
        built_by(place, *steps, missing=missing)

    program = built("go", FRANZ_GO + KADM, FOREIGN / "client.go", build) / "client"
    topic = fresh("go")
    assert run([program, bootstrap, topic, str(COUNT)]).split() == ["fine", str(COUNT * len(CODECS))]
    stored = fetch_all(address(bootstrap), topic)
    assert {batch.codec for batch in stored} == set(CODECS)
    assert min(batch.producer_id for batch in stored) >= 0


def test_kafkajs_administers_and_writes(bootstrap: str) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js with npm is not installed")

    def build(place: Path) -> None:
        (place / "package.json").write_text('{"private": true, "type": "module"}')
        step = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"kafkajs@{KAFKAJS}"]
        built_by(place, step, missing="KafkaJS cannot be had here")

    place = built("node", KAFKAJS, FOREIGN / "client.mjs", build)
    topic = fresh("node")
    environment = {**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    assert run(["node", place / "client.mjs", bootstrap, topic, str(COUNT)], env=environment).splitlines()[-1] == "fine"
    read = FACES[0].consume(bootstrap, topic, 2 * COUNT - 1, offset=1)
    assert [r.value for r in read] == [f"{codec} {i} ".encode() * 5 for codec in ("none", "gzip") for i in range(COUNT)][1:]
    assert {batch.codec for batch in fetch_all(address(bootstrap), topic, 0, 1)} == {"none", "gzip"}
