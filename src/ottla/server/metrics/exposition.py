"""Writes metrics in Prometheus' text format 0.0.4 or in OpenMetrics 1.0, in small pieces.

A broker can have some 10,000 partitions with a dozen metrics each. A library that writes them in one call holds Python's interpreter lock
for most of a second, in which the event loop gets it every 5 ms at best. So the text is made line by line, and ``Pace`` gives up the lock
after ``WORK_S``: the loop waits at most about that long.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from ottla.server.metrics.families import COUNTER, Family
from ottla.server.metrics.histogram import BUCKETS, Histogram, bound_s, quantile_s

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
#: Work between two pauses, and the length of a pause.
WORK_S, PAUSE_S = 0.00025, 0.0004

#: End of the name, labels in braces or nothing, value.
Sample = tuple[str, str, float]


class Pace:
    """Pauses a thread often enough that another one is not held up."""

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._began_s = clock()

    def step(self) -> None:
        """Call after each piece of work of some microseconds."""
        if self._clock() - self._began_s > WORK_S:
            self.pause()

    def pause(self) -> None:
        """Call before and after a piece of work that takes longer."""
        self._sleep(PAUSE_S)
        self._began_s = self._clock()


def escaped(text: str) -> str:
    """A label's value."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') if not text.isalnum() else text


def label_text(**labels: object) -> str:
    """Labels in braces."""
    return "{" + ",".join(f'{name}="{escaped(str(value))}"' for name, value in labels.items()) + "}" if labels else ""


def with_label(labels: str, name: str, value: str) -> str:
    """``labels`` with one more label, whose value needs no escapes."""
    return f'{{{name}="{value}"}}' if not labels else f'{labels[:-1]},{name}="{value}"}}'


def histogram_samples(histogram: Histogram, labels: str = "") -> Iterator[Sample]:
    """A histogram in seconds."""
    counts, total = histogram.counts[:], 0
    for bucket, count in enumerate(counts):
        total += count
        bound = "+Inf" if bucket == BUCKETS - 1 else repr(bound_s(bucket))
        yield "_bucket", with_label(labels, "le", bound), total
    yield "_count", labels, total
    yield "_sum", labels, histogram.sum_ns / 1e9


def summary_samples(histograms: Iterable[Histogram], labels: str = "") -> Iterator[Sample]:
    """Quantiles in ms of the sum of histograms."""
    counts, sum_ns = [0] * BUCKETS, 0
    for histogram in histograms:
        counts = [one + other for one, other in zip(counts, histogram.counts, strict=True)]
        sum_ns += histogram.sum_ns
    for share in QUANTILES:
        yield "", with_label(labels, "quantile", repr(share)), quantile_s(counts, share) * 1_000
    yield "_count", labels, sum(counts)
    yield "_sum", labels, sum_ns / 1e6


def written(families: Iterable[tuple[Family, Iterable[Sample]]], pace: Pace, *, openmetrics: bool) -> Iterator[str]:
    """Lines of the families; those without samples are omitted."""
    for family, samples in families:
        name = family.name
        headed = False
        # In OpenMetrics a counter is named without the end that its samples have.
        title = name.removesuffix("_total") if openmetrics and family.kind == COUNTER else name
        for suffix, labels, value in samples:
            if not headed:
                headed = True
                yield f"# HELP {title} {family.help}\n# TYPE {title} {family.kind}\n"
            yield f"{name}{suffix}{labels} {value}\n"
            pace.step()
    if openmetrics:
        yield "# EOF\n"
