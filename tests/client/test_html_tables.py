"""What clients return, as HTML in a notebook."""

from __future__ import annotations

import re

from ottla.base.ids import TopicPartition
from ottla.client.admin.group_lag import GroupLag, PartitionLag
from ottla.client.admin.group_results import GroupState
from ottla.client.admin.results import ClusterDescription, Node, PartitionDescription, TopicDescription, TopicListing
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.html_tables import CELL_MAX, ROWS_MAX, HtmlRows, Outcomes
from ottla.wire.errors import UnknownTopicOrPartition


def cells(html: str, tag: str = "td") -> list[str]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)


def test_a_list_of_topics_is_a_table_with_ids_as_kafka_prints_them() -> None:
    topics = HtmlRows([TopicListing("orders", bytes(15) + b"\1", False, 3, 1)])
    assert cells(topics._repr_html_(), "th") == ["name", "topic_id", "is_internal", "partition_count", "replication_factor"]
    assert cells(topics._repr_html_()) == ["orders", "AAAAAAAAAAAAAAAAAAAAAQ", "False", "3", "1"]
    assert topics == [TopicListing("orders", bytes(15) + b"\1", False, 3, 1)] and isinstance(topics, list)
    assert HtmlRows()._repr_html_() == "<p>none</p>"


def test_keys_and_values_are_escaped_and_cut() -> None:
    html = HtmlRows(
        [ConsumerRecord("t", 0, 7, 1_700_000_000_000, 0, b"\xff\x00", b"<script>" + b"x" * 500, (("a", b"1"), ("b", None)))]
    )._repr_html_()
    assert "<script>" not in html
    found = dict(zip(cells(html, "th"), cells(html), strict=True))
    assert found["value"].startswith("&lt;script&gt;xxx") and found["value"].endswith("... (508 characters)")
    assert len(found["value"]) < CELL_MAX + 50
    assert (found["key"], found["timestamp"], found["headers"]) == ("ff 00", "2023-11-14 22:13:20.000Z", "a=1, b=-")


def test_outcomes_name_what_failed() -> None:
    found = Outcomes(
        {"orders": TopicDescription("orders", bytes(16), False, []), "gone": UnknownTopicOrPartition("there is no topic gone")}
    )
    assert "<td>gone</td>" in found._repr_html_() and "UnknownTopicOrPartition: there is no topic gone" in found._repr_html_()


def test_a_single_result_is_a_table_of_its_parts() -> None:
    topic = TopicDescription("orders", bytes(16), False, [PartitionDescription(0, 1, 5, [1, 2], [1], [])])
    assert "<caption>orders" in topic._repr_html_() and "<td>1, 2</td>" in topic._repr_html_()
    cluster = ClusterDescription("c", 1, [Node(1, "host", 9092)])
    assert "<td>host</td>" in cluster._repr_html_()
    lag = GroupLag("billing", GroupState.STABLE, 0, [PartitionLag("orders", 0, 4, 0, 10)])
    assert "billing  Stable  lag 6" in lag._repr_html_()
    assert dict(zip(cells(lag._repr_html_(), "th"), cells(lag._repr_html_()), strict=True))["lag"] == "6"


def test_a_long_list_is_cut_and_says_so() -> None:
    html = HtmlRows([TopicPartition("t", number) for number in range(ROWS_MAX + 5)])._repr_html_()
    assert html.count("<tr>") == ROWS_MAX + 1 and f"{ROWS_MAX} of {ROWS_MAX + 5} rows" in html
