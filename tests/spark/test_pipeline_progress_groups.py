"""Progress committed for the groups of a pipeline's sources at its end."""

from ottla.base.ids import TopicPartition
from ottla.spark.pipeline.run import is_subscribed, lowest_ends
from ottla.spark.source.options import Subscription

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_record_is_finished_when_every_query_has_finished_it() -> None:
    one = {"sources": [{"endOffset": '{"a": {"0": 7, "1": 3}}'}, {"endOffset": '{"logOffset": 4}'}]}
    other = {"sources": [{"endOffset": {"a": {"0": 5}}}, {"endOffset": {"b": {"0": 1}}}]}
    assert lowest_ends([one, None, other]) == {A0: 5, A1: 3, B0: 1}


def test_a_source_has_the_partitions_of_its_subscription() -> None:
    assert [is_subscribed(Subscription("assign", partitions=(A1,)), tp) for tp in (A0, A1, B0)] == [False, True, False]
    assert [is_subscribed(Subscription("subscribe", topics=("a",)), tp) for tp in (A0, A1, B0)] == [True, True, False]
    assert [is_subscribed(Subscription("subscribePattern", pattern="[b-z]"), tp) for tp in (A0, A1, B0)] == [False, False, True]
