"""Errors of record batches, one class per error code of a broker.

This module is independent of the protocol. The broker turns ``CorruptBatch`` into CORRUPT_MESSAGE, ``InvalidBatch`` into INVALID_RECORD,
``UnsupportedMagic`` into INVALID_RECORD and ``UnsupportedCodec`` into UNSUPPORTED_COMPRESSION_TYPE.

Faults of a single record are numbered, so that the compiled codec and the plain Python one report the same: both return a fault number and
an index, and ``record_fault`` makes the message.
"""

from collections.abc import Sequence

RecordError = tuple[int, str]


class RecordsError(ValueError):
    """Bytes that are not a valid record batch."""


class CorruptBatch(RecordsError):
    """The length or checksum of a batch does not match its bytes."""


class InvalidBatch(RecordsError):
    """A batch that arrived intact and breaks a rule.

    ``record_errors`` are the invalid records, as (index in the batch, message); empty if the batch as a whole is invalid. Source: KIP-467.
    """

    def __init__(self, reason: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.record_errors = list(record_errors)


class CorruptPayload(InvalidBatch):
    """A compressed payload that cannot be decompressed."""


class PayloadTooLarge(InvalidBatch):
    """A compressed payload whose decompressed size exceeds the limit; refused before the memory is allocated."""


class UnsupportedMagic(RecordsError):
    """A batch in another format than v2. Formats 0 and 1 were removed in Kafka 4.0 (KIP-724)."""

    def __init__(self, magic: int) -> None:
        super().__init__(f"record batch has magic {magic}, only magic 2 is read here")
        self.magic = magic


class UnsupportedCodec(RecordsError):
    """A batch with an undefined codec (5, 6 or 7 in its attributes)."""

    def __init__(self, codec: int) -> None:
        super().__init__(f"record batch names compression codec {codec}, which does not exist")
        self.codec = codec


FAULT_TRUNCATED = 1
FAULT_VARINT = 2
FAULT_LENGTH = 3
FAULT_PAST = 4
FAULT_HEADERS = 5
FAULT_HEADER_KEY = 6
FAULT_UNREAD = 7
FAULT_TIMESTAMP = 8
FAULT_OFFSET_DELTA = 9
FAULT_OFFSET = 10
FAULT_TRAILING = 11
FAULT_COUNT = 12
FAULT_COLUMN = 13
FAULT_TOO_LONG = 14

_SENTENCES = {
    FAULT_TRUNCATED: "record {} ends before its last field",
    FAULT_VARINT: "record {} holds a variable-length number of too many bytes",
    FAULT_LENGTH: "record {} declares a negative length",
    FAULT_PAST: "record {} declares a field longer than the bytes that are left",
    FAULT_HEADERS: "record {} declares an impossible number of headers",
    FAULT_HEADER_KEY: "record {} has a header without a key",
    FAULT_UNREAD: "record {} is longer than its fields",
    FAULT_TIMESTAMP: "the timestamp of record {} does not fit in 64 bits",
    FAULT_OFFSET_DELTA: "the offset delta of record {} is not its place in the batch",
    FAULT_OFFSET: "the offset of record {} does not fit in 64 bits",
    FAULT_TRAILING: "bytes are left over after the last of {} records",
    FAULT_COUNT: "the batch is too short for the {} records it declares",
    FAULT_COLUMN: "row {} of the columns points outside of their data",
    FAULT_TOO_LONG: "record {} does not fit in the 2 GiB a batch can have",
}


def record_fault(fault: int, index: int) -> InvalidBatch:
    """The error of a numbered fault. ``index`` is the record's index in its batch (a count for TRAILING and COUNT)."""
    return InvalidBatch(_SENTENCES[fault].format(index))
