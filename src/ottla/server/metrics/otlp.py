"""Pushes the metrics to an OpenTelemetry collector (``--otlp``), over HTTP, from a thread.

All metrics of /metrics are sent, every ``INTERVAL_S`` or OTEL_METRIC_EXPORT_INTERVAL ms, in requests of ``POINTS_MAX`` points. A push ends
when its interval is over, because a collector that does not answer costs the exporter's timeout per request. A counter is
a cumulative sum, a histogram a histogram. OpenTelemetry has no summaries any more: their quantiles are gauges, count and sum are sums.
Credentials and certificates are in the variables of OpenTelemetry (OTEL_EXPORTER_OTLP_HEADERS, ..._CERTIFICATE, ..._TIMEOUT).

The encoder of the library is Python code without pauses. So the interpreter's switch interval is 1 ms in a process that pushes: the event
loop waits at most that long for it.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import islice
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ottla.server.metrics.exposition import Pace, Sample
from ottla.server.metrics.families import COUNTER, HISTOGRAM, Family
from ottla.server.metrics.observation import Observation

log = logging.getLogger("ottla.server")

INTERVAL_S = 60.0
#: Points in one request.
POINTS_MAX = 2_000
#: Longest time that the encoder keeps the interpreter lock from another thread.
SWITCH_INTERVAL_S = 0.001
METRICS_PATH = "/v1/metrics"
CUMULATIVE = AggregationTemporality.CUMULATIVE


class OtlpPush:
    """Pushes the metrics of one process."""

    def __init__(
        self, observation: Observation, url: str, *, instance: str, exporter: Any = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``url``: of the collector, such as http://localhost:4318; ``instance``: the name of this process there."""
        self._observation, self._clock_s = observation, clock_s
        endpoint = url if url.rstrip("/").endswith(METRICS_PATH) else url.rstrip("/") + METRICS_PATH
        self._exporter = OTLPMetricExporter(endpoint=endpoint) if exporter is None else exporter
        attributes = {"service.name": "ottla", "service.version": version("ottla"), "service.instance.id": instance}
        self._resource = Resource.create(attributes)
        self._scope = InstrumentationScope("ottla")
        self._interval_s = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or INTERVAL_S * 1000) / 1000
        self._since_ns = time.time_ns()
        self._over = threading.Event()
        #: Whether the last push failed.
        self._failing = False

    def start(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        threading.Thread(target=self._run, name="ottla-otlp", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread after the request that is in progress."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self.push()

    def push(self) -> bool:
        """Sends all metrics; returns whether the collector took them. The first failure, and the end of failures, are logged."""
        pace = Pace()
        ends_s = self._clock_s() + self._interval_s
        failed = False
        try:
            parts = self._data(self._observation.families(pace), pace)
            while (part := self._next_of(parts)) is not None:
                if self._over.is_set():
                    break
                if self._clock_s() > ends_s:
                    failed = True
                    break
                failed |= self._exporter.export(part) is not MetricExportResult.SUCCESS
        except (RuntimeError, AttributeError, IndexError, OSError, ValueError):
            log.exception("metrics could not be pushed")
            failed = True
        if failed != self._failing:
            self._failing = failed
            what = "metrics cannot be pushed to the collector of --otlp; the next push is tried" if failed else "metrics are pushed again"
            log.log(logging.WARNING if failed else logging.INFO, what)
        return not failed

    def _next_of(self, parts: Iterator[MetricsData]) -> MetricsData | None:
        """Locked only while it collects: a collector that is slow to answer holds up no scrape."""
        with self._observation.lock:
            return next(parts, None)

    def _data(self, families: Iterable[tuple[Family, Iterable[Sample]]], pace: Pace) -> Iterator[MetricsData]:
        """The metrics in parts of at most about ``POINTS_MAX`` points."""
        gathered: list[Metric] = []
        count = 0
        for family, samples in families:
            points = converted(family, samples, since_ns=self._since_ns, now_ns=time.time_ns(), step=pace.step)
            for name, kind, some in points:
                while part := list(islice(some, POINTS_MAX)):
                    gathered.append(metric_of(name, family.help, kind, part))
                    count += len(part)
                    if count >= POINTS_MAX:
                        yield self._part(gathered)
                        gathered, count = [], 0
        if gathered:
            yield self._part(gathered)

    def _part(self, metrics: list[Metric]) -> MetricsData:
        scope = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        return MetricsData(resource_metrics=[ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")])


def metric_of(name: str, help: str, kind: str, points: list[Any]) -> Metric:
    """A metric of these points."""
    data: Any
    if kind == HISTOGRAM:
        data = Histogram(data_points=points, aggregation_temporality=CUMULATIVE)
    elif kind == COUNTER:
        data = Sum(data_points=points, aggregation_temporality=CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(data_points=points)
    return Metric(name=name, description=help, unit="", data=data)


def converted(
    family: Family, samples: Iterable[Sample], *, since_ns: int, now_ns: int, step: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, str, Iterator[Any]]]:
    """(name, kind, points) of a family; a summary becomes three metrics."""
    if family.kind == HISTOGRAM:
        yield family.name, HISTOGRAM, _histograms(samples, since_ns=since_ns, now_ns=now_ns, step=step)
        return
    by_end: dict[str, list[NumberDataPoint]] = {"": []} if family.kind == "summary" else {}
    if by_end:
        for end, labels, value in samples:
            by_end.setdefault(end, []).append(_point(labels, value, since_ns, now_ns))
            step()
        for end, points in by_end.items():
            yield family.name + end, COUNTER if end else "gauge", iter(points)
        return
    yield family.name, family.kind, _points(samples, since_ns=since_ns, now_ns=now_ns, step=step)


def _points(samples: Iterable[Sample], *, since_ns: int, now_ns: int, step: Callable[[], None]) -> Iterator[NumberDataPoint]:
    for _, labels, value in samples:
        yield _point(labels, value, since_ns, now_ns)
        step()


def _point(labels: str, value: float, since_ns: int, now_ns: int) -> NumberDataPoint:
    return NumberDataPoint(attributes=labels_of(labels), start_time_unix_nano=since_ns, time_unix_nano=now_ns, value=value)


def _histograms(samples: Iterable[Sample], *, since_ns: int, now_ns: int, step: Callable[[], None]) -> Iterator[HistogramDataPoint]:
    """Buckets, count and sum follow each other in the samples of each histogram."""
    bounds: list[float] = []
    counts: list[int] = []
    total = 0
    for end, labels, value in samples:
        step()
        if end == "_bucket":
            bound = labels_of(labels)["le"]
            if bound != "+Inf":
                bounds.append(float(bound))
            counts.append(int(value) - sum(counts))
        elif end == "_count":
            total = int(value)
        else:
            yield HistogramDataPoint(
                attributes=labels_of(labels),
                start_time_unix_nano=since_ns,
                time_unix_nano=now_ns,
                count=total,
                sum=float(value),
                bucket_counts=counts,
                explicit_bounds=bounds,
                min=0.0,
                max=0.0,
            )
            bounds, counts = [], []


def labels_of(text: str) -> Mapping[str, str]:
    """Labels in braces, as ``exposition`` writes them."""
    found: dict[str, str] = {}
    position = 1
    while position < len(text) - 1:
        equals = text.index("=", position)
        end = equals + 2
        while text[end] != '"':
            end += 2 if text[end] == "\\" else 1
        value = text[equals + 2 : end]
        found[text[position:equals]] = value if "\\" not in value else _unescaped(value)
        position = end + 2
    return found


def _unescaped(value: str) -> str:
    return value.replace("\\\\", "\0").replace('\\"', '"').replace("\\n", "\n").replace("\0", "\\")
