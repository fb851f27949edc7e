"""Values with the frame of a schema registry: each is read with the schema of its own frame and mapped to the query's columns by name.

A frame is a zero byte and the schema's id in four bytes, big-endian. A missing field is null, and numbers widen. A value is malformed, and
does not fail the query by itself, if

    the registry does not have its schema
    its schema gives no columns
    its fields do not fit the query's columns
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.arrow.json import Decoded
from ottla.client.schema_registry import RegisteredSchema, Registry, RegistryFailed, SchemaNotFound
from ottla.client.values.framed import FRAME_BYTES, MAGIC
from ottla.lake.casts import fitted
from ottla.spark.source.options import ValueOptions

#: Decodes the values of one schema, frames included.
Decode = Callable[[Any], Decoded]


def framed_values(raw: Any, target: Any, decoder: Callable[[int], Decode | None]) -> Decoded:
    """Decodes framed values to structs of type `target`.

    `decoder`: the decoding of a schema's values by its id; None if the registry lacks the id or its schema gives no columns.
    """
    heads = pc.binary_slice(raw, 0, FRAME_BYTES)
    places, parts = [], []
    for head in pc.unique(heads).to_pylist():
        framed = head is not None and len(head) == FRAME_BYTES and head[0] == MAGIC
        decode = decoder(int.from_bytes(head[1:], "big")) if framed else None
        if decode is None:
            continue
        where = pc.indices_nonzero(pc.fill_null(pc.equal(heads, pa.scalar(head, pa.binary())), False))
        places.append(where)
        parts.append(_shaped(decode(raw.take(where)), target))
    if len(parts) == 1 and len(places[0]) == len(raw):
        return parts[0]
    order = pc.index_in(pa.array(range(len(raw)), pa.uint64()), pa.concat_arrays(places) if places else pa.array([], pa.uint64()))
    array = pa.concat_arrays([found.array for found in parts]).take(order) if parts else pa.nulls(len(raw), target)
    unread = pc.and_(raw.is_valid(), order.is_null())
    flags = [_none(len(found.array)) if found.bad is None else found.bad for found in parts]
    bad = pc.or_(unread, pc.fill_null(pa.concat_arrays(flags).take(order), False)) if flags else unread
    return Decoded(
        array, bad if pc.any(bad).as_py() else None, "it has no frame with a schema of the registry, or does not fit the columns' types"
    )


def _shaped(found: Decoded, target: Any) -> Decoded:
    """Converts values of one schema to structs of type `target`; values that do not fit are bad."""
    array, misfits = _fitted_rows(found.array, target)
    if misfits is None:
        return Decoded(array, found.bad, found.why)
    misfits = pc.and_(misfits, found.array.is_valid())
    return Decoded(array, misfits if found.bad is None else pc.or_(misfits, found.bad), "a field does not have its column's type")


def _fitted_rows(array: Any, target: Any) -> tuple[Any, Any]:
    """Like `fitted`, with flags of rows that do not fit; these are null (None: all fit)."""
    if _goes_into(array.type, target):
        try:
            return fitted(array, target), None
        except pa.ArrowNotImplementedError:
            pass
        except pa.ArrowInvalid:
            if len(array) > 1:
                # Few values are too large for their column; bisection finds them without a check of each.
                middle = len(array) // 2
                halves = [_fitted_rows(array.slice(0, middle), target), _fitted_rows(array.slice(middle), target)]
                flags = [_none(len(half)) if misfits is None else misfits for half, misfits in halves]
                return pa.concat_arrays([half for half, _ in halves]), pa.concat_arrays(flags)
    return pa.nulls(len(array), target), pa.repeat(pa.scalar(True), len(array))


def _goes_into(has: Any, target: Any) -> bool:
    """Whether values of one type may be cast to another: text is never cast to a number or a time."""
    types = pa.types
    if types.is_struct(has) and types.is_struct(target):
        return all(_goes_into(has.field(one.name).type, one.type) for one in target if has.get_field_index(one.name) >= 0)
    if types.is_list(has) and types.is_list(target):
        return _goes_into(has.value_type, target.value_type)
    if types.is_nested(has) or types.is_nested(target):
        return bool(types.is_map(has) and types.is_map(target))
    return bool(types.is_string(target) or types.is_binary(target)) or not (types.is_string(has) or types.is_binary(has))


def _none(count: int) -> Any:
    return pa.repeat(pa.scalar(False), count)


def subject_of(options: ValueOptions, topics: tuple[str, ...]) -> str:
    """Raises: ValueError if several topics are read and no subject is named."""
    if options.subject is None and len(topics) != 1:
        raise ValueError(
            f"several topics may have several schemas: name the registry's subject with valueSubject{_or_schema(options.format)}"
        )
    return options.subject or f"{topics[0]}-value"


def _or_schema(form: str) -> str:
    """The other way to have columns; Protobuf has none with a registry."""
    return "" if form == "protobuf" else ", or set valueSchema"


def newest_schema(url: str, subject: str, kind: str, name: str) -> RegisteredSchema:
    """The newest schema of a subject, of the type `kind`, which is called `name` in errors. Raises: RegistryFailed; ValueError for an
    invalid URL.
    """
    try:
        found = Registry(url).newest(subject)
    except SchemaNotFound:
        other = f"name another with valueSubject{_or_schema(name.lower())}"
        raise RegistryFailed(f"the schema registry has no subject {subject}; {other}") from None
    if found.type != kind:
        raise RegistryFailed(f"subject {subject} of the registry is {found.type}, not {name}")
    return found
