"""Batches of kafka-python and aiokafka are read here, and ours by them."""

from typing import Any

import pytest
from aiokafka.record import _crecords as aiokafka_compiled
from aiokafka.record import default_records as aiokafka_records
from kafka.record import default_records as kafka_python
from record_samples import a_batch, as_read, some_records

from ottla.records.batch import crc_ok, parse_header
from ottla.records.compression import Codec
from ottla.records.read import records
from ottla.records.validation import examine_batch

WRITERS = {
    "kafka-python": kafka_python.DefaultRecordBatchBuilder,
    "aiokafka": aiokafka_compiled.DefaultRecordBatchBuilder,
    "aiokafka in Python": aiokafka_records._DefaultRecordBatchBuilderPy,
}
READERS = {
    "kafka-python": kafka_python.DefaultRecordBatch,
    "aiokafka": aiokafka_compiled.DefaultRecordBatch,
    "aiokafka in Python": aiokafka_records._DefaultRecordBatchPy,
}
SENT = [(t, k, v, [(name, content or b"") for name, content in h]) for t, k, v, h in some_records(60)]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("peer", WRITERS)
def test_batches_of_peers_are_read_and_pass_as_a_clients(peer: str, codec: Codec) -> None:
    builder = WRITERS[peer](
        magic=2,
        compression_type=int(codec),
        is_transactional=True,
        producer_id=123456,
        producer_epoch=2,
        base_sequence=77,
        batch_size=999_999,
    )
    for place, (timestamp, key, value, headers) in enumerate(SENT):
        assert builder.append(place, timestamp, key, value, headers)
    batch = bytes(builder.build())
    header = examine_batch(batch, max_decompressed=1 << 20).header
    assert crc_ok(batch)
    assert records(batch) == as_read(SENT)
    assert (header.codec, header.producer_id, header.producer_epoch, header.base_sequence) == (codec, 123456, 2, 77)
    assert header.is_transactional
    assert header.max_timestamp == max(record[0] for record in SENT)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("peer", READERS)
def test_our_batches_are_read_by_peers(peer: str, codec: Codec) -> None:
    batch: Any = a_batch(60, codec=codec, base_offset=5, producer_id=9, producer_epoch=1, base_sequence=3)
    reader = READERS[peer](bytearray(batch) if "Python" in peer else bytes(batch))
    assert reader.validate_crc()
    found = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in reader]
    assert found == as_read(some_records(60), 5)
    assert (reader.producer_id, reader.producer_epoch, reader.base_sequence) == (9, 1, 3)
    assert reader.max_timestamp == parse_header(batch).max_timestamp
