"""The loops over records: compiled if the package was built with a C compiler, otherwise in plain Python.

All other modules work on whole batches and import the loops from here. ``NATIVE`` tells which ones are used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.records import _pure as _codec

    NATIVE: bool
else:
    try:
        from ottla.records import _native as _codec

        NATIVE = True
    except ImportError:
        import warnings

        from ottla.records import _pure as _codec

        NATIVE = False
        warnings.warn(
            "ottla was installed without its compiled record codec, so records are read and written many times slower; "
            "install a C compiler and run pip install --force-reinstall --no-binary ottla ottla",
            RuntimeWarning,
            stacklevel=2,
        )

Builder = _codec.Builder
ColumnEncoder = _codec.ColumnEncoder
OffsetMap = _codec.OffsetMap
OpenBatches = _codec.OpenBatches
check_records = _codec.check_records
decode_columns = _codec.decode_columns
decode_records = _codec.decode_records
group_rows = _codec.group_rows
keep_records = _codec.keep_records
keyless_records = _codec.keyless_records
map_records = _codec.map_records
murmur2 = _codec.murmur2
partition_column = _codec.partition_column
records_outside = _codec.records_outside
schema_frames = _codec.schema_frames
shift_timestamps = _codec.shift_timestamps
