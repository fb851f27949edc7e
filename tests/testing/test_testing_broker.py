"""A broker in the test's process: start, stop, kill, released resources, and topics in tests."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import confluent_kafka
import pytest

import ottla
from ottla import Admin, Consumer, NewTopic, Producer
from ottla.base.options import ConfigError
from ottla.errors import TopicAlreadyExists
from ottla.serializers import SerializationFailed
from ottla.testing import Broker, BrokerFailed, Topic, broker
from ottla.testing.plugin import Topics

pytestmark = pytest.mark.server


#: Started alone, because other tests of a process leave threads and descriptors that come and go.
THREE_BROKERS = """
import gc, os, sys, threading
from ottla.testing import broker

def one_cycle(where):
    with broker(data_dir=where) as started:
        topic = started.topic("t")
        topic.send(b"1")
        started.kill()
        started.restart()
        assert topic.values() == [b"1"]

def held():
    gc.collect()
    return sorted(thread.name for thread in threading.enumerate()), len(os.listdir("/proc/self/fd"))

one_cycle(None)
before = held()
one_cycle(None)
one_cycle(sys.argv[1])
print(before == held() or (before, held()))
"""

#: Prints by how many bytes twenty restarts grow; alone for the same reason.
TWENTY_RESTARTS = """
import gc, tracemalloc
from ottla.testing import broker

def cycles(started, topic, count):
    for number in range(count):
        topic.send(b"1")
        if number % 2:
            started.kill(unsynced="lost")
        started.restart()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]

tracemalloc.start()
with broker(settings={"ottla.flight.recorder.bytes": 10_000}) as started:
    topic = started.topic("t")
    before = cycles(started, topic, 6)
    print(cycles(started, topic, 20) - before)
