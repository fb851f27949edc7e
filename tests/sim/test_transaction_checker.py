"""The checker of transactions: a sound history has no anomalies, and each kind of anomaly is found."""

import pytest

from ottla.sim.checkers.transactions import (
    NEVER,
    FinalLog,
    Observations,
    ObservedRead,
    ObservedTransaction,
    Outcome,
    Place,
    check,
    value_of,
)

INPUT: Place = ("in", 0)
OUTPUT: Place = ("out", 0)
OTHER: Place = ("out", 1)


class Story:
    """Builds a history: transactions, then logs and reads. Times count up by themselves."""

    def __init__(self) -> None:
        self.seen = Observations()
        self._now = 0

    def now(self) -> int:
        self._now += 1
        return self._now

    def begin(self, name: str, *places: Place, count: int = 2, transactional_id: str = "") -> ObservedTransaction:
        """Begins a transaction that writes ``count`` values to each partition."""
        appends = {place: [value_of(name, number + count * at) for number in range(count)] for at, place in enumerate(places)}
        made = ObservedTransaction(name, transactional_id or name.split("#")[0], self.now(), appends=appends)
        self.seen.transactions.append(made)
        return made

    def end(self, transaction: ObservedTransaction, outcome: Outcome = "committed") -> None:
        if outcome in ("committed", "unknown"):
            transaction.commit_sent = self.now()
        transaction.outcome = outcome
        if outcome in ("committed", "aborted"):
            transaction.ended = self.now()

    def whole(self, name: str, *places: Place, outcome: Outcome = "committed", **more: object) -> ObservedTransaction:
        made = self.begin(name, *places, **more)  # type: ignore[arg-type]
        self.end(made, outcome)
        return made

    def log(self, place: Place, *values: bytes, aborted: tuple[bytes, ...] = (), stable: int | None = None) -> None:
        """The partition's records in order, without markers."""
        records = list(enumerate(values))
        committed = [(offset, value) for offset, value in records if value not in aborted]
        end = len(values)
        self.seen.logs[place] = FinalLog(records, committed, end if stable is None else stable, end)

    def read(self, place: Place, start: int, stop: int, *records: tuple[int, bytes], committed: bool = True, at: int = NEVER - 1) -> None:
        self.seen.reads.append(ObservedRead("reader", place, committed, start, stop, records, at))

    def kinds(self) -> set[str]:
        return {problem.split(":")[0] for problem in check(self.seen)}


def test_a_sound_history_has_no_anomalies() -> None:
    story = Story()
    one, aborted = story.begin("a#1", INPUT, OTHER), story.begin("b#1", INPUT)
    [first, second], [third, fourth] = one.appends[INPUT], aborted.appends[INPUT]
    story.end(one)
    story.end(aborted, "aborted")
    unknown = story.whole("c#1", OTHER, outcome="unknown")
    worker = story.begin("w#1", OUTPUT)
    worker.group, worker.inputs = "g", [(INPUT, 0), (INPUT, 2)]
    story.end(worker)
    # Records of concurrent transactions interleave.
    story.log(INPUT, first, third, second, fourth, aborted=(third, fourth))
    story.log(OTHER, *one.appends[OTHER], *unknown.appends[OTHER])
    story.log(OUTPUT, *worker.appends[OUTPUT])
    story.read(INPUT, 0, 1, (0, first))
    story.read(INPUT, 1, 4, (2, second))
    story.read(INPUT, 0, 4, (0, first), (1, third), (2, second), (3, fourth), committed=False)
    story.seen.processed = {"g": [INPUT]}
    assert check(story.seen) == []


def test_concurrent_transactions_may_be_in_opposite_orders_in_two_partitions() -> None:
    story = Story()
    one, two = story.begin("a#1", OUTPUT, OTHER), story.begin("b#1", OUTPUT, OTHER)
    story.end(one)
    story.end(two)
    story.log(OUTPUT, *one.appends[OUTPUT], *two.appends[OUTPUT])
    story.log(OTHER, *two.appends[OTHER], *one.appends[OTHER])
    assert check(story.seen) == []


def test_g0_is_a_record_after_one_of_a_later_transaction() -> None:
    story = Story()
    one, two = story.whole("a#1", OUTPUT), story.whole("a#2", OUTPUT)
    (first, late), (third, fourth) = one.appends[OUTPUT], two.appends[OUTPUT]
    story.log(OUTPUT, first, third, fourth, late)
    assert story.kinds() == {"G0"}


def test_g0_is_found_over_a_transaction_with_unknown_outcome() -> None:
    """Nobody knows when b ended, but c has a record behind one of b, and ended before d began, which has one before a record of b."""
    story = Story()
    one = story.whole("b#1", OUTPUT, OTHER, outcome="unknown")
    two = story.whole("c#1", OUTPUT)
    three = story.whole("d#1", OTHER)
    story.log(OUTPUT, *one.appends[OUTPUT], *two.appends[OUTPUT])
    story.log(OTHER, *three.appends[OTHER], *one.appends[OTHER])
    assert check(story.seen) == [], "b may have been open all the time"
    worker = story.begin("e#1", OTHER)
    worker.group, worker.inputs = "g", [(OUTPUT, 0)]
    story.end(worker)
    story.log(OTHER, *worker.appends[OTHER], *three.appends[OTHER], *one.appends[OTHER])
    assert story.kinds() == {"G0"}, "e began after d ended"
    three.ended = NEVER
    assert story.kinds() == {"G1c"}, "e read a record of b, and wrote before b"


