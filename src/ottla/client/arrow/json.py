"""JSON from and to Arrow columns, with Arrow's compiled functions on whole columns.

Writing makes one JSON text per row. Types without a JSON form are written as

    timestamp, date, time    text in ISO 8601: "2026-11-01T12:00:00.000Z", with Z or an offset if the column has a time zone
    decimal                  text, so that readers do not make a float of it
    duration                 integer in the column's unit
    NaN, infinity            null
    binary                   text, if it is UTF-8; otherwise an error
    map                      object, if its keys are text

Reading parses the texts of a column together. So that an invalid text cannot be combined with its neighbours, each is wrapped:

    {"v":[<text>]}           a row with unbalanced brackets is an error by itself; so is one with something after its value, because the
                             list is then longer, or invalid

If that fails, the invalid rows are found by bisection and left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ottla.client.arrow.columns import binary_column, is_bytes, plain, validity
from ottla.client.arrow.optional import pa, pc
from ottla.client.values.json_depth import DEPTH_MAX, TOO_DEEP, is_deep
from ottla.codecs.compiled import join_json

#: Bytes that must be escaped in a JSON string.
_SPECIAL = bytes([*range(0x20), ord('"'), ord("\\")])
_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
#: Bytes of JSON that are parsed as one block; larger inputs are split for several threads.
_BLOCK_BYTES = 8 * 1024 * 1024


class NotJson(ValueError):
    """A column, or a row of one, that cannot be written as JSON."""


def json_texts(array: pa.Array) -> pa.Array:
    """Each row as JSON, null for null. Raises: NotJson."""
    texts = _texts(array, "")
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, texts.type)) if array.null_count else texts


def _texts(array: Any, name: str) -> Any:
    """Each row as JSON, ``null`` for null."""
    array = plain(array)
    kind, types = array.type, pa.types
    if types.is_null(kind):
        return pa.repeat(pa.scalar("null"), len(array))
    if types.is_floating(kind):
        array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, kind))
        texts = array.cast(pa.float32() if types.is_float16(kind) else kind).cast(pa.string())
    elif types.is_boolean(kind) or types.is_integer(kind):
        texts = array.cast(pa.string())
    elif types.is_duration(kind):
        texts = array.cast(pa.int64()).cast(pa.string())
    elif is_bytes(kind):
        texts = _put_together(array, [(_as_text(array, name), True)]) if join_json is not None else _quoted(_as_text(array, name))
    elif types.is_timestamp(kind):
        texts = pc.utf8_replace_slice(array.cast(pa.string()), 10, 11, "T")
        texts = pc.binary_join_element_wise('"', texts, '"', "")
    elif types.is_date(kind) or types.is_time(kind) or types.is_decimal(kind):
        texts = pc.binary_join_element_wise('"', array.cast(pa.string()), '"', "")
    elif types.is_struct(kind):
        texts = _objects(array, name)
    elif types.is_map(kind):
        texts = _maps(array, name)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        texts = pc.binary_join_element_wise("[", _joined(array, _texts(array.flatten(), name)), "]", "")
    else:
        raise NotJson(f"{_of(name)}JSON has no form for {kind}; cast it")
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _of(name: str) -> str:
    return f"column {name}: " if name else ""


def _as_text(array: Any, name: str) -> Any:
    try:
        if pa.types.is_fixed_size_binary(array.type):
            array = array.cast(pa.binary())
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise NotJson(f"{_of(name)}its bytes are not text, and JSON has no others: {error}") from None


def _quoted(texts: Any) -> Any:
    """Quoted and escaped texts."""
    data = texts.buffers()[2]
    held = b"" if data is None else bytes(data)
    clean = held.translate(None, _SPECIAL)
    if len(clean) != len(held):
        # The backslash first, since the other replacements add some.
        for special in sorted(set(held) & set(_SPECIAL), key=lambda byte: byte != ord("\\")):
            letter = chr(special)
            escaped = "\\" + letter if letter in '"\\' else _SHORT.get(letter, f"\\u{special:04x}")
            texts = pc.replace_substring(texts, letter, escaped)
    return pc.binary_join_element_wise('"', texts, '"', "")


def _objects(array: Any, name: str) -> Any:
    fields = array.type
    if not fields.num_fields:
        return pc.if_else(array.is_valid(), "{}", pa.scalar(None, pa.string()))
    pieces: list[Any] = []
    for index in range(fields.num_fields):
        field, column = fields.field(index), plain(array.field(index))
        begin = ("," if index else "{") + msgspec.json.encode(field.name).decode() + ":"
        whole_name = f"{name}.{field.name}" if name else field.name
        if join_json is None:
            pieces += [begin, _texts(column, whole_name)]
        elif is_bytes(column.type):
            pieces += [begin.encode(), (_as_text(column, whole_name), True)]
        else:
            pieces += [begin.encode(), (_texts(column, whole_name), False)]
    if join_json is not None:
        return _put_together(array, [*pieces, b"}"])
    whole = pc.binary_join_element_wise(*pieces, "}", "")
    return pc.if_else(array.is_valid(), whole, pa.scalar(None, pa.string())) if array.null_count else whole


def _put_together(array: Any, pieces: list[Any]) -> Any:
    """Concatenates the pieces of each row with compiled code; null where ``array`` is null."""
    bits = validity(array)
    given = [piece if isinstance(piece, bytes) else (binary_column(piece[0]), piece[1]) for piece in pieces]
    ends, data = join_json(len(array), given, bits)
    return pa.Array.from_buffers(pa.string(), len(array), [bits, pa.py_buffer(ends), pa.py_buffer(data)])


def _maps(array: Any, name: str) -> Any:
    # As a list of pairs, which handles slices and null maps.
    pairs = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    entries = pairs.flatten()
    keys = plain(entries.field(0))
    if not is_bytes(keys.type):
        raise NotJson(f"{_of(name)}the names of a JSON object are text, and this map's keys are {keys.type}")
    members = pc.binary_join_element_wise(_quoted(_as_text(keys, name)), ":", _texts(entries.field(1), name), "")
    return pc.binary_join_element_wise("{", _joined(pairs, members), "}", "")


def _joined(lists: Any, items: Any) -> Any:
    """The texts of each list's items, separated by commas; null for a null list."""
    sizes = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32())
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes)])
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, items), ",")
    return pc.if_else(lists.is_valid(), joined, pa.scalar(None, pa.string())) if lists.null_count else joined


