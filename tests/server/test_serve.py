"""``ottla serve``: its output, refused settings, and its stop."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.wire import framing
from ottla.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from ottla.wire.messages.create_topics import CreatableTopic
from ottla.wire.messages.fetch import FetchPartition, FetchTopic
from ottla.wire.messages.produce import PartitionProduceData, TopicProduceData

pytestmark = pytest.mark.server

SOURCES = str(Path(__file__).parents[2] / "src")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES, "HOME": str(home), "XDG_DATA_HOME": "", "PYTHONWARNINGS": "error"}


class Server:
    """A running ``ottla serve``."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "ottla", "serve", "--data-dir", str(data_dir), *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(data_dir.parent)
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.fullmatch(r"ottla: ready on (\S+)\n", self.line)
        self.addresses: list[tuple[str, int]] = []
        for text in found[1].split(",") if found else []:
            host, _, port = text.rpartition(":")
            self.addresses.append((host.strip("[]"), int(port)))

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code, and the rest of what it printed."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    servers: list[Server] = []

    def started(*arguments: str, data_dir: Path | None = None) -> Server:
        listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
        servers.append(Server(data_dir or tmp_path / "data", *listen, *arguments))
        return servers[-1]

    yield started
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for tests that leave nothing behind; it stops cleanly after all of them."""
    server = Server(tmp_path_factory.mktemp("shared") / "data", "--listen", "127.0.0.1:0")
    yield server
    assert server.stop()[0] == 0


class Client:
    """One blocking connection that speaks our own wire modules."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=10)

    def ask(self, request: Any, version: int, response: type[Any]) -> Any:
        self.socket.sendall(b"".join(framing.encode_request(request, version, 7, "test")))  # type: ignore[arg-type]
        size = struct.unpack(">i", self.read(4))[0]
        return framing.decode_response(response, self.read(size), version)[1]

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            got = self.socket.recv(size - len(data))
            if not got:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += got
        return data


def refused(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a start that must fail."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        env=environment(tmp_path),
        check=False,
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def batch(count: int, value: bytes = b"v" * 100) -> bytes:
    from ottla.records.build import build_batch

    return bytes(build_batch([(0, None, value, ())] * count))


def create(client: Client, name: str) -> None:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    answer = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5, CreateTopicsResponse)
    assert [topic.error_code for topic in answer.topics] == [0], answer


def produce(client: Client, name: str, records: bytes, acks: int = -1) -> int:
    data = [TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=records)])]
    answer = client.ask(ProduceRequest(acks=acks, timeout_ms=5000, topic_data=data), 9, ProduceResponse)
    partition = answer.responses[0].partition_responses[0]
    assert partition.error_code == 0, partition
    return int(partition.base_offset)


def fetch(client: Client, name: str, offset: int = 0) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=10_000_000)
    request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=10_000_000, topics=[FetchTopic(topic="t", partitions=[partition])])
    answer = client.ask(request, 11, FetchResponse)
    found = answer.responses[0].partitions[0]
    assert found.error_code == 0
    return bytes(found.records or b"")


def test_server_prints_its_address_when_ready_and_stops_cleanly_on_sigterm(start: Any, tmp_path: Path) -> None:
    server = start()
    assert re.fullmatch(r"ottla: ready on 127\.0\.0\.1:\d+\n", server.line)
    assert Client(server.addresses[0]).ask(MetadataRequest(topics=None), 1, MetadataResponse).controller_id == 1
    code, out, err = server.stop()
    assert (code, out) == (0, "")
    lines = err.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ottla\.", line) for line in lines), err
    assert f"starting Ottla {version('ottla')}, data directory {tmp_path / 'data'}" in lines[0]
    assert "INFO ottla.server: stopping: a signal arrived" in err and "INFO ottla.server: stopped  seconds=" in lines[-1]
    assert (tmp_path / "data" / "broker-1" / ".kafka_cleanshutdown").exists()


