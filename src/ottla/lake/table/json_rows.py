"""JSON into known and inferred columns: no readable value is lost, and known columns keep their types.

Arrow parses a batch at once and fails as a whole. Then a decoder for the known columns checks each text, and those that do not fit are left
out. If the others disagree about the type of a new field, the batch is halved, and the types of the first half are known in the second.
"""

from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.arrow.json import Decoded, parsed_json
from ottla.client.values.json_depth import TOO_DEEP, is_deep


def json_rows(texts: pa.Array, known: pa.StructType, *, widens: bool = False) -> Decoded:
    """Objects as a struct of the known and inferred fields; null, and unreadable, if a text is not an object that fits.

    `widens`: known integers become double if some have fractions.
    """
    if texts.null_count == len(texts):
        return Decoded(pa.nulls(len(texts), known))
    try:
        return _parsed(texts, known)
    except pa.ArrowInvalid as error:
        return _sorted_out(texts, known, str(error), widens=widens)


def _parsed(texts: Any, known: Any) -> Decoded:
    """Raises: ArrowInvalid."""
    found = parsed_json(texts, known, more=True)
    if not pa.types.is_struct(found.type):
        raise pa.ArrowInvalid("values are no objects")
    wanted = solid(found.type) or pa.struct([])
    if wanted != found.type:
        found = parsed_json(texts, wanted) if wanted.num_fields else pa.nulls(len(texts), wanted)
    return Decoded(found)


def _sorted_out(texts: Any, known: Any, why: str, *, widens: bool) -> Decoded:
    reasons = _reasons(texts, known)
    mask = pa.array([reason is not None for reason in reasons])
    first = next((reason for reason in reasons if reason is not None), why)
    if widens and (wide := _wider(texts.filter(mask), known)) != known:
        return json_rows(texts, wide)
    sound = pc.if_else(mask, pa.scalar(None, texts.type), texts)
    try:
        found = _parsed(sound, known).array if sound.null_count < len(sound) else pa.nulls(len(texts), known)
        return Decoded(found, mask, first)
    except pa.ArrowInvalid as error:
        if len(texts) == 1:
            return Decoded(pa.nulls(1, known), pa.array([True]), str(error))
    half = len(texts) // 2
    left = json_rows(sound.slice(0, half), known, widens=widens)
    right = json_rows(sound.slice(half), left.array.type, widens=widens)
    return _joined(sound, half, left, right, mask, first)


def _joined(sound: Any, half: int, left: Decoded, right: Decoded, mask: Any, why: str) -> Decoded:
    array = left.array
    if array.type != right.array.type:
        texts = sound.slice(0, half)
        texts = texts if left.bad is None else pc.if_else(left.bad, pa.scalar(None, texts.type), texts)
        kind = right.array.type
        array = parsed_json(texts, kind) if texts.null_count < len(texts) and kind.num_fields else pa.nulls(half, kind)
    bad = [pa.repeat(pa.scalar(False), len(one.array)) if one.bad is None else one.bad for one in (left, right)]
    return Decoded(pa.concat_arrays([array, right.array]), pc.or_(mask, pa.concat_arrays(bad)), why or left.why or right.why)


def _reasons(texts: Any, known: Any) -> list[str | None]:
    """Why each text is not an object with the known fields; None if it is."""
    decode = msgspec.json.Decoder(_fit(known)).decode
    found: list[str | None] = []
    for text in texts.to_pylist():
        try:
            if text is not None:
                text.decode()
                if is_deep(text):
                    found.append(TOO_DEEP)
                    continue
                decode(text)
            found.append(None)
        except (UnicodeDecodeError, msgspec.MsgspecError) as error:
            found.append(str(error))
    return found


def _fit(kind: Any) -> Any:
    """The type in msgspec's terms, as far as it has one."""
    types = pa.types
    if types.is_boolean(kind):
        return bool
    if types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if types.is_floating(kind):
        return float
    if types.is_string(kind):
        return str
    if types.is_list(kind):
        return list[_fit(kind.value_type) | None]  # type: ignore[misc]
    if types.is_struct(kind):
        names = {f"f{place}": field for place, field in enumerate(kind)}
        # `Any` takes null already.
        fields = [(name, fit if (fit := _fit(field.type)) is Any else fit | None, None) for name, field in names.items()]
        return msgspec.defstruct("Row", fields, rename={name: field.name for name, field in names.items()})
    return Any


def _wider(texts: Any, known: Any) -> Any:
    """The known fields, with integers widened to double where these texts have fractions."""
    kind = known
    for text in texts.to_pylist():
        try:
            shown = parsed_json(pa.array([text], texts.type), None).type
        except pa.ArrowInvalid:
            continue
        if pa.types.is_struct(shown):
            kind = _widened(kind, shown)
    return kind


def _widened(kind: Any, shown: Any) -> Any:
    types = pa.types
    if types.is_int64(kind) and types.is_floating(shown):
        return pa.float64()
    if types.is_struct(kind) and types.is_struct(shown):
        there = {field.name: field.type for field in shown}
        return pa.struct([field.with_type(_widened(field.type, there.get(field.name, pa.null()))) for field in kind])
    if types.is_list(kind) and types.is_list(shown):
        return pa.list_(kind.value_field.with_type(_widened(kind.value_type, shown.value_type)))
    return kind


def solid(kind: pa.DataType) -> pa.DataType | None:
    """The type without members that are all null, and with text for inferred times; None if nothing is left."""
    types = pa.types
    if types.is_null(kind):
        return None
    if types.is_timestamp(kind) and kind.unit == "s" and kind.tz is None:
        return pa.string()
    if types.is_struct(kind):
        fields = [(field, solid(field.type)) for field in kind]
        kept = [field.with_type(inner) for field, inner in fields if inner is not None]
        return pa.struct(kept) if kept else None
    if types.is_list(kind):
        item = solid(kind.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    return kind