def test_g1a_is_a_read_of_an_aborted_value() -> None:
    story = Story()
    one = story.whole("a#1", INPUT, outcome="aborted")
    story.log(INPUT, *one.appends[INPUT], aborted=tuple(one.appends[INPUT]))
    story.read(INPUT, 0, 1, (0, one.appends[INPUT][0]))
    assert story.kinds() == {"G1a"}
    story.seen.reads[0].committed = False
    assert story.kinds() == set()


def test_g1b_is_a_read_before_the_commit_was_requested() -> None:
    story = Story()
    one = story.begin("a#1", INPUT)
    story.read(INPUT, 0, 2, *enumerate(one.appends[INPUT]), at=story.now())
    story.end(one)
    story.log(INPUT, *one.appends[INPUT])
    assert story.kinds() == {"G1b"}


def test_g1b_is_a_reader_that_passes_over_a_part_of_a_transaction() -> None:
    story = Story()
    one = story.whole("a#1", INPUT)
    story.log(INPUT, *one.appends[INPUT])
    story.read(INPUT, 0, 2, (1, one.appends[INPUT][1]))
    assert story.kinds() == {"G1b"}


def test_g1c_is_information_that_flows_in_a_circle() -> None:
    """Each of two processors read what the other one wrote."""
    story = Story()
    one, two = story.begin("a#1", INPUT, count=1), story.begin("b#1", OUTPUT, count=1)
    one.group, one.inputs = "g", [(OUTPUT, 0)]
    two.group, two.inputs = "h", [(INPUT, 0)]
    story.end(one)
    story.end(two)
    story.log(INPUT, *one.appends[INPUT])
    story.log(OUTPUT, *two.appends[OUTPUT])
    assert story.kinds() == {"G1c"}


def test_an_acknowledged_commit_that_is_not_in_the_log_is_lost() -> None:
    story = Story()
    story.whole("a#1", INPUT)
    story.log(INPUT)
    assert story.kinds() == {"lost"}


def test_a_whole_transaction_that_a_reader_passes_over_is_lost() -> None:
    story = Story()
    one = story.whole("a#1", INPUT)
    story.log(INPUT, *one.appends[INPUT])
    story.read(INPUT, 0, 2)
    assert story.kinds() == {"lost"}


def a_processed_input(*workers: str) -> Story:
    """One input that each of these processed."""
    story = Story()
    source = story.whole("a#1", INPUT, count=1)
    story.log(INPUT, *source.appends[INPUT])
    made = [story.whole(name, OUTPUT, count=1) for name in workers]
    for each in made:
        each.group, each.inputs = "g", [(INPUT, 0)]
    story.log(OUTPUT, *(each.appends[OUTPUT][0] for each in made))
    story.seen.processed = {"g": [INPUT]}
    return story


@pytest.mark.parametrize(("workers", "found"), [(("w#1",), set()), (("w#1", "x#1"), {"doubled"}), ((), {"lost"})])
def test_each_input_is_processed_once(workers: tuple[str, ...], found: set[str]) -> None:
    assert a_processed_input(*workers).kinds() == found


@pytest.mark.parametrize("outcome", ["committed", "unknown"])
def test_a_transaction_of_which_a_part_is_visible_is_torn(outcome: Outcome) -> None:
    story = Story()
    one = story.whole("a#1", INPUT, OUTPUT, outcome=outcome)
    story.log(INPUT, *one.appends[INPUT])
    story.log(OUTPUT, *one.appends[OUTPUT], aborted=tuple(one.appends[OUTPUT]))
    assert story.kinds() == {"torn"}


@pytest.mark.parametrize("outcome", ["aborted", "open"])
def test_a_transaction_that_is_visible_without_a_commit_is_torn(outcome: Outcome) -> None:
    story = Story()
    one = story.whole("a#1", INPUT, outcome=outcome)
    story.log(INPUT, *one.appends[INPUT])
    assert story.kinds() == {"torn"}


def test_a_commit_of_a_client_that_was_replaced_before_is_found() -> None:
    story = Story()
    one = story.begin("a.0#1", INPUT, transactional_id="a")
    one.fenced = story.now()
    story.end(one)
    story.log(INPUT, *one.appends[INPUT])
    assert story.kinds() == {"fenced"}


def test_a_commit_requested_before_the_replacement_is_allowed() -> None:
    story = Story()
    one = story.whole("a.0#1", INPUT, outcome="unknown", transactional_id="a")
    one.fenced = one.ended = story.now()
    story.log(INPUT, *one.appends[INPUT])
    assert check(story.seen) == []


def test_values_out_of_order_doubled_or_unknown_are_internal_inconsistencies() -> None:
    for order in ((1, 0), (0, 1, 1)):
        story = Story()
        one = story.whole("a#1", INPUT)
        story.log(INPUT, *(one.appends[INPUT][number] for number in order))
        assert "internal" in story.kinds()
    story = Story()
    story.log(INPUT, value_of("nobody#1", 0))
    assert story.kinds() == {"internal"}


def test_an_offset_with_two_values_is_an_internal_inconsistency() -> None:
    story = Story()
    one = story.whole("a#1", INPUT)
    story.log(INPUT, *one.appends[INPUT])
    story.read(INPUT, 0, 1, (0, one.appends[INPUT][1]), committed=False)
    assert story.kinds() == {"internal"}


def test_a_last_stable_offset_below_the_high_watermark_is_stuck() -> None:
    story = Story()
    one = story.whole("a#1", INPUT)
    story.log(INPUT, *one.appends[INPUT], stable=1)
    assert story.kinds() == {"stuck"}