def test_ctrl_c_stops_it_cleanly_too(start: Any) -> None:
    assert start().stop(signal.SIGINT)[0] == 0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_records_produced_are_fetched_after_a_restart(start: Any, loop: str) -> None:
    server = start("--loop", loop)
    client = Client(server.addresses[0])
    create(client, "t")
    assert [produce(client, "t", batch(10, os.urandom(20_000))) for _ in range(3)] == [0, 10, 20]
    before = fetch(client, "t")
    assert len(before) > 600_000
    assert server.stop()[0] == 0
    again = start("--loop", loop)
    client = Client(again.addresses[0])
    assert fetch(client, "t") == before
    assert produce(client, "t", batch(1)) == 30
    assert again.stop()[0] == 0


def test_records_acknowledged_survive_a_kill(start: Any) -> None:
    server = start()
    client = Client(server.addresses[0])
    create(client, "t")
    for number in range(20):
        assert produce(client, "t", batch(1)) == number
    server.process.kill()
    server.process.communicate()
    again = start()
    client = Client(again.addresses[0])
    assert produce(client, "t", batch(1)) == 20
    assert again.stop()[0] == 0


def test_brokers_of_one_process_form_a_cluster(start: Any, tmp_path: Path) -> None:
    server = start("--brokers", "3")
    assert len(server.addresses) == 3
    for address in server.addresses:
        answer = Client(address).ask(MetadataRequest(topics=None), 1, MetadataResponse)
        assert {(broker.node_id, broker.host, broker.port) for broker in answer.brokers} == {
            (number, *each) for number, each in enumerate(server.addresses, 1)
        }
    # Whichever broker is asked, the controller makes the topic.
    for number, address in enumerate(server.addresses):
        create(Client(address), f"topic-{number}")
    assert server.stop()[0] == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [".lock", "broker-1", "broker-2", "broker-3", "meta"]


def test_brokers_take_ports_in_a_row(start: Any) -> None:
    for _ in range(20):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        try:
            with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 1)):
                pass
        except OSError:
            continue
        server = start("--brokers", "2", "--listen", f"127.0.0.1:{port}", "--broker-id", "7")
        assert server.addresses == [("127.0.0.1", port), ("127.0.0.1", port + 1)]
        answer = Client(server.addresses[1]).ask(MetadataRequest(topics=None), 1, MetadataResponse)
        assert [broker.node_id for broker in answer.brokers] == [7, 8]
        return
    pytest.skip("no two free ports in a row")


def test_a_second_process_on_the_same_directory_is_refused(start: Any, tmp_path: Path) -> None:
    server = start()
    code, err = refused(tmp_path, "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert code == 1
    assert f"is in use by process {server.process.pid}; stop that process, or choose another --data-dir" in err
    assert Client(server.addresses[0]).ask(MetadataRequest(topics=None), 1, MetadataResponse).brokers


def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = refused(tmp_path, "--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "d"))
    assert code == 1
    assert err.splitlines()[-1] == f"ottla: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --listen HOST:PORT"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--set", "num.partition=3"), "num.partition: unknown setting; did you mean num.partitions?"),
        (("--set", "num.partitions=many"), "num.partitions: expected a whole number, not 'many'"),
        (("--set", "num.partitions=0"), "num.partitions: 0 is below the smallest allowed value, 1"),
        (("--set", "log.retention.ms=soon"), "retention.ms"),
        (("--set", "write.caching"), "--set: expected KEY=VALUE, such as write.caching=true, not 'write.caching'"),
        (("--set", "ssl.provider=BC"), "ssl.provider: it concerns Java's TLS"),
        (
            ("--set", "listeners=SASL_SSL://:9093"),
            "inter.broker.listener.name: brokers use the listener PLAINTEXT, which is not advertised",
        ),
        (("--set", "ssl.key.password=secret"), "ssl.key.password: a secret is not given in an argument"),
        (("--listen", "nowhere"), "--listen: expected HOST:PORT, such as 127.0.0.1:9092, not 'nowhere'"),
        (("--listen", "127.0.0.1:65535", "--brokers", "2"), "listeners: 2 brokers from port 65535 on need ports above 65535"),
        (("--config", "/no/such/file"), "--config: cannot read /no/such/file"),
    ],
)
def test_a_bad_setting_is_refused_by_name_in_one_line(tmp_path: Path, arguments: tuple[str, ...], line: str) -> None:
    code, err = refused(tmp_path, "--data-dir", str(tmp_path / "d"), *arguments)
    assert code == 2
    assert err.count("\n") == 1 and line in err
    assert not (tmp_path / "d").exists()


