"""A log against a model: a list of records. Hypothesis appends, flushes, rolls, deletes, truncates, cuts the power and fills the disk.

What must hold: offsets are dense; what a flush reported is there after any crash, unchanged; nothing is read that was not written, and
after a crash the log ends somewhere between the durable end and the end; times, epochs and producers agree with the records.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from log_builders import NOW_MS, ORDERS, TOPIC_ID, append, flush, opened, options

from ottla.records.batch import crc_ok, parse_header
from ottla.records.read import records
from ottla.sim.disk import SimDisk


@dataclass(frozen=True)
class Written:
    offset: int
    timestamp_ms: int
    value: bytes
    epoch: int


class LogMachine(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([150, 400, 2000, 100_000]), interval=st.sampled_from([0, 120, 4096]), index=st.sampled_from([24, 400])
    )
    def create(self, segment_bytes: int, interval: int, index: int) -> None:
        self.texts = {
            "internal_segment_bytes": segment_bytes,
            "index_interval_bytes": interval,
            "segment_index_bytes": index,
            "retention_ms": 5000,
        }
        self.disk = SimDisk()
        self.directory = opened(self.disk, options(**self.texts))
        self.log = self.directory.create(ORDERS, TOPIC_ID, options(**self.texts), NOW_MS)
        flush(self.log)
        self.model: list[Written] = []
        #: Records below are durable; those below the start may be gone.
        self.durable = 0
        self.start = 0
        self.durable_start = 0
        self.epoch = 0
        self.now_ms = NOW_MS
        self.sequences: dict[int, int] = {}
        self.made = 0
        #: Cut off since the last flush: a crash may bring them back, as if they had never been cut.
        self.cut: list[Written] = []

    @rule(
        count=st.integers(1, 4),
        size=st.sampled_from([0, 5, 60, 300]),
        drift=st.integers(-50, 200),
        producer=st.one_of(st.none(), st.integers(0, 2)),
    )
    def append(self, count: int, size: int, drift: int, producer: int | None) -> None:
        self.now_ms += max(drift, 0)
        fields = {}
        if producer is not None:
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": self.sequences.get(producer, 0)}
        values = [b"%d/" % (self.made + n) + b"." * size for n in range(count)]
        stamps = [self.now_ms + drift - n for n in range(count)]
        self.made += count
        done = append(self.log, values, epoch=self.epoch, timestamps=stamps, now_ms=self.now_ms, **fields)
        assert not self.model or done.base_offset == self.model[-1].offset + 1
        if producer is not None:
            self.sequences[producer] = self.sequences.get(producer, 0) + count
        self.model += [
            Written(done.base_offset + n, stamp, value, self.epoch) for n, (stamp, value) in enumerate(zip(stamps, values, strict=True))
        ]

    @rule()
    def flush(self) -> None:
        flush(self.log)
        assert self.log.recovery_point == self.log.end_offset and self.log.flush_plan() is None
        self.durable = self.log.end_offset
        self.cut = []

    @rule()
    def change_leader(self) -> None:
        self.epoch += 1
        self.log.epochs.assign(self.epoch, self.log.end_offset)

    @rule()
    def checkpoint(self) -> None:
        self.directory.write_checkpoints()
        self.durable_start = self.log.start_offset

    @precondition(lambda self: self.log.recovery_point > self.log.start_offset)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.log.start_offset + int((self.log.recovery_point - self.log.start_offset) * share)
        for path in self.log.delete_before(offset, self.now_ms):
            self.disk.unlink(path)
        self.start = max(self.start, offset)
        assert self.log.start_offset == self.start

    @rule(later=st.integers(0, 8000))
    def retain(self, later: int) -> None:
        self.now_ms += later
        for path in self.log.retain(self.now_ms, self.log.recovery_point):
            self.disk.unlink(path)
        self.start = max(self.start, self.log.start_offset)
        kept = [written for written in self.model if written.offset < self.log.start_offset]
        assert not any(w.offset >= self.log.recovery_point for w in kept), "nothing above the high watermark is dropped"

    @precondition(lambda self: self.log.end_offset > self.log.start_offset)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.log.start_offset + int((self.log.end_offset - self.log.start_offset) * share)
        for path in self.log.truncate_to(offset):
            self.disk.unlink(path)
        assert self.log.end_offset <= offset
        self.cut += [written for written in self.model if written.offset >= self.log.end_offset]
        self.model = [written for written in self.model if written.offset < self.log.end_offset]
        self.durable = min(self.durable, self.log.end_offset)
        self.start = self.log.start_offset
        self.epoch += 1
        self.sequences = {}
        for producer_id, producer in self.log.producers.by_id.items():
            self.sequences[producer_id] = producer.batches[-1].last_sequence + 1

    @rule(budget=st.integers(0, 600), count=st.integers(1, 6))
    def fill_the_disk(self, budget: int, count: int) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes + budget
        for _ in range(count):
            end = self.log.end_offset
            try:
                self.append(2, 60, 1, None)
            except OSError:
                assert self.log.end_offset == end
        self.disk.capacity_bytes = 1 << 40

    @rule(seed=st.integers(0, 10_000))
    def cut_power(self, seed: int) -> None:
        end = max([self.log.end_offset, *(written.offset + 1 for written in self.cut)])
        self._reopen(self.disk.crash(Random(seed)))
        assert self.durable <= self.log.end_offset <= max(end, self.log.start_offset)
        known = {(written.offset, written.epoch): written for written in [*self.cut, *self.model]}
        before = [written for written in self.model if written.offset < self.log.start_offset]
        self.model = before + [
            known[offset, header.leader_epoch]
            for header, _ in self._batches()
            for offset in range(max(header.base_offset, self.log.start_offset), header.last_offset + 1)
        ]
        self._after_crash()

    @rule()
    def kill(self) -> None:
        end = self.log.end_offset
        self._reopen(self.disk.restart())
        assert self.log.end_offset == max(end, self.log.start_offset)
        self._after_crash()

    @rule()
    def stop(self) -> None:
        end, start = self.log.end_offset, self.log.start_offset
        assert self.directory.close(now_ms=self.now_ms)
        self._reopen(self.disk.restart())
        assert self.directory.clean_start and (self.log.end_offset, self.log.start_offset) == (end, start)
        assert self.log.recovered is None
        self.durable, self.durable_start = end, start
        self._after_crash()

    def _reopen(self, disk: SimDisk) -> None:
        self.disk = disk
        self.directory = opened(disk, options(**self.texts), now_ms=self.now_ms)
        self.log = self.directory.logs[ORDERS]

    def _after_crash(self) -> None:
        self.model = [written for written in self.model if written.offset < self.log.end_offset and self.log.size]
        self.durable = self.log.end_offset
        self.cut = []
        self.start = self.log.start_offset
        self.epoch = max(self.epoch, self.log.epochs.latest) + 1
        self.sequences = {producer_id: producer.batches[-1].last_sequence + 1 for producer_id, producer in self.log.producers.by_id.items()}

    @invariant()
    def what_is_read_is_what_was_written(self) -> None:
        expected = {written.offset: written for written in self.model}
        offset = self.log.start_offset
        for header, batch in self._batches():
            assert header.base_offset <= offset <= header.last_offset
            for at, timestamp, _, value, _ in records(batch):
                if at >= offset:
                    assert at == offset and expected[at] == Written(at, timestamp, value or b"", header.leader_epoch)
                    assert self.log.epochs.epoch_at(at) == header.leader_epoch
                    offset += 1  # type: ignore[assignment]
        assert offset == self.log.end_offset

    def _batches(self) -> Iterator:  # type: ignore[type-arg]
        offset = self.log.start_offset
        while offset < self.log.end_offset:
            batch = self.log.read(offset, max_bytes=1)
            assert crc_ok(batch)
            header = parse_header(batch)
            yield header, batch
            offset = header.last_offset + 1  # type: ignore[assignment]

    @invariant()
    def times_lead_to_the_first_record_that_is_late_enough(self) -> None:
        alive = [written for written in self.model if written.offset >= self.log.start_offset]
        for wanted in {NOW_MS, *(written.timestamp_ms for written in alive[:: max(len(alive) // 3, 1)]), self.now_ms + 10_000}:
            found = self.log.offset_for_time(wanted, upto=self.log.end_offset)
            first = next((w for w in alive if w.timestamp_ms >= wanted), None)
            assert (found and found.offset) == (first and first.offset)

    @invariant()
    def the_recovery_point_lies_within_the_log(self) -> None:
        assert self.log.recovery_point <= self.log.end_offset and self.log.start_offset <= self.log.end_offset
        assert self.log.bases[0] <= self.log.start_offset or self.log.size == 0
        assert self.log.bases == [segment.base_offset for segment in self.log.segments]


LogMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestLog = LogMachine.TestCase
