"""Metrics pushed to an OpenTelemetry collector."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import MetricExportResult

import ottla
from ottla.server.metrics.exposition import histogram_samples, label_text, summary_samples
from ottla.server.metrics.families import COUNTER, FAMILIES, HISTOGRAM, Family
from ottla.server.metrics.histogram import Histogram
from ottla.server.metrics.otlp import POINTS_MAX, OtlpPush, converted, labels_of
from serving import Serving

pytestmark = pytest.mark.server


class Collector:
    """An OpenTelemetry collector that keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.came = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/metrics":
                    collector.requests.append(ExportMetricsServiceRequest.FromString(body))
                    collector.came.set()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.server.shutdown()
    found.server.server_close()


def newest(collector: Collector) -> dict[str, Any]:
    """The newest state of each metric."""
    requests = list(collector.requests)
    return {one.name: one for request in requests for part in request.resource_metrics for one in part.scope_metrics[0].metrics}


def messages_in(metrics: dict[str, Any]) -> float:
    """Messages of all topics and of each."""
    found = metrics.get("kafka_server_brokertopicmetrics_messagesin_total")
    return 0 if found is None else sum(point.as_double or point.as_int for point in found.sum.data_points)


def test_a_server_pushes_its_metrics(collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    with Serving(tmp_path / "data", arguments=["--otlp", collector.url]) as server:
        with ottla.Producer(bootstrap_servers=server.bootstrap) as producer:
            producer.send("t", b"v").result(30)
        # What was measured before the record was written may arrive after it.
        while messages_in(newest(collector)) < 2:
            collector.came.clear()
            assert collector.came.wait(30)
    (resource,) = collector.requests[0].resource_metrics
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "ottla"
    metrics = newest(collector)
    assert metrics["kafka_server_brokertopicmetrics_messagesin_total"].sum.is_monotonic
    assert sum(point.count for point in metrics["ottla_fsync_seconds"].histogram.data_points) > 0
    assert metrics["kafka_server_replicamanager_leadercount"].gauge.data_points


@pytest.mark.parametrize("value", ["plain", 'a"b', "a\\b", "a\nb", "a\\nb", 'x",y="', ""])
def test_labels_are_read_as_they_were_written(value: str) -> None:
    assert labels_of(label_text(a=value, b="c")) == {"a": value, "b": "c"}
    assert labels_of("") == {}


def test_a_histogram_has_counts_per_bucket() -> None:
    histogram = Histogram()
    for ns in (1_000, 20_000, 20_000, 10**13):
        histogram.observe(ns)
    family = Family("h", HISTOGRAM, "Help.", ("a",))
    [(name, kind, points)] = converted(family, histogram_samples(histogram, '{a="b"}'), since_ns=1, now_ns=2)
    (point,) = points
    assert (name, kind, point.count, dict(point.attributes)) == ("h", HISTOGRAM, 4, {"a": "b"})
    assert list(point.bucket_counts[:3]) == [1, 2, 0] and point.bucket_counts[-1] == 1
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1


def test_a_summary_is_quantiles_and_sums() -> None:
    found = {
        name: (kind, len(list(points)))
        for name, kind, points in converted(Family("s", "summary", "Help."), summary_samples([Histogram()]), since_ns=1, now_ns=2)
    }
    assert found == {"s": ("gauge", 6), "s_count": (COUNTER, 1), "s_sum": (COUNTER, 1)}


class Observed:
    """Observes many series."""

    lock = threading.Lock()

    def families(self, pace: object) -> Iterator[object]:
        yield FAMILIES["kafka_log_log_size"], (("", label_text(partition=number), number) for number in range(3 * POINTS_MAX + 1))


class Exporter:
    def __init__(self, result: MetricExportResult) -> None:
        self.result = result
        self.sizes: list[int] = []

    def export(self, data: object) -> MetricExportResult:
        self.sizes.append(len(data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points))  # type: ignore[attr-defined]
        return self.result


def test_requests_have_a_limited_size_and_failures_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    exporter = Exporter(MetricExportResult.SUCCESS)
    push = OtlpPush(Observed(), "http://127.0.0.1:1", instance="i", exporter=exporter)  # type: ignore[arg-type]
    assert push.push() and exporter.sizes == [POINTS_MAX] * 3 + [1]
    exporter.result = MetricExportResult.FAILURE
    assert not push.push() and not push.push()
    exporter.result = MetricExportResult.SUCCESS
    assert push.push()
    said = [record.getMessage() for record in caplog.records if record.name == "ottla.server"]
    assert len(said) == 2 and "cannot be pushed" in said[0] and said[1] == "metrics are pushed again"


def test_a_collector_that_does_not_answer_holds_up_no_scrape() -> None:
    """Each export waits for its collector, and a scrape needs the lock meanwhile."""
    observed = Observed()

    class Waiting(Exporter):
        def export(self, data: object) -> MetricExportResult:
            assert observed.lock.acquire(timeout=0), "a scrape would wait for the collector"
            observed.lock.release()
            return super().export(data)

    exporter = Waiting(MetricExportResult.SUCCESS)
    assert OtlpPush(observed, "http://127.0.0.1:1", instance="i", exporter=exporter).push()  # type: ignore[arg-type]
    assert len(exporter.sizes) == 4


def test_a_push_ends_with_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that lets each of 80 requests wait for 10 s would have them of a time long past."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "15000")
    now_s = 0.0

    class Slow(Exporter):
        def export(self, data: object) -> MetricExportResult:
            nonlocal now_s
            now_s += 10.0
            return super().export(data)

    exporter = Slow(MetricExportResult.SUCCESS)
    push = OtlpPush(Observed(), "http://127.0.0.1:1", instance="i", exporter=exporter, clock_s=lambda: now_s)  # type: ignore[arg-type]
    assert not push.push() and exporter.sizes == [POINTS_MAX] * 2
