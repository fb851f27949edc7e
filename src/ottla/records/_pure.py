"""The record codec in plain Python. It has the functions and errors of the compiled ``_native``.

It is used where there is no C compiler, and is the readable specification of the compiled codec. Its parts are in ``_pure_read``,
``_pure_build``, ``_pure_columns``, ``_pure_compact`` and ``_pure_open``. A property test compares the two implementations.
"""

from ottla.records._pure_build import Builder, murmur2
from ottla.records._pure_columns import ColumnEncoder, decode_columns, group_rows, partition_column
from ottla.records._pure_compact import OffsetMap, keep_records, map_records, shift_timestamps
from ottla.records._pure_open import OpenBatches
from ottla.records._pure_read import check_records, decode_records, keyless_records, records_outside, schema_frames

__all__ = [
    "Builder",
    "ColumnEncoder",
    "OffsetMap",
    "OpenBatches",
    "check_records",
    "decode_columns",
    "decode_records",
    "group_rows",
    "keep_records",
    "keyless_records",
    "map_records",
    "murmur2",
    "partition_column",
    "records_outside",
    "schema_frames",
    "shift_timestamps",
]
