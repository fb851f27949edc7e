"""What a backfill changes in a table that is merged by keys (`backfill`). Pure computation on Arrow tables.

Such a table has one row for each key, that of the newest record with the key. The range of a backfill cuts each partition at the same two
times, so it also orders records of different partitions: those before the range, in it, and behind it.

    row of the table      new row of its key    change
    behind the range      any                   none: a later record has the key
    in the range          one                   replaced
    in the range          none                  the row of the newest earlier record is restored; without one, the row is removed
    before the range      one                   replaced: a record of the range is newer
    (no row)              one                   added

In the range, the newest record of a key is the one with the highest offset. Records of several partitions have no order there, and such a
key is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ottla.base.ids import TopicPartition
from ottla.lake.table.keys import having, pairs
from ottla.lake.table.record_ranges import RecordRanges


class UnorderedKeys(ValueError):
    """Records with the same key of which none is the newest."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a table."""

    #: Complete rows: each replaces the row of its key, or is added.
    rows: pa.Table
    #: The keys whose rows are removed.
    removed: pa.Table
    #: New rows that are not written, because a later record has their key.
    superseded: int = 0
    #: Those of `rows` that earlier records have made.
    restored: int = 0

    @property
    def keys(self) -> pa.Table:
        """All keys whose rows change."""
        return pa.concat_tables([self.rows.select(self.removed.column_names), self.removed])


@dataclass(frozen=True, slots=True)
class NewestRows:
    """The new rows of a range, one of each key."""

    keys: Sequence[str]
    records: RecordRanges
    #: The range of every partition that the query has read; half-open, also empty ones.
    cuts: Mapping[TopicPartition, tuple[int, int]]
    rows: pa.Table
    #: Computes the rows that earlier records have made for some keys: none, one, or several of a key.
    earlier: Callable[[pa.Table], pa.Table]

    @property
    def columns(self) -> list[str]:
        """The columns of a row of the table that `changes` needs: keys and positions."""
        return list(dict.fromkeys([*self.keys, *self.records.columns]))

    def concerned(self, there: pa.Table) -> pa.Table:
        """Those rows of the table that `changes` needs."""
        return there.filter(pc.or_(self.records.mask(there), having(there, self.rows, self.keys)))

    def changes(self, there: pa.Table) -> Changes:
        """The changes of a table with these rows. Raises: UnorderedKeys."""
        later, unknown = self._later(there)
        of_new, of_there = pairs(self.rows, there, self.keys)
        if (lost := there.filter(unknown).filter(having(there.filter(unknown), self.rows, self.keys))).num_rows:
            raise UnorderedKeys(f"the table has a row with {_shown(lost, self.keys)} whose record has no known position")
        superseded = pc.unique(of_new.filter(later.take(of_there)))
        written = self.rows.filter(pc.invert(pc.is_in(pa.array(range(len(self.rows)), pa.int64()), value_set=superseded)))
        in_range = there.filter(self.records.mask(there)).select(list(self.keys))
        stale = in_range.filter(having(in_range, self.rows, self.keys, matched=False)).group_by(list(self.keys)).aggregate([])
        restored = newest_of_each_key(self.earlier(stale), self.keys, self.records) if stale.num_rows else self.rows.slice(0, 0)
        gone = stale.filter(having(stale, restored, self.keys, matched=False))
        return Changes(pa.concat_tables([written, restored]), gone, superseded=len(superseded), restored=restored.num_rows)

    def _later(self, there: pa.Table) -> tuple["pa.ChunkedArray", "pa.ChunkedArray"]:
        """Whether each row is of a record behind the range, and whether that is not known."""
        partition, offset = (there.column(name).cast(pa.int64()) for name in ("_partition", "_offset"))
        later = known = pa.chunked_array([pa.repeat(pa.scalar(False), len(there))])
        for tp, (_, end) in self.cuts.items():
            of = pc.equal(partition, tp.partition)
            if self.records.several_topics:
                of = pc.and_(of, pc.equal(there.column("_topic"), tp.topic))
            of = pc.and_(pc.fill_null(of, False), pc.is_valid(offset))
            known = pc.or_(known, of)
            later = pc.or_(later, pc.and_(of, pc.fill_null(pc.greater_equal(offset, end), False)))
        return later, pc.invert(known)


def newest_of_each_key(rows: pa.Table, keys: Sequence[str], records: RecordRanges) -> pa.Table:
    """The row of each key with the highest offset. Raises: UnorderedKeys for a key with records of several partitions, or twice in one."""
    partition = [name for name in records.columns if name != "_offset"]
    several = rows.group_by(list(dict.fromkeys([*keys, *partition]))).aggregate([]).group_by(list(keys)).aggregate([([], "count_all")])
    if (found := several.filter(pc.greater(several.column("count_all"), 1))).num_rows:
        problem = f"{found.column('count_all')[0].as_py()} partitions have records with {_shown(found, keys)}, which have no order"
        raise UnorderedKeys(f"{problem}; give the records of a key one partition, or fill smaller ranges")
    repeated = rows.group_by(list(dict.fromkeys([*keys, "_offset"]))).aggregate([([], "count_all")])
    if (found := repeated.filter(pc.greater(repeated.column("count_all"), 1))).num_rows:
        raise UnorderedKeys(f"one record has {found.column('count_all')[0].as_py()} rows with {_shown(found, keys)}")
    ordered = rows.sort_by("_offset")
    numbered = ordered.select(list(keys)).append_column("\0row", pa.array(range(len(rows)), pa.int64()))
    return ordered.take(numbered.group_by(list(keys)).aggregate([("\0row", "max")]).column("\0row_max"))


def _shown(rows: pa.Table, keys: Sequence[str]) -> str:
    row = rows.slice(0, 1).to_pylist()[0]
    return ", ".join(f"{key} = {row[key]!r}" for key in keys)
