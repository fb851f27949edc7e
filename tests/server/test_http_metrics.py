"""The HTTP listener: metrics in both formats, the names of dashboards, health, timelines; the lag of groups; pauses of a collection."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tools.kafka_dashboards import DASHBOARDS

import ottla
from ottla.base.ids import BrokerId, TopicPartition
from ottla.broker.timeline import Timeline
from ottla.server import http_server
from ottla.server import timeline as timelines
from ottla.server.metrics import collection
from ottla.server.metrics.collection import copied
from ottla.server.metrics.exposition import OPENMETRICS, PAUSE_S, TEXT, WORK_S, Pace, escaped, histogram_samples, label_text, written
from ottla.server.metrics.families import FAMILIES, GAUGE, Family
from ottla.server.metrics.group_lag import ASKED_MAX, SAMPLES_MAX, LagClock, RemoteEnds
from ottla.server.metrics.histogram import Histogram
from ottla.server.timeline import Query
from ottla.wire.messages.list_offsets import ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse
from serving import Serving

pytestmark = pytest.mark.server
#: Of features that the server of these tests does not use.
UNUSED = {
    "kafka_network_requestmetrics_throttletimems",
    "ottla_client_metric",
    "ottla_schema_lookups_total",
    "ottla_schema_refused_batches_total",
    "ottla_schema_registry_outage",
    "ottla_quota_rate",
    "ottla_certificate_days_left",
    "ottla_connections_cut_total",
    "ottla_transactions",
}


def parsed(text: str) -> list[Any]:
    """Families of Prometheus' text format."""
    return list(parse_text(text))


