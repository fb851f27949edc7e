"""Produce, as clients see it. Numbers are lines of the protocol's list of semantics."""

from cluster import Cluster, batch, fetch, produce_request, values


def test_a_record_with_acks_all_is_answered_once_it_is_on_disk() -> None:
    """Line 24, and what acks=all means here."""
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    sent = broker.send(produce_request(batch(b"a"), acks=-1), 12)
    assert sent.answer is None
    broker.flush()
    assert sent.answer.responses[0].partition_responses[0].base_offset == 0
    assert values(fetch(broker).records) == [b"a"]