"""


def test_any_client_can_connect(ottla_broker: Broker, ottla_topics: Topics) -> None:
    topic = ottla_topics(partitions=3)
    sent = [b"%d" % number for number in range(20)]
    producer = confluent_kafka.Producer({"bootstrap.servers": ottla_broker.bootstrap_servers})
    for value in sent:
        producer.produce(topic.name, value)
    assert producer.flush(30) == 0
    assert sorted(topic.values(), key=int) == sent
    assert {record.partition for record in topic.records()} <= {0, 1, 2}


def test_a_stopped_broker_leaves_no_thread_descriptor_or_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", THREE_BROKERS, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_restarts_do_not_leak_memory() -> None:
    done = subprocess.run([sys.executable, "-c", TWENTY_RESTARTS], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) < 200_000


def test_a_running_broker_ends_with_the_interpreter() -> None:
    script = "from ottla.testing import broker; kept = broker().start(); kept.topic('t').send(b'1'); print('done')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_several_brokers_run_in_one_process() -> None:
    with broker() as one, broker() as other:
        assert one.bootstrap_servers != other.bootstrap_servers
        one.topic("t").send(b"one")
        assert (one.topic("t").values(), other.topic("t").values()) == ([b"one"], [])


def test_each_with_its_own_clients_settings_are_kafkas() -> None:
    with broker(settings={"num.partitions": 3, "auto.create.topics.enable": False}) as started:
        with Admin(bootstrap_servers=started.bootstrap_servers) as admin:
            assert admin.create_topic(NewTopic("t")).num_partitions == 3
        with Producer(bootstrap_servers=started.bootstrap_servers, max_block_ms=200) as producer, pytest.raises(ottla.KafkaError):
            producer.send("another", b"1")


def test_an_invalid_setting_is_refused_and_leaves_nothing() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        broker(settings={"num.partitions": "many"}).start()
    assert set(threading.enumerate()) <= threads


def test_a_clean_restart_keeps_topics_records_and_the_port() -> None:
    with broker() as started:
        where, topic = started.bootstrap_servers, started.topic("t")
        topic.send_all(b"1", b"2")
        started.restart()
        assert started.bootstrap_servers == where
        assert topic.values() == [b"1", b"2"]


@pytest.mark.parametrize("unsynced", ["kept", "lost", "torn"])
def test_records_acknowledged_with_acks_all_survive_a_kill(unsynced: str) -> None:
    with broker() as started:
        topic = started.topic("t")
        topic.send_all(*(b"%d" % number for number in range(50)))
        started.kill(unsynced=unsynced)  # type: ignore[arg-type]
        started.restart()
        assert topic.values() == [b"%d" % number for number in range(50)]


def test_records_acknowledged_with_acks_1_can_be_lost_in_a_kill() -> None:
    with broker() as started:
        topic = started.topic("t", config={"write.caching": True})
        topic.send(b"1")
        started.kill(unsynced="lost")
        started.restart()
        assert topic.values() == []


def test_unsynced_writes_can_be_lost_in_memory_only(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path) as started, pytest.raises(ValueError, match="in memory"):
        started.kill(unsynced="lost")


def test_a_client_survives_a_kill_of_the_broker() -> None:
    with broker() as started, Producer(bootstrap_servers=started.bootstrap_servers, reconnect_backoff_ms=5) as producer:
        topic = started.topic("t")
        producer.send("t", b"1").result(timeout_ms=30_000)
        with started.killed():
            waiting = producer.send("t", b"2")
        assert waiting.result(timeout_ms=30_000).offset == 1
        assert topic.values() == [b"1", b"2"]


def test_a_dead_broker_refuses_connections() -> None:
    with broker() as started:
        started.kill()
        with pytest.raises(ottla.KafkaError), Admin(bootstrap_servers=started.bootstrap_servers) as admin:
            admin.list_topics(timeout_ms=100)
        with pytest.raises(BrokerFailed, match="does not run"):
            started.topic("t")


def test_a_data_directory_is_kept_after_a_stop(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path) as started:
        started.topic("t").send(b"1")
    assert (tmp_path / "broker-1" / "t-0" / "00000000000000000000.log").stat().st_size > 0
    with broker(data_dir=tmp_path) as started:
        assert started.topic("t").values() == [b"1"]


def test_a_stopped_broker_can_start_again_on_its_port() -> None:
    kept = Broker()
    with kept:
        where = kept.bootstrap_servers
        kept.topic("t").send(b"1")
    with kept:
        assert kept.bootstrap_servers == where
        assert kept.topic("t").values() == [b"1"]


def test_a_broker_has_no_address_before_its_start() -> None:
    with pytest.raises(BrokerFailed, match="with statement"):
        _ = broker().bootstrap_servers


def test_an_internal_error_is_raised_on_stop(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    started = broker().start()
    topic = started.topic("t")
    # The producer knows the topic, so it does not wait for metadata when the broker stops before it sends.
    topic.send(b"0")
    assert started._process is not None
    (only,) = started._process.brokers
    monkeypatch.setattr(only.node.partitions, "begin_flushes", lambda: 1 / 0)
    with pytest.raises((ottla.KafkaError, TimeoutError)):
        started.clients.producer.send("t", b"1").result(timeout_ms=300)
    deadline_s = time.monotonic() + 30
    while started.running and time.monotonic() < deadline_s:
        time.sleep(0.01)
    with pytest.raises(BrokerFailed, match="internal error"):
        started.stop()
    assert "ZeroDivisionError" in caplog.text
    assert topic.name == "t"


# Topics


def test_a_topic_encodes_and_decodes_values_in_its_format(ottla_topics: Topics) -> None:
    topic = ottla_topics("orders", key="str", value="json")
    sent = topic.send({"id": 1}, key="a", headers=[("h", b"1")])
    topic.send({"id": 2}, key="b")
    topic.send(None, key="a")
    assert (sent.partition, sent.offset) == (0, 0)
    assert topic.values() == [{"id": 1}, {"id": 2}, None]
    assert topic.keys() == ["a", "b", "a"]
    assert topic.latest() == {"b": {"id": 2}}
    assert topic.records()[0].headers == (("h", b"1"),)


def test_a_record_in_another_format_is_an_error(ottla_broker: Broker, ottla_topics: Topics) -> None:
    topic = ottla_topics(value="json")
    Topic(lambda: ottla_broker.clients, topic.name).send(b"{")
    with pytest.raises(SerializationFailed):
        topic.values()


def test_a_wait_returns_later_records(ottla_topic: Topic) -> None:
    later = threading.Timer(0.05, lambda: ottla_topic.send_all(b"1", b"2", b"3"))
    later.start()
    found = ottla_topic.wait_for(2, where=lambda record: record.value != b"2", timeout_ms=30_000)
    assert [record.value for record in found] == [b"1", b"3"]
    later.join()


def test_a_failed_wait_shows_the_topics_records(ottla_topic: Topic) -> None:
    with pytest.raises(AssertionError, match=r"0 of 1 records in .* after 0 s; the topic is empty"):
        ottla_topic.wait_for(timeout_ms=0)
    ottla_topic.send(b"other", key=b"k")
    with pytest.raises(AssertionError, match=r"(?s)0 of 1 records that match .*0@0: b'k' = b'other'"):
        ottla_topic.wait_for(where=lambda record: record.key is None, timeout_ms=0)


def test_a_test_can_wait_until_a_group_has_read_everything(ottla_broker: Broker, ottla_topic: Topic) -> None:
    ottla_topic.send_all(b"1", b"2")
    with pytest.raises(AssertionError, match="'readers' has committed nothing"):
        ottla_topic.wait_until_read("readers", timeout_ms=0)
    settings = {"bootstrap_servers": ottla_broker.bootstrap_servers, "group_id": "readers", "auto_offset_reset": "earliest"}
    with Consumer(ottla_topic.name, **settings) as consumer:  # type: ignore[arg-type]
        found = 0
        while found < 2:
            found += len(consumer.poll(1000))
        consumer.commit()
        ottla_topic.wait_until_read("readers", timeout_ms=30_000)
        ottla_topic.send(b"3")
        with pytest.raises(AssertionError, match="is 1 records behind"):
            ottla_topic.wait_until_read("readers", timeout_ms=0)


def test_settings_of_a_topic_can_be_changed(ottla_broker: Broker, ottla_topic: Topic) -> None:
    ottla_topic.set_config(retention_ms=1234)
    resource = ottla.client.admin.results.Resource.topic(ottla_topic.name)
    found = ottla_broker.clients.admin.describe_configs([resource])[resource]
    assert not isinstance(found, ottla.KafkaError) and found["retention.ms"].value == "1234"


def test_an_existing_topic_is_used_unchanged(ottla_broker: Broker, ottla_topic: Topic) -> None:
    ottla_topic.send(b"1")
    assert ottla_broker.topic(ottla_topic.name).values() == [b"1"]
    with pytest.raises(TopicAlreadyExists):
        ottla_broker.clients.admin.create_topic(NewTopic(ottla_topic.name))


def test_a_broker_takes_requests_of_more_than_16_kib() -> None:
    with broker(users={"alice": "secret"}) as started:
        started.topic("t")
        with Producer(**started.client_settings("alice"), retries=0) as producer:
            producer.send("t", b"x" * 100_000).result()
