"""The four counts that must agree, and how they are taken.

acknowledged    the producer: records whose delivery was confirmed with acks=all
in the log      the brokers: end minus beginning of each partition
in the table    the Delta table: sum of the column records over all rows
in the results  the result topic: the same sum over the newest value of each key
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla import Consumer


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts, in records."""

    acknowledged: int
    in_log: int
    in_table: int
    in_results: int

    @property
    def even(self) -> bool:
        """Whether every record was counted once, and there were any."""
        return 0 < self.acknowledged == self.in_log == self.in_table == self.in_results

    def rows(self) -> list[tuple[str, int]]:
        return [
            ("acknowledged to the producer", self.acknowledged),
            ("in the topic's logs", self.in_log),
            ("counted in the Delta table", self.in_table),
            ("counted in the result topic", self.in_results),
        ]


def verdict(bootstrap: str, *, acknowledged: int, topic: str, result_topic: str, table: Path) -> Verdict:
    """Takes the counts. Everything must have come to rest. Raises: KafkaError."""
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic)
        ends, beginnings = consumer.end_offsets(partitions), consumer.beginning_offsets(partitions)
        in_log = sum(ends[tp] - beginnings[tp] for tp in partitions)
        newest = _newest_values(consumer, result_topic)
    rows = read_table(table)
    in_table = sum(rows.column("records").to_pylist())
    return Verdict(acknowledged, in_log, in_table, sum(json.loads(value)["records"] for value in newest.values()))


def read_table(path: Path) -> Any:
    """The Delta table as Arrow.

    Not with ``to_pyarrow_table``: Arrow's threads then read through a file system written in Python, and one that is still at it when the
    interpreter ends brings the process down, after all is said and done.
    """
    import pyarrow
    from deltalake import DeltaTable, QueryBuilder

    return pyarrow.table(QueryBuilder().register("t", DeltaTable(str(path))).execute("SELECT * FROM t"))


def _newest_values(consumer: Consumer, topic: str) -> dict[bytes | None, bytes]:
    """The last value of each key; a key is always in the same partition, so order holds."""
    partitions = consumer.partitions_for(topic)
    ends = consumer.end_offsets(partitions)
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    newest: dict[bytes | None, bytes] = {}
    while any(consumer.position(tp) < end for tp, end in ends.items()):
        for record in consumer.poll(timeout_ms=1000, max_records=10_000):
            newest[record.key] = record.value
    return newest