def test_a_log_level_that_does_not_exist_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_LOG", "loud")
    assert refused(tmp_path, "--data-dir", str(tmp_path / "d")) == (
        2,
        "ottla: OTTLA_LOG: expected error, warning, info, debug, not 'loud'\n",
    )


def test_lines_are_json_objects_on_request(start: Any) -> None:
    server = start("--log-format", "json", "--set", "num.partitions=3", "--set", "log.retention.hours=168")
    _, _, err = server.stop()
    lines = [json.loads(line) for line in err.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    (begun,) = [line for line in lines if line["message"].startswith("starting Ottla")]
    assert (begun["settings"].get("num.partitions"), "log.retention.hours" in begun["settings"]) == ("3", False)
    (listening,) = [line for line in lines if line["message"].startswith("listening on ")]
    assert (listening["listener"], listening["protocol"]) == ("PLAINTEXT", "PLAINTEXT")


def test_the_level_of_the_log_is_an_option(start: Any) -> None:
    assert start("--log-level", "warning").stop()[2] == ""


def test_levels_are_changed_while_the_server_runs(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    bootstrap = f"127.0.0.1:{server.addresses[0][1]}"
    with ottla.Admin(bootstrap_servers=bootstrap) as admin:
        resource = ottla.Resource.broker_logger(1)
        before = admin.describe_config(resource)["ottla.storage"].value
        admin.incremental_alter_configs({resource: [ottla.ConfigChange("ottla", "ERROR")]})
        after = admin.describe_config(resource)["ottla.storage"].value
        admin.create_topics([ottla.NewTopic("quiet")])
        admin.incremental_alter_configs({resource: [ottla.ConfigChange("ottla", None, ottla.ConfigOperation.DELETE)]})
        admin.create_topics([ottla.NewTopic("heard")])
    _, _, err = server.stop()
    assert (before, after) == ("INFO", "ERROR")
    assert "'heard'" in err and "'quiet'" not in err


def test_a_host_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    code, err = refused(tmp_path, "--listen", "no-such-host.invalid:9092", "--data-dir", str(tmp_path / "d"))
    assert code == 1
    assert "cannot listen on no-such-host.invalid:9092" in err.splitlines()[-1]


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, err = refused(tmp_path, "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "file" / "below"))
    assert code == 1
    assert "cannot use the directory" in err.splitlines()[-1] and "choose another --data-dir" in err


def test_a_file_in_place_of_the_directory_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, err = refused(tmp_path, "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "file"))
    assert code == 1
    assert err.splitlines()[-1] == f"ottla: cannot use the directory {tmp_path / 'file'}: it is not a directory; choose another --data-dir"


def test_partitions_of_brokers_that_are_not_started_any_more_are_reported(start: Any) -> None:
    server = start("--brokers", "3")
    topic = CreatableTopic(name="t", num_partitions=6, replication_factor=1)
    Client(server.addresses[0]).ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 5, CreateTopicsResponse)
    _, _, err = server.stop()
    assert "without a leader" not in err
    _, _, err = start().stop()
    assert "partitions without a leader, since they are on brokers that do not run: broker 2 (2), broker 3 (2)" in err


def test_missing_logs_are_reported(start: Any, tmp_path: Path) -> None:
    server = start("--set", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}")
    topic = CreatableTopic(name="t", num_partitions=4, replication_factor=1)
    Client(server.addresses[0]).ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 5, CreateTopicsResponse)
    assert "anew" not in server.stop()[2]
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    _, _, err = start("--set", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}").stop()
    assert "no log of 2 partitions in" in err and "They start empty: t-" in err


def test_a_server_starts_without_a_log_directory_that_a_disk_refuses(start: Any, tmp_path: Path) -> None:
    server = start("--set", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}")
    topic = CreatableTopic(name="t", num_partitions=4, replication_factor=1)
    Client(server.addresses[0]).ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 5, CreateTopicsResponse)
    server.stop()
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    (tmp_path / "b").write_text("what is left of a disk")
    server = start("--set", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}")
    _, _, err = server.stop()
    assert f"cannot use the directory {tmp_path / 'b'}" in err and "starts without it" in err
    assert not list((tmp_path / "a").glob("*-stray")) and len(list((tmp_path / "a").glob("t-*"))) == 2, "what is only there is waited for"
    (tmp_path / "b").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "b")
    assert "starts without it" not in start("--set", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}").stop()[2]


