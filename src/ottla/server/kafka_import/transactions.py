"""Transactional ids in the logs of ``__transaction_state``: the newest record of each counts, as when a coordinator loads.

Ottla's coordinator reads the same records. It writes the markers of decided transactions at its first start. Open ones are ended by
their producer, or aborted after their timeout. A transaction that is open in a partition although no transactional id has it is *hanging*:
nothing ends it, so consumers at read_committed stop before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ottla.base.ids import TopicPartition
from ottla.broker.transactions.records import TransactionLogValue, decode_record
from ottla.broker.transactions.states import STATES, TransactionState
from ottla.records.read import records
from ottla.server.kafka_import.kafka_metadata import CannotImport
from ottla.server.kafka_import.source import SourceLog
from ottla.wire.declare import MalformedMessage

TOPIC = "__transaction_state"


@dataclass(slots=True)
class TransactionRecords:
    """The newest state of each transactional id."""

    values: dict[str, TransactionLogValue] = field(default_factory=dict)

    @property
    def ongoing(self) -> int:
        """Transactions that their producer ends, or that time out."""
        return self._count(lambda state: state is TransactionState.ONGOING)

    @property
    def decided(self) -> int:
        """Transactions whose markers are written at the first start."""
        return self._count(lambda state: state.decided)

    def _count(self, counts: Callable[[TransactionState], bool]) -> int:
        return sum(1 for value in self.values.values() if counts(STATES[value.transaction_status]))

    def not_ended(self) -> set[tuple[int, TopicPartition]]:
        """Producer id and partition of every transaction that the coordinator will end."""
        return {
            (value.producer_id, TopicPartition(topic.topic, number))
            for value in self.values.values()
            if not STATES[value.transaction_status].idle
            for topic in value.transaction_partitions or ()
            for number in topic.partition_ids
        }


def read_transactions(logs: Iterable[SourceLog]) -> TransactionRecords:
    """Reads the logs of all partitions, one replica of each. Raises: CannotImport, OSError."""
    found = TransactionRecords()
    for log in logs:
        for base in log.bases:
            for _, header, batch in log.batches(base):
                if header.is_control:
                    continue
                for offset, _, key, value, _ in records(batch):
                    if key is not None:
                        _take(found, log, offset, key, value)
    return found


def _take(found: TransactionRecords, log: SourceLog, offset: int, key: bytes, value: bytes | None) -> None:
    try:
        read = decode_record(key, value)
    except MalformedMessage as error:
        raise CannotImport(f"{log.path}: the record at offset {offset} cannot be read: {error}") from None
    if read is None:
        return
    transactional_id, state = read[0].transactional_id, read[1]
    if state is None:
        found.values.pop(transactional_id, None)
        return
    if not 0 <= state.transaction_status < len(STATES):
        raise CannotImport(f"{log.path}: the record at offset {offset} has the unknown state {state.transaction_status}")
    found.values[transactional_id] = state
