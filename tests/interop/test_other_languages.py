"""Clients in other languages: Apache Kafka's Java client, franz-go, KafkaJS; each a small program in `foreign/`.

Their packages come from their registries (`builds`). Without a compiler or a registry the test is skipped with the name of what is
missing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

import pytest
from builds import FRANZ_GO, go_built, java_built, node_built, run
from client_adapters import ADAPTERS
from test_clients import address, expected, sample

from plain_kafka import CODECS, Record, fetch_all

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(420), pytest.mark.xdist_group("other_languages")]

KADM = "v1.16.1"
COUNT = 200


@pytest.fixture(scope="session")
def java() -> Callable[..., str]:
    """Runs the Java program with arguments."""
    runtime, classpath = java_built("JavaClient")

    def client(*arguments: str) -> str:
        return run([runtime.path, "-Xmx256M", "-XX:TieredStopAtLevel=1", "-cp", classpath, "JavaClient", *arguments])

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
    for adapter in ADAPTERS:
        read = adapter.consume(bootstrap, topic, COUNT * len(CODECS))
        assert [record.offset for record in read] == list(range(COUNT * len(CODECS)))
        for record in read:
            codec, number = CODECS[record.offset // COUNT], record.offset % COUNT
            assert record.value == (None if number % 5 == 4 else f"{codec} value {number}".encode() * 5)
            assert record.key == (None if number % 3 == 0 else b"key %d" % (number % 7))
            assert record.headers == (("number", b"%d" % number), ("null", None))


def test_java_reads_what_every_other_client_wrote(java: Callable[..., str], bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    records: list[Record] = []
    for adapter in ADAPTERS:
        for codec in CODECS:
            sent = sample(adapter)[:40]
            adapter.produce(bootstrap, topic, sent, codec=codec)
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
    program = go_built("client.go", f"github.com/twmb/franz-go@{FRANZ_GO}", f"github.com/twmb/franz-go/pkg/kadm@{KADM}")
    topic = fresh("go")
    assert run([program, bootstrap, topic, str(COUNT)]).split() == ["fine", str(COUNT * len(CODECS))]
    stored = fetch_all(address(bootstrap), topic)
    assert {batch.codec for batch in stored} == set(CODECS)
    assert min(batch.producer_id for batch in stored) >= 0


def test_kafkajs_administers_and_writes(bootstrap: str) -> None:
    program = node_built("client.mjs")
    topic = fresh("node")
    environment = {**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    assert run(["node", program, bootstrap, topic, str(COUNT)], env=environment).splitlines()[-1] == "fine"
    read = ADAPTERS[0].consume(bootstrap, topic, 2 * COUNT - 1, offset=1)
    assert [r.value for r in read] == [f"{codec} {i} ".encode() * 5 for codec in ("none", "gzip") for i in range(COUNT)][1:]
    assert {batch.codec for batch in fetch_all(address(bootstrap), topic, 0, 1)} == {"none", "gzip"}
