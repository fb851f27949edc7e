"""Compiled loops of the value codecs; None where the package was installed without a C compiler, and callers convert value by value."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _native: Any
else:
    try:
        from ottla.codecs import _native
    except ImportError:
        _native = None

#: Binary Avro values into columns, and columns into binary Avro values.
decode_avro: Any = getattr(_native, "decode_avro", None)
encode_avro: Any = getattr(_native, "encode_avro", None)
#: Rows of JSON objects, concatenated from the texts of their members.
join_json: Any = getattr(_native, "join_json", None)