def test_a_directory_of_another_broker_is_refused(start: Any, tmp_path: Path) -> None:
    start("--set", f"log.dirs={tmp_path / 'logs'}").stop()
    code, err = refused(
        tmp_path,
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        str(tmp_path / "data"),
        "--set",
        f"log.dirs={tmp_path / 'logs'}",
        "--broker-id",
        "2",
    )
    assert code == 1
    assert "belongs to broker 1, not to 2" in err.splitlines()[-1]


def test_a_stock_kafka_properties_file_starts_it(start: Any, tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(
        f"""# A combined node.
process.roles=broker,controller
node.id=4
listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=5
num.io.threads = 8
socket.request.max.bytes: 104857600
log.dirs={tmp_path / "logs"}
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.retention.hours=168
"""
    )
    server = start("--config", str(tmp_path / "server.properties"), "--listen", "127.0.0.1:0")
    assert Client(server.addresses[0]).ask(MetadataRequest(topics=None), 1, MetadataResponse).brokers[0].node_id == 4
    _, _, err = server.stop()
    assert "WARNING ottla.server: ignoring num.network.threads: one event loop serves all connections" in err
    assert (tmp_path / "logs" / "meta.properties").exists()


def test_write_caching_may_be_set(start: Any) -> None:
    server = start("--set", "write.caching=true")
    client = Client(server.addresses[0])
    create(client, "t")
    assert produce(client, "t", batch(1)) == 0


def test_clients_get_the_address_that_they_used(start: Any) -> None:
    server = start("--listen", "0.0.0.0:0")
    port = server.addresses[0][1]
    for host in ("127.0.0.1", "127.0.0.2"):
        answer = Client((host, port)).ask(MetadataRequest(topics=None), 1, MetadataResponse)
        assert [(broker.host, broker.port) for broker in answer.brokers] == [(host, port)]


def test_clients_get_the_advertised_address(start: Any) -> None:
    server = start("--set", "advertised.listeners=PLAINTEXT://kafka.example:19092")
    answer = Client(server.addresses[0]).ask(MetadataRequest(topics=None), 1, MetadataResponse)
    assert [(broker.host, broker.port) for broker in answer.brokers] == [("kafka.example", 19092)]


def test_an_api_versions_request_from_the_future_is_answered_in_version_0(shared: Server) -> None:
    """Line 1."""
    client = Client(shared.addresses[0])
    header = struct.pack(">hhih", 18, 99, 5, 4) + b"test" + b"\0"
    client.socket.sendall(struct.pack(">i", len(header)) + header)
    size = struct.unpack(">i", client.read(4))[0]
    correlation_id, answer = framing.decode_response(ApiVersionsResponse, client.read(size), 0)
    assert correlation_id == 5 and answer.error_code == 35
    assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [(18, 0, 5)]
    # The connection stays open for the second try.
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    assert client.ask(request, 3, ApiVersionsResponse).error_code == 0


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", 3, 99, 1, -1),
        struct.pack(">hhih", 3, -1, 1, -1),
        struct.pack(">hhih", 3, 1, 1, 1000),
        struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff",
        struct.pack(">hhih", 3, 1, 1, -1) + b"\0\0\0\1\0\x09topic",
    ],
)
def test_malformed_requests_close_their_connection_and_no_other(shared: Server, frame: bytes) -> None:
    good, bad = Client(shared.addresses[0]), Client(shared.addresses[0])
    bad.socket.sendall(struct.pack(">i", len(frame)) + frame)
    assert bad.socket.recv(1) == b""
    assert good.ask(MetadataRequest(topics=None), 1, MetadataResponse).brokers


def test_it_is_small(start: Any) -> None:
    server = start()
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None and int(resident[1]) < 80 * 1024
