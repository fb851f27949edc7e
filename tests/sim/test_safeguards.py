"""Each safeguard of the broker, switched off alone: the simulator finds a violation."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from ottla.base.units import INT64_MAX
from ottla.broker.apis import k00_produce
from ottla.broker.replica import leader
from ottla.broker.replica.leader import Leader
from ottla.log import compactor, recovery
from ottla.log.errors import CorruptLog
from ottla.log.log import Log
from ottla.log.producer_state import Producers
from ottla.records.batch import crc_ok, parse_header
from ottla.records.checksum import crc32c
from ottla.records.errors import CorruptBatch
from ottla.records.validation import examine_batch
from ottla.server.flusher import Flusher, Plans
from ottla.sim.disk import SimFile
from ottla.sim.history import History

pytestmark = pytest.mark.slow

#: Histories that a fault may hide in before the test gives up.
SEEDS = 60


def harm(expected: str, kinds: Sequence[str], *, compacted: bool = False, first: int = 0) -> bool:
    """Whether a history violates the invariant whose message matches ``expected``; other violations do not count."""
    for seed in range(first, first + SEEDS):
        history = History(seed, kinds=kinds, compacted=compacted)
        try:
            problems = history.run().problems
        except (AssertionError, CorruptBatch, CorruptLog) as error:
            problems = [f"{type(error).__name__}: {error}"]
        if any(re.search(expected, problem) for problem in problems):
            return True
    return False


def test_with_every_safeguard_on_these_histories_do_no_harm() -> None:
    for seed in range(10):
        assert History(seed, kinds=("power cut", "slow disk", "fsync fails")).run().problems == []


def test_answering_without_fsync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flusher, "carry_out", lambda self, plans, lanes=None: None)
    assert harm("out of range", ("power cut",))


def test_answering_acks_all_before_the_flush_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k00_produce, "_committed", lambda *waiting: True)
    assert harm("lost: ", ("power cut",), first=1)


def test_letting_consumers_read_what_is_not_on_disk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "readable_end", lambda self, isolation_level: self.log.end_offset)
    assert harm("out of range", ("power cut",))


def test_forgetting_to_sync_directories_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flusher, "_sync_directories", lambda self, directories: None)
    assert harm("out of range", ("power cut",))


def test_trying_a_failed_fsync_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Flusher.ended

    def retry(self: Flusher, plans: Plans, error: Exception | None) -> None:
        if error is None:
            ended(self, plans, error)
        else:
            self.flush(plans)

    monkeypatch.setattr(Flusher, "ended", retry)
    assert harm("lost: ", ("fsync fails", "power cut"), first=3)


def test_believing_the_page_cache_after_a_failed_fsync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "drop_cache", lambda self: None)
    assert harm("lost: ", ("fsync fails", "power cut"), first=3)


def test_not_checking_the_crc_at_recovery_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "crc_fits", lambda batch, crc: True)
    assert harm("lost: ", ("power cut", "slow disk"), first=138)


def test_trusting_the_files_after_a_crash_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    open_log = recovery.open_log
    monkeypatch.setattr(recovery, "open_log", lambda *place, clean, **rest: open_log(*place, clean=True, **rest))
    assert harm("lost: ", ("power cut", "slow disk"), first=148)


def test_forgetting_the_duplicate_window_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "sequence_check", lambda self, header, **checks: None)
    assert harm("duplicate: ", ("broken connections", "pause"), first=2)


def test_not_recovering_producer_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "rebuild_producers", lambda *arguments: None)
    monkeypatch.setattr(recovery, "note_batch", lambda *arguments: None)
    assert harm("duplicate: ", ("kill", "broken connections"), first=5)


def test_accepting_a_gap_in_sequence_numbers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "_check_sequence", lambda self, producer, header: None)
    assert harm("duplicate: ", ("damaged frames", "broken connections"), first=12)


def test_storing_a_batch_without_checking_its_crc_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(buffer: Any, **limits: Any) -> Any:
        header = parse_header(buffer)
        if header.size == len(buffer) and not crc_ok(buffer):
            buffer[17:21] = crc32c(buffer, 21).to_bytes(4, "big")
        return examine_batch(buffer, **limits)

    monkeypatch.setattr(leader, "examine_batch", trusting)
    assert harm("lost: ", ("damaged frames",), first=3)


def test_compaction_with_every_safeguard_on_does_no_harm() -> None:
    for seed in range(10):
        assert History(seed, kinds=("power cut", "kill", "full disk", "slow disk"), compacted=True).run().problems == []


def test_calling_a_compaction_done_before_its_files_are_on_disk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimFile.sync
    monkeypatch.setattr(SimFile, "sync", lambda self: None if self.path.endswith(".cleaned") else sync(self))
    assert harm("lost: ", ("power cut",), compacted=True)


def test_taking_the_holes_of_compaction_for_lost_records_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_holes_below", lambda log, names: 0)
    assert harm("lost: ", ("kill",), compacted=True, first=1)


def test_taking_every_hole_in_a_compacted_log_for_one_of_compaction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_holes_below", lambda log, names: INT64_MAX)
    assert harm("is out of order", ("power cut", "slow disk"), compacted=True, first=6)


def test_compacting_by_keys_that_were_not_mapped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "retain", lambda batch, header, offset_map, **rest: None)
    assert harm("lost: ", ("kill",), compacted=True)
