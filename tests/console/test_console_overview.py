"""Health in one sentence, and the measurements behind it."""

from __future__ import annotations

import pytest
from browsing import Browser

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import LogDir, Node, PartitionDescription, ReplicaLog, TopicDescription
from ottla.client.doctor.facts import Finding
from ottla.console.pages.overview import health
from ottla.console.watch.snapshot import Measured, Snapshot, summarize
from ottla.console.watch.watcher import Report
from ottla.wire.errors import RequestTimedOut


def a_topic(name: str, *, isr: tuple[int, ...] = (1, 2), leader: int = 1, partitions: int = 2, id: bytes = b"1" * 16) -> TopicDescription:
    parts = [PartitionDescription(number, leader, 0, [1, 2], list(isr), []) for number in range(partitions)]
    return TopicDescription(name, id, False, parts)


def a_measurement(at_ms: int, *ends: int, topic: TopicDescription | None = None) -> Measured:
    """Two brokers; a topic with these log ends, each replica of 1000 bytes."""
    tps = [TopicPartition("t", number) for number in range(len(ends))]
    replicas = [ReplicaLog("t", number, 1000, 0, False) for number in range(len(ends))]
    return Measured(
        at_ms=at_ms, nodes=[Node(1, "a", 1), Node(2, "b", 2)], topics={"t": topic or a_topic("t", partitions=len(ends))},
        starts=dict.fromkeys(tps, 0), ends=dict(zip(tps, ends, strict=True)),
        directories={broker: [LogDir("/d", None, 10**6, 10**5, replicas)] for broker in (1, 2)},
    )  # fmt: skip


def a_report(*findings: Finding) -> Report:
    return Report(0, 1.0, 15, list(findings))


def a_finding(severity: str) -> Finding:
    return Finding(severity=severity, what=f"A {severity}.", evidence="e", remedy="r", topic="t")  # type: ignore[arg-type]


def test_rates_are_those_of_the_log_ends_between_two_measurements() -> None:
    found = summarize(a_measurement(3000, 30, 110), a_measurement(1000, 10, 100))
    assert found.rates == {TopicPartition("t", 0): 10.0, TopicPartition("t", 1): 5.0}
    topic = found.topics["t"]
    assert (topic.records, topic.size_bytes, topic.stored_bytes, topic.rate) == (140, 2000, 4000, 15.0)
    assert topic.byte_rate == pytest.approx(15.0 * 2000 / 140)
    assert topic.skew == pytest.approx(110 * 2 / 140)
    assert found.rate == 15.0 and found.stored_bytes == 4000


def test_a_topic_that_was_made_anew_has_no_rate() -> None:
    again = a_measurement(3000, 5, 5, topic=a_topic("t", id=b"2" * 16))
    assert summarize(again, a_measurement(1000, 0, 0)).topics["t"].rate is None
    assert summarize(again).rate is None


def test_brokers_are_counted_by_what_they_lead_store_and_miss() -> None:
    one, two = summarize(a_measurement(0, 1, 1, topic=a_topic("t", isr=(1,)))).brokers
    assert (one.leads, one.replicas, one.lagging, one.stored_bytes) == (2, 2, 0, 2000)
    assert (two.leads, two.replicas, two.lagging) == (0, 2, 2)


def a_snapshot(**topic: object) -> Snapshot:
    return summarize(a_measurement(0, 1, 1, topic=a_topic("t", **topic)))  # type: ignore[arg-type]


GOOD = "All 2 brokers answer, all replicas are in sync, and 15 checks found no problem."


@pytest.mark.parametrize(
    ("snapshot", "report", "level", "sentence"),
    [
        (None, None, "unknown", "The cluster is being measured."),
        (a_snapshot(), None, "unknown", "All 2 brokers answer; the checks are running."),
        (a_snapshot(), a_report(a_finding("note")), "good", GOOD),
        (a_snapshot(leader=-1), a_report(), "bad", "2 partitions have no leader and cannot be read or written."),
        (a_snapshot(isr=(1,)), a_report(), "warning", "2 partitions have replicas that are not in sync."),
        (a_snapshot(), a_report(a_finding("warning"), a_finding("warning")), "warning", "A warning (t). And 1 more warning."),
        (a_snapshot(isr=(1,)), a_report(a_finding("problem")), "bad", "A problem (t)."),
    ],
)  # fmt: skip
def test_health_is_one_sentence(snapshot: Snapshot | None, report: Report | None, level: str, sentence: str) -> None:
    found = health(snapshot, report, None)
    assert (found.level, found.sentence) == (level, sentence)


def test_an_unreachable_cluster_is_bad_health() -> None:
    assert health(a_snapshot(), a_report(), RequestTimedOut("x")).level == "bad"


@pytest.mark.server
def test_the_overview_shows_brokers_and_findings(browser: Browser) -> None:
    text = browser.text("/")
    assert "Brokers" in text and "What needs attention" in text
    assert "Records in" in browser.text("/live/overview")