class Scraped:
    """A server with some data, and what it answers over HTTP."""

    def __init__(self, server: Serving) -> None:
        self.bootstrap = server.bootstrap
        address = next(line for line in server.logs().splitlines() if "/health/ready on http://" in line)
        self.url = address.rpartition(" on ")[2].split()[0]

    def get(self, path: str, accept: str = "*/*") -> tuple[int, str, str]:
        """Status, type and content."""
        request = urllib.request.Request(self.url + path, headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    def samples(self, name: str, **labels: str) -> list[float]:
        """Values of the series of a name that have these labels."""
        found = [sample for family in parsed(self.get("/metrics")[2]) for sample in family.samples]
        return [one.value for one in found if one.name == name and labels.items() <= one.labels.items()]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    data_dir = tmp_path_factory.mktemp("http") / "data"
    with Serving(data_dir, arguments=["--http", "127.0.0.1:0"], settings={"group.initial.rebalance.delay.ms": "0"}) as server:
        found = Scraped(server)
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topics([ottla.NewTopic("t", 2)])
        with ottla.Producer(bootstrap_servers=server.bootstrap) as producer:
            for number in range(100):
                producer.send("t", b"v" * 100, partition=number % 2)
        with ottla.Consumer("t", bootstrap_servers=server.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
            for count, _ in enumerate(consumer, 1):
                if count == 60:
                    break
            consumer.commit()
        yield found


def test_both_formats_are_read_by_the_prometheus_client(scraped: Scraped) -> None:
    status, kind, text = scraped.get("/metrics")
    assert (status, kind) == (200, TEXT) and len(parsed(text)) > 60
    status, kind, text = scraped.get("/metrics", "application/openmetrics-text; version=1.0.0, */*;q=0.1")
    assert (status, kind) == (200, OPENMETRICS) and len(list(parse_openmetrics(text))) > 60  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_every_metric_of_a_dashboard_is_there(scraped: Scraped, dashboard: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        names = {sample.name for family in parsed(scraped.get("/metrics")[2]) for sample in family.samples}
        missing = set(DASHBOARDS[dashboard]) - names
        # The lag of groups is sampled every 10 s.
        if missing <= {"kafka_consumergroup_lag"} and missing and time.monotonic() < deadline:
            time.sleep(1)
            continue
        assert not missing
        return


def test_every_declared_metric_has_samples_and_no_other_does(scraped: Scraped) -> None:
    families = {family.name: family for family in parsed(scraped.get("/metrics")[2])}
    there = {name for name in FAMILIES if name in families or name.removesuffix("_total") in families}
    late = {"kafka_consumergroup_lag", "ottla_consumergroup_lag_seconds"}
    assert set(FAMILIES) - there <= UNUSED | late
    ours = {name for name in families if name.startswith(("kafka_", "ottla_", "jvm_"))}
    assert ours <= set(FAMILIES) | {name.removesuffix("_total") for name in FAMILIES}


def test_records_bytes_and_requests_are_counted_by_topic(scraped: Scraped) -> None:
    assert scraped.samples("kafka_server_brokertopicmetrics_messagesin_total", topic="t") == [100]
    (bytes_in,) = scraped.samples("kafka_server_brokertopicmetrics_bytesin_total", topic="t")
    (size,) = [sum(scraped.samples("kafka_log_log_size", topic="t"))]
    assert bytes_in == size > 10_000
    (out,) = scraped.samples("kafka_server_brokertopicmetrics_bytesout_total", topic="t")
    assert out >= bytes_in / 2
    (all_topics,) = scraped.samples("kafka_server_brokertopicmetrics_messagesin_total", topic="")
    assert all_topics >= 100
    assert scraped.samples("kafka_network_requestmetrics_requests_total", request="Produce")[0] > 0
    assert scraped.samples("kafka_network_requestmetrics_totaltimems", request="Produce", quantile="0.99")[0] > 0
    assert scraped.samples("ottla_fsync_seconds_count")[0] > 0


def test_the_lag_of_a_group_is_known_in_records_and_seconds(scraped: Scraped) -> None:
    deadline = time.monotonic() + 30
    while not (lag := scraped.samples("kafka_consumergroup_lag", consumergroup="g", topic="t")):
        assert time.monotonic() < deadline, "the lag is sampled"
        time.sleep(1)
    assert sum(lag) == 40
    assert max(scraped.samples("ottla_consumergroup_lag_seconds", consumergroup="g", topic="t")) > 0


def test_the_timeline_of_a_broker_is_read_in_pages(scraped: Scraped) -> None:
    (broker,) = json.loads(scraped.get("/timeline?kind=group&name=g")[2])["brokers"]
    changes = [entry["what"] for entry in broker["entries"]]
    assert broker["id"] == 1 and "joined" in changes and {entry["name"] for entry in broker["entries"]} == {"g"}
    first = broker["entries"][0]["number"]
    (page,) = json.loads(scraped.get(f"/timeline?kind=group&after=1:{first}&limit=1")[2])["brokers"]
    assert [entry["what"] for entry in page["entries"]] == changes[1:2] and page["more"] is True
    (rest,) = json.loads(scraped.get(f"/timeline?after=1:{broker['last'] + 1000}")[2])["brokers"]
    assert (rest["entries"], rest["more"]) == ([], False)


@pytest.mark.parametrize("query", ["kind=log", "after=1", "after=x:1", "limit=-1", "limit=100000", "page=2", "limit=%D9%A3"])
def test_a_wrong_query_of_the_timeline_is_refused_with_the_reason(scraped: Scraped, query: str) -> None:
    status, _, text = scraped.get(f"/timeline?{query}")
    assert status == 400 and query.partition("=")[0] in json.loads(text)["reasons"][0]


def test_the_timeline_is_made_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoding of an entry takes 1 µs, and nothing else takes time."""
    now_s, held, began_s = 0.0, [0.0], 0.0
    encode = timelines._encode

    def encoded(value: Any) -> bytes:
        nonlocal now_s
        now_s += len(value) * 1e-6
        return encode(value)

    def pause(s: float) -> None:
        nonlocal began_s
        held.append(now_s - began_s)
        began_s = now_s

    class Clock:
        wall_ms = 1

    monkeypatch.setattr(timelines, "_encode", encoded)
    timeline = Timeline(Clock(), 5_000)
    for number in range(5_000):
        timeline.note("partition", f"t-{number}", "became leader", isr=[1, 2, 3])
    broker: Any = SimpleNamespace(node=SimpleNamespace(context=SimpleNamespace(broker_id=1, timeline=timeline)))
    answer = b"".join(timelines.timeline_json([broker], Query(limit=5_000), Pace(clock=lambda: now_s, sleep=pause)))
    assert len(json.loads(answer)["brokers"][0]["entries"]) == 5_000
    assert max(held) < WORK_S + 1e-4 and len(held) > 10


def test_health_says_what_is_wrong(scraped: Scraped) -> None:
    assert scraped.get("/health/live")[0] == 200
    assert scraped.get("/health/ready")[::2] == (200, '{"status": "ready", "reasons": []}\n')
    assert scraped.get("/nowhere")[0] == 404


def test_clients_that_send_a_byte_now_and_then_do_not_keep_probes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "TIMEOUT_S", 0.5)
    server = http_server.MetricsServer(cast(Any, SimpleNamespace(alive=lambda: "")), ("127.0.0.1", 0))
    server.start()
    try:
        slow = [socket.create_connection(server.address) for _ in range(http_server.CONNECTIONS_MAX)]
        ended = [False] * len(slow)
        deadline = time.monotonic() + 20
        while not all(ended):
            assert time.monotonic() < deadline, "their connections stay"
            for number, one in enumerate(slow):
                one.settimeout(0.02)
                try:
                    one.sendall(b"G")
                    ended[number] = one.recv(1_000) == b""
                except TimeoutError:
                    continue
                except OSError:
                    ended[number] = True
        with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/health/live", timeout=20) as answer:
            assert answer.status == 200
    finally:
        server.stop()


class LargeAnswer:
    """An observation with some 20 MiB of metrics."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def alive(self) -> str:
        return ""

    def families(self, pace: Pace) -> Iterator[tuple[Family, Any]]:
        yield Family("m", GAUGE, "Help.", ("partition",)), (("", label_text(partition="p" * 1_000), number) for number in range(20_000))


@pytest.fixture
def large_answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[http_server.MetricsServer]:
    """A server with a large answer that leaves slow readers their time."""
    monkeypatch.setattr(http_server, "TIMEOUT_S", 300.0)
    monkeypatch.setattr(http_server, "ANSWER_S", 300.0)
    monkeypatch.setattr(http_server._Handler, "timeout", 300.0)
    server = http_server.MetricsServer(cast(Any, LargeAnswer()), ("127.0.0.1", 0))
    server.start()
    yield server
    server.stop()


def slow_reader(server: http_server.MetricsServer) -> socket.socket:
    """A client that asked for metrics and read only the beginning."""
    reader = socket.create_connection(server.address, timeout=20)
    reader.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert reader.recv(10) == b"HTTP/1.0 2"
    return reader


def answer_of(server: http_server.MetricsServer, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}{path}", timeout=20) as answer:
        return bytes(answer.read())


def test_a_slow_reader_delays_no_other_scrape(large_answer: http_server.MetricsServer) -> None:
    with slow_reader(large_answer):
        assert len(answer_of(large_answer, "/metrics")) > 20_000_000


def test_more_slow_readers_than_connections_keep_neither_scrapes_nor_probes_out(
    large_answer: http_server.MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slowest is cut for the next one, so their number stays limited."""
    monkeypatch.setattr(http_server, "SLOW_S", 0.0)
    readers = [slow_reader(large_answer) for _ in range(http_server.CONNECTIONS_MAX + 4)]
    assert len(large_answer._server._connections) <= http_server.LARGE_MAX
    assert answer_of(large_answer, "/health/live") == b'{"status": "up", "reasons": []}\n'
    assert len(answer_of(large_answer, "/metrics")) > 20_000_000
    for reader in readers:
        reader.close()


def test_a_scrape_above_the_limit_is_told_to_ask_again_while_no_reader_is_slow(
    large_answer: http_server.MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SLOW_S", 300.0)
    readers = [slow_reader(large_answer) for _ in range(http_server.LARGE_MAX)]
    with pytest.raises(urllib.error.HTTPError, match="503"):
        answer_of(large_answer, "/metrics")
    assert answer_of(large_answer, "/health/live")
    for reader in readers:
        reader.close()


def test_connections_that_ask_nothing_keep_no_probe_out(large_answer: http_server.MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SLOW_S", 0.0)
    silent = [socket.create_connection(large_answer.address) for _ in range(2 * http_server.CONNECTIONS_MAX)]
    assert answer_of(large_answer, "/health/live")
    for one in silent:
        one.close()


def test_a_used_address_refuses_the_start(tmp_path: Path, scraped: Scraped) -> None:
    address = scraped.url.removeprefix("http://")
    from serving import ServerFailed

    with pytest.raises(ServerFailed, match="choose another --http"), Serving(tmp_path / "data", arguments=["--http", address]):
        pass


# A collection does not hold up the event loop.


def test_a_collection_pauses_after_a_quarter_of_a_millisecond() -> None:
    """With 160,000 series, the time between two pauses is bounded, in the time of the collecting thread."""
    now, held, began = [0.0], [], [0.0]

    def clock() -> float:
        now[0] += 2e-6
        return now[0]

    def sleep(duration_s: float) -> None:
        assert duration_s == PAUSE_S
        held.append(now[0] - began[0])
        now[0] += duration_s
        began[0] = now[0]

    pace = Pace(clock=clock, sleep=sleep)
    family = Family("m", GAUGE, "Help.", ("partition",))
    samples = (("", label_text(partition=number), number) for number in range(160_000))
    assert sum(1 for _ in written([(family, samples)], pace, openmetrics=False)) == 160_001
    assert len(held) > 500 and max(held) < WORK_S + 1e-5


def test_labels_of_all_topics_are_made_between_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels take 5 µs each, and nothing else takes time."""
    now_s, held, began_s = 0.0, [0.0], 0.0

    def label(**labels: object) -> str:
        nonlocal now_s
        now_s += 5e-6
        return label_text(**labels)

    def pause(s: float) -> None:
        nonlocal began_s
        held.append(now_s - began_s)
        began_s = now_s

    monkeypatch.setattr(collection, "label_text", label)
    topics = {f"t-{number}": SimpleNamespace(name=f"t-{number}", replicas={0: (1,)}, states={}) for number in range(5_000)}
    image = SimpleNamespace(topics=topics, brokers={}, deleting=())
    context = SimpleNamespace(image=image, broker_id=1, options=SimpleNamespace(metrics_topics_max=5_000))
    queue = SimpleNamespace(elections=0, unclean_elections=0)
    node: Any = SimpleNamespace(context=context, controller=SimpleNamespace(active=True, election_queue=queue))
    pace = Pace(clock=lambda: now_s, sleep=pause)
    text = "".join(written(collection._controller(node, "", pace), pace, openmetrics=False))
    assert text.count('topic="t-') == 5_000
    assert max(held) < WORK_S + 1e-4 and len(held) > 50


def test_a_dict_that_changes_is_copied_again() -> None:
    tries: list[int] = []

    def copy() -> list[int]:
        tries.append(1)
        if len(tries) < 4:
            raise RuntimeError("dictionary changed size during iteration")
        return tries

    assert len(copied(copy)) == 4


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb", 'x"} 1\nforged{a="'])
def test_a_label_cannot_forge_a_line(value: str) -> None:
    family = Family("m", GAUGE, "Help.", ("a",))
    text = "".join(written([(family, [("", label_text(a=value), 1)])], Pace(), openmetrics=False))
    (found,) = parsed(text)
    assert [sample.labels for sample in found.samples] == [{"a": value}]
    assert escaped("plain") == "plain"


def test_a_histogram_is_cumulative() -> None:
    histogram = Histogram()
    for ns in (1_000, 20_000, 20_000, 10**13):
        histogram.observe(ns)
    samples = {(suffix, labels): value for suffix, labels, value in histogram_samples(histogram, '{a="b"}')}
    assert samples["_bucket", '{a="b",le="1.6384e-05"}'] == 1
    assert samples["_bucket", '{a="b",le="3.2768e-05"}'] == 3
    assert samples["_bucket", '{a="b",le="+Inf"}'] == samples["_count", '{a="b"}'] == 4


# The lag of groups.

P = TopicPartition("t", 0)


def clock_at(marks: list[tuple[float, int]]) -> LagClock:
    """After samples of these times and high watermarks; ``now`` is the time of the last one."""
    now = [0.0]
    lag = LagClock(lambda: now[0])
    for at, end in marks:
        now[0] = at
        lag.note({P: end})
    return lag


@pytest.mark.parametrize(
    ("offset", "seconds"),
    [(115, 0.0), (120, 0.0), (110, 5.0), (105, 10.0), (100, 20.0), (50, 20.0)],
)
def test_the_lag_in_time_is_interpolated(offset: int, seconds: float) -> None:
    assert clock_at([(0, 100), (10, 105), (20, 115)]).seconds(P, offset) == pytest.approx(seconds)


def test_a_partition_without_new_records_keeps_its_lag() -> None:
    lag = clock_at([(0, 100), (10, 110), (20, 110), (3_600, 110)])
    assert lag.seconds(P, 110) == 0.0
    assert lag.seconds(P, 105) == pytest.approx(3_595.0)


def test_samples_are_limited_and_old_lags_still_known() -> None:
    lag = clock_at([(10.0 * number, 100 * number) for number in range(10 * SAMPLES_MAX)])
    times, _ = lag._samples[P]
    assert len(times) <= SAMPLES_MAX
    last = 10 * SAMPLES_MAX - 1
    assert lag.seconds(P, 100 * (last - 100)) == pytest.approx(1_000.0, rel=0.05)


def test_a_topic_that_was_created_again_starts_again() -> None:
    lag = clock_at([(0, 1_000), (10, 2_000), (20, 5), (30, 7)])
    assert lag.seconds(P, 6) == pytest.approx(5.0)
    lag.note({})
    assert (lag.end(P), lag.seconds(P, 6)) == (None, 0.0)


def test_leaders_elsewhere_are_asked_in_requests_of_limited_size() -> None:
    sent: list[tuple[BrokerId, Any, Callable[[Any], None]]] = []
    remote = RemoteEnds(lambda broker, message, version, answered: sent.append((broker, message, answered)), sleep=lambda duration_s: None)
    wanted = {TopicPartition("t", number): BrokerId(2 + number % 2) for number in range(2 * ASKED_MAX + 10)}
    remote.ask(wanted)
    assert [(broker, sum(len(topic.partitions) for topic in request.topics)) for broker, request, _ in sent] == [
        (2, ASKED_MAX), (2, 5), (3, ASKED_MAX), (3, 5),
    ]  # fmt: skip
    found = [ListOffsetsPartitionResponse(partition_index=0, offset=7), ListOffsetsPartitionResponse(partition_index=2, error_code=6)]
    sent[0][2](ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=found)]))
    sent[1][2](None)
    assert remote.ends == {P: 7}
    remote.ask({})
    assert remote.ends == {}