# ---------------------------------------------------------------------------------------------------------------- reading


class Decoded(NamedTuple):
    """A decoded column, and its unreadable rows: None if there are none."""

    array: Any
    #: Boolean per row.
    bad: Any = None
    #: The problem of the first one.
    why: str = ""


def json_values(texts: pa.Array, kind: pa.DataType | None = None) -> Decoded:
    """JSON texts as values of a type, or of the inferred one; null if the text is null or ``null``, or unreadable.

    With a type, members that it does not have are ignored, and missing ones are null.
    """
    if not len(texts) or texts.null_count == len(texts):
        return Decoded(pa.nulls(len(texts), kind or pa.null()))
    try:
        return Decoded(_parsed(texts, kind))
    except pa.ArrowInvalid as error:
        return _parsed_but(texts, kind, str(error))


def parsed_json(texts: pa.Array, kind: pa.DataType | None, *, more: bool = False) -> pa.Array:
    """Valid JSON texts of one type; with `more`, the type is extended by members of objects that it does not have.

    Raises: ArrowInvalid.
    """
    return _parsed(texts, kind, more=more)


def _parsed(texts: Any, kind: Any, *, more: bool = False) -> Any:
    """Raises: ArrowInvalid."""
    import pyarrow.json

    # Arrow's parser accepts invalid UTF-8; the cast checks it.
    words = texts.cast(pa.string())
    if words.null_count:
        words = pc.fill_null(words, "null")
    brackets = pc.add(pc.count_substring(words, "["), pc.count_substring(words, "{"))
    if any(is_deep(text.encode()) for text in words.filter(pc.greater(brackets, DEPTH_MAX)).to_pylist()):
        raise pa.ArrowInvalid(TOO_DEEP)
    lines = pc.binary_join_element_wise('{"v":[', words, "]}\n", "")
    ends = pa.Array.from_buffers(pa.int32(), 2, [None, lines.buffers()[1]], offset=lines.offset + len(lines) - 1)
    size = ends[1].as_py()
    found = pyarrow.json.read_json(
        pa.BufferReader(lines.buffers()[2].slice(0, size)),
        read_options=pyarrow.json.ReadOptions(block_size=_block_size(lines, size)),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=None if kind is None else pa.schema([("v", pa.list_(kind))]),
            newlines_in_values=True,
            unexpected_field_behavior="infer" if kind is None or more else "ignore",
        ),
    )
    if found.num_rows != len(texts) or found.num_columns != 1:
        raise pa.ArrowInvalid("JSON parse error: a value holds more than one")
    column = found.column("v")
    if not pc.all(pc.equal(pc.list_value_length(column), 1)).as_py():
        raise pa.ArrowInvalid("JSON parse error: there is no value, or more than one")
    values = [chunk.flatten() for chunk in column.chunks]
    return values[0] if len(values) == 1 else pa.concat_arrays(values)


def _block_size(lines: Any, size: int) -> int:
    if size < _BLOCK_BYTES:
        return size + 1
    return max(_BLOCK_BYTES, 2 * int(pc.max(pc.binary_length(lines)).as_py()))


def _parsed_but(texts: Any, kind: Any, why: str) -> Decoded:
    """`json_values` with unreadable texts."""
    bad = [_reason(text) for text in texts.to_pylist()]
    mask = pa.array([reason is not None for reason in bad])
    sound = pc.if_else(mask, pa.scalar(None, texts.type), texts)
    first = next((reason for reason in bad if reason is not None), why)
    if kind is None:
        kind = _shown_type(sound)
    try:
        return Decoded(_parsed(sound, kind), mask, first)
    except pa.ArrowInvalid as error:
        # Valid JSON of another type, or that Arrow parses more strictly.
        first = first if pc.any(mask).as_py() else str(error)
    found: list[int] = []
    _search(sound, kind, 0, len(sound), found)
    places = set(found)
    mask = pa.array([reason is not None or row in places for row, reason in enumerate(bad)])
    return Decoded(_parsed(pc.if_else(mask, pa.scalar(None, texts.type), texts), kind), mask, first)


def _reason(text: bytes | None) -> str | None:
    """The problem of a text; None without one."""
    if text is None:
        return None
    try:
        text.decode()
        if is_deep(text):
            return TOO_DEEP
        msgspec.json.decode(text, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.MsgspecError) as error:
        return str(error)
    return None


def _shown_type(texts: Any) -> Any:
    """The type of the longest prefix of rows that have one type."""
    rows = len(texts)
    while rows:
        try:
            return _parsed(texts.slice(0, rows), None).type
        except pa.ArrowInvalid:
            rows //= 2
    return pa.null()


def _search(texts: Any, kind: Any, first: int, last: int, found: list[int]) -> None:
    """The unreadable rows in ``[first, last)``, by bisection."""
    try:
        _parsed(texts.slice(first, last - first), kind)
    except pa.ArrowInvalid:
        if last - first == 1:
            found.append(first)
            return
        middle = (first + last) // 2
        _search(texts, kind, first, middle, found)
        _search(texts, kind, middle, last, found)
