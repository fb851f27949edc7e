"""Each safeguard of replication, switched off by itself, must be missed: some simulated history of a cluster comes to harm without it."""

from collections.abc import Sequence

import pytest

from ottla.broker.apis import k00_produce
from ottla.broker.controller import election
from ottla.broker.follower import Follower
from ottla.broker.insync import InSync
from ottla.broker.leader import Leader
from ottla.broker.partitions import Partitions
from ottla.sim.cluster_history import CLUSTER_KINDS, ClusterHistory

#: Histories that a fault may hide in before the test gives up.
SEEDS = range(80)


def harm(kinds: Sequence[str] = CLUSTER_KINDS, **configs: str) -> list[str]:
    """The problems of the first history that has any."""
    texts = {name.replace("_", "."): text for name, text in configs.items()}
    for seed in SEEDS:
        history = ClusterHistory(seed, kinds=kinds, configs=texts)
        try:
            problems = history.run().problems
        except AssertionError as error:
            problems = [f"AssertionError: {error}"]
        if problems:
            return problems
    return []


def test_with_every_safeguard_on_histories_of_a_cluster_do_no_harm() -> None:
    for seed in range(12):
        assert ClusterHistory(seed).run().problems == []


def test_the_same_seed_is_the_same_history() -> None:
    assert ClusterHistory(3).run().trace_hash == ClusterHistory(3).run().trace_hash


def test_counting_what_a_follower_has_in_its_page_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "settled", property(lambda self: True))
    assert harm(("power cut everywhere", "slow disk"))


def test_committing_without_the_isr_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InSync, "committed", lambda self, own, *, min_insync: own)
    assert harm(("kill", "cut off", "pause"))


def test_forgetting_an_isr_that_was_asked_for_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InSync, "propose", lambda self, isr: None)
    assert harm()


def test_letting_anybody_join_the_isr_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = InSync.wanted
    monkeypatch.setattr(InSync, "wanted", lambda self, now_ms, **fields: wanted(self, now_ms, **{**fields, "joins_at": 0}))
    assert harm()


def test_electing_whoever_is_alive_is_caught() -> None:
    assert harm(("power cut", "kill", "cut off"), unclean_leader_election_enable="true", min_insync_replicas="1")


def test_keeping_the_isr_of_brokers_that_were_away_is_caught_under_write_caching(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was never on disk is gone after a power cut, and its broker must not lead by what it had."""
    monkeypatch.setattr(election, "is_sound", lambda image, state, broker: broker in image.brokers)
    monkeypatch.setattr(Partitions, "_names_us", lambda self, state: state.leader == self._node.broker_id and self._node.epoch is not None)
    assert harm(("power cut",), write_caching="true")


def test_not_cutting_off_what_the_leader_never_had_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "agrees", lambda self, offset, last_fetched_epoch: True)
    assert harm()


def test_answering_acks_all_before_the_followers_have_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k00_produce, "_committed", lambda written: True)
    assert harm(("kill", "power cut", "cut off"))


def test_leading_by_a_state_of_an_earlier_life_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partitions, "_names_us", lambda self, state: state.leader == self._node.broker_id)
    monkeypatch.setattr(election, "is_sound", lambda image, state, broker: broker in image.brokers)
    assert harm(("power cut", "kill"), write_caching="true")


def test_a_high_watermark_that_every_fetch_raises_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is where a follower fetches from, not that it does."""
    fetched = InSync.fetched

    def believed(self: InSync, broker: int, **fields: int) -> None:
        fetched(self, broker, **{**fields, "offset": fields["end_offset"]})

    monkeypatch.setattr(InSync, "fetched", believed)
    assert harm(("kill", "power cut", "cut link"))
