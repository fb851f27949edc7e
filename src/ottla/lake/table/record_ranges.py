"""The rows of a table that ranges of records have made: those with these offsets in `_partition` and `_offset`, and in `_topic`.

One set of ranges has three forms: SQL for Delta tables, a mask of Arrow for rows that were read, and the limits of each partition.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ottla.base.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class RecordRanges:
    """Ranges of records, and the columns that have their positions."""

    #: Offsets by partition; half-open, not empty.
    offsets: Mapping[TopicPartition, tuple[int, int]]
    #: Whether `_topic` is needed: the records are of several topics.
    several_topics: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return ("_partition", "_offset", "_topic") if self.several_topics else ("_partition", "_offset")

    @property
    def sql(self) -> str:
        def one(tp: TopicPartition) -> str:
            topic = f"_topic = '{tp.topic}' AND " if self.several_topics else ""
            return f"({topic}_partition = {tp.partition} AND _offset >= {self.offsets[tp][0]} AND _offset < {self.offsets[tp][1]})"

        return " OR ".join(map(one, sorted(self.offsets)))

    def mask(self, rows: pa.Table) -> "pa.ChunkedArray":
        """Whether each row is of these records. A row without a position is not. Raises: ArrowInvalid if a column is no number."""
        partition, offset = (rows.column(name).cast(pa.int64()) for name in ("_partition", "_offset"))
        found = pa.chunked_array([pa.repeat(pa.scalar(False), len(rows))])
        for tp, (start, end) in self.offsets.items():
            one = pc.and_(pc.equal(partition, tp.partition), pc.and_(pc.greater_equal(offset, start), pc.less(offset, end)))
            found = pc.or_(found, pc.and_(one, pc.equal(rows.column("_topic"), tp.topic)) if self.several_topics else one)
        return pc.fill_null(found, False)

    def others(self, rows: pa.Table) -> pa.Table:
        """The rows of other records."""
        return rows.filter(pc.invert(self.mask(rows)))
