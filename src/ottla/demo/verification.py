"""The four counts that must agree.

acknowledged    the producer: records acknowledged with acks=all
in the log      the brokers: end minus beginning of each partition
in the table    the Delta table: sum of the column records over all rows
in the results  the result topic: the same sum over the last value of each key
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla import Consumer


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """The counts, in records."""

    acknowledged: int
    in_log: int
    in_table: int
    in_results: int

    @property
    def agree(self) -> bool:
        """Whether there are records and each was counted once."""
        return 0 < self.acknowledged == self.in_log == self.in_table == self.in_results

    def rows(self) -> list[tuple[str, int]]:
        return [
            ("acknowledged to the producer", self.acknowledged),
            ("in the topic's logs", self.in_log),
            ("counted in the Delta table", self.in_table),
            ("counted in the result topic", self.in_results),
        ]


def count_records(bootstrap: str, *, acknowledged: int, topic: str, result_topic: str, table: Path) -> RecordCounts:
    """Counts the records. Feed and pipeline must have ended. Raises: KafkaError."""
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic)
        ends, beginnings = consumer.end_offsets(partitions), consumer.beginning_offsets(partitions)
        in_log = sum(ends[tp] - beginnings[tp] for tp in partitions)
        newest = _newest_values(consumer, result_topic)
    rows = read_table(table)
    in_table = sum(rows.column("records").to_pylist())
    return RecordCounts(acknowledged, in_log, in_table, sum(json.loads(value)["records"] for value in newest.values()))


def read_table(path: Path) -> Any:
    """The Delta table as Arrow.

    Not with ``to_pyarrow_table``: Arrow's threads would read through a file system in Python, and a thread that still runs at the
    interpreter's exit crashes the process.
    """
    import pyarrow
    from deltalake import DeltaTable, QueryBuilder

    return pyarrow.table(QueryBuilder().register("t", DeltaTable(str(path))).execute("SELECT * FROM t"))


def _newest_values(consumer: Consumer, topic: str) -> dict[bytes | None, bytes]:
    """The last value of each key. All records of a key are in one partition, so in order."""
    partitions = consumer.partitions_for(topic)
    ends = consumer.end_offsets(partitions)
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    newest: dict[bytes | None, bytes] = {}
    while any(consumer.position(tp) < end for tp, end in ends.items()):
        for record in consumer.poll(timeout_ms=1000, max_records=10_000):
            newest[record.key] = record.value
    return newest
