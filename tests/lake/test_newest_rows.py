"""What a backfill changes in a table with one row for each key."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("deltalake")

import pyarrow as pa

from ottla.base.ids import TopicPartition
from ottla.lake.table.newest_rows import Changes, NewestRows, UnorderedKeys, newest_of_each_key
from ottla.lake.table.record_ranges import RecordRanges

SCHEMA = pa.schema([("k", pa.string()), ("m", pa.int64()), ("_partition", pa.int32()), ("_offset", pa.int64())])
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
Row = tuple[str | None, int, int | None, int | None]


def rows(*found: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], SCHEMA)


def changes(
    table: Sequence[Row], new: Sequence[Row], cuts: dict[TopicPartition, tuple[int, int]], *, earlier: Sequence[Row] = ()
) -> Changes:
    records = RecordRanges({tp: cut for tp, cut in cuts.items() if cut[0] < cut[1]}, several_topics=False)

    def found(keys: pa.Table) -> pa.Table:
        wanted = keys.column("k").to_pylist()
        return rows(*[row for row in earlier if row[0] in wanted])

    newest = NewestRows(("k",), records, cuts, newest_of_each_key(rows(*new), ("k",), records), found)
    return newest.changes(newest.concerned(rows(*table).select(newest.columns)))


def as_rows(table: pa.Table) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in table.to_pylist()}


def test_rows_of_the_range_are_replaced_and_rows_of_later_records_stay() -> None:
    table = [("in", 1, 0, 5), (None, 1, 0, 6), ("later", 1, 0, 9), ("before", 1, 0, 2), ("other", 1, 0, 3)]
    new = [("in", 10, 0, 5), (None, 10, 0, 6), ("later", 10, 0, 7), ("before", 10, 0, 7), ("new", 10, 0, 8)]
    found = changes(table, new, {P0: (4, 9)})
    assert as_rows(found.rows) == {row for row in new if row[0] != "later"}
    assert (found.removed.num_rows, found.superseded, found.restored) == (0, 1, 0)


def test_a_key_without_a_row_in_the_range_has_the_newest_earlier_row_again_or_none() -> None:
    table = [("restored", 1, 0, 5), ("gone", 1, 0, 6), (None, 1, 0, 7)]
    found = changes(table, [], {P0: (4, 9)}, earlier=[("restored", 8, 0, 1), ("restored", 9, 0, 2), ("never asked for", 9, 0, 3)])
    assert as_rows(found.rows) == {("restored", 9, 0, 2)} and found.restored == 1
    assert set(found.removed.column("k").to_pylist()) == {"gone", None}
    assert found.keys.num_rows == 3


def test_the_range_orders_records_of_several_partitions() -> None:
    cuts = {P0: (4, 9), P1: (3, 3)}
    assert changes([("a", 1, 1, 2)], [("a", 2, 0, 5)], cuts).superseded == 0
    assert changes([("a", 1, 1, 3)], [("a", 2, 0, 5)], cuts).superseded == 1


@pytest.mark.parametrize("position", [(2, 5), (None, 5), (0, None)])
def test_a_row_of_the_same_key_without_a_known_position_is_refused(position: tuple[int | None, int | None]) -> None:
    with pytest.raises(UnorderedKeys, match="k = 'a' whose record has no known position"):
        changes([("a", 1, *position)], [("a", 2, 0, 5)], {P0: (4, 9), P1: (3, 3)})
    assert changes([("b", 1, *position)], [("a", 2, 0, 5)], {P0: (4, 9)}).rows.num_rows == 1


def test_the_newest_record_of_a_key_has_the_highest_offset_and_no_order_is_refused() -> None:
    cuts = {P0: (0, 9), P1: (0, 9)}
    assert as_rows(changes([], [("a", 1, 0, 3), ("a", 2, 0, 7), ("a", 3, 0, 5)], cuts).rows) == {("a", 2, 0, 7)}
    with pytest.raises(UnorderedKeys, match="2 partitions have records with k = 'a'"):
        changes([], [("a", 1, 0, 3), ("a", 2, 1, 7)], cuts)
    with pytest.raises(UnorderedKeys, match="one record has 2 rows with k = None"):
        changes([], [(None, 1, 0, 3), (None, 2, 0, 3)], cuts)


def test_partitions_of_several_topics_are_told_apart() -> None:
    schema = pa.schema([*SCHEMA, ("_topic", pa.string())])

    def of(*found: tuple[str, int, int, int, str]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in found], schema)

    cuts = {TopicPartition("t", 0): (4, 9), TopicPartition("u", 0): (0, 2)}
    records = RecordRanges(cuts, several_topics=True)
    new = of(("a", 10, 0, 5, "t"), ("b", 10, 0, 1, "u"))
    newest = NewestRows(("k",), records, cuts, newest_of_each_key(new, ("k",), records), lambda keys: of())
    # Offset 3 is behind the range in one topic, and before it in the other; offset 1 is in the range of one of them.
    there = of(("a", 1, 0, 3, "u"), ("b", 1, 0, 3, "t"), ("c", 1, 0, 1, "t"), ("d", 1, 0, 1, "u"))
    found = newest.changes(newest.concerned(there.select(newest.columns)))
    assert [row["k"] for row in found.rows.to_pylist()] == ["b"] and found.superseded == 1
    assert found.removed.to_pylist() == [{"k": "d"}]
    with pytest.raises(UnorderedKeys, match="2 partitions have records with k = 'a'"):
        newest_of_each_key(of(("a", 1, 0, 5, "t"), ("a", 2, 0, 1, "u")), ("k",), records)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.booleans(), st.booleans()), max_size=24),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_the_table_becomes_what_the_new_steps_would_have_made_of_the_range(
    records: list[tuple[str | None, bool, bool]], limits: tuple[int, int]
) -> None:
    """Each record has a key, and whether the old and the new steps make a row of it. A key is in one partition."""
    start, end = sorted(limits)
    logs: dict[int, list[tuple[str | None, bool, bool]]] = {0: [], 1: []}
    for record in records:
        logs[0 if record[0] in ("a", "b") else 1].append(record)
    numbered = [(partition, offset, *record) for partition, log in logs.items() for offset, record in enumerate(log)]
    old = {key: (key, 1, partition, offset) for partition, offset, key, made, _ in numbered if made}
    new = [(key, 2, partition, offset) for partition, offset, key, _, made in numbered if made and start <= offset < end]
    earlier = [(key, 2, partition, offset) for partition, offset, key, _, made in numbered if made and offset < start]
    cuts = {TopicPartition("t", partition): (min(start, len(log)), min(end, len(log))) for partition, log in logs.items()}
    found = changes(list(old.values()), new, cuts, earlier=earlier)
    after = {**old, **{row[0]: row for row in as_rows(found.rows)}}
    for key in found.removed.column("k").to_pylist():
        del after[key]
    expected = dict(old)
    for key, row in old.items():
        if start <= row[3] < end:
            # What the old row of the range has overwritten is computed again.
            before = [one for one in earlier if one[0] == key]
            expected.pop(key)
            expected.update({key: before[-1]} if before else {})
    for row in new:
        if row[0] not in old or old[row[0]][3] < end:
            expected[row[0]] = row
    assert after == expected
    assert changes(list(after.values()), new, cuts, earlier=earlier).keys.num_rows <= len(new)
