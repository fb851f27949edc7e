"""Values of Avro as columns: under one schema, or each under that of its frame, which a registry knows.

A frame is a zero byte and the schema's id in four bytes, big-endian. Values of other schemas than the newest are read by their own and
brought to the query's columns by name: a field that a schema does not have is null, and numbers widen.

The registry is asked once for each id in a process, over HTTP: ``GET /schemas/ids/ID`` and ``GET /subjects/SUBJECT/versions/latest``.
"""

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from functools import cache
from typing import Any

from ottla.client.arrow_json import Decoded
from ottla.client.serializers import Avro, needed
from ottla.spark.value_options import ValueOptions
from ottla.spark.values import Decode, fitted

FRAME_BYTES = 5
REGISTRY_TIMEOUT_S = 10.0


class RegistryFailed(RuntimeError):
    """A schema registry does not answer, or not with a schema of Avro."""


def avro_decoder(options: ValueOptions) -> Decode:
    """Raises: ImportError without the extra `schema`."""
    from ottla.client.arrow_avro import avro_values

    url = options.registry_url
    if url is not None:
        return lambda raw: _framed(raw, url)
    avro = _parsed(options.schema or "")
    return lambda raw: avro_values(raw, avro)


def fields_of_avro(options: ValueOptions, topics: tuple[str, ...]) -> Any:
    """The fields of a value as a StructType. Raises: ValueError, RegistryFailed, ImportError."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    from ottla.client.arrow_avro import Column

    text = options.schema
    if text is None:
        assert options.registry_url is not None, "the options were refused without one of the two"
        if options.subject is None and len(topics) != 1:
            raise ValueError("several topics may have several schemas: name the registry's subject with valueSubject, or give valueSchema")
        text = latest_schema(options.registry_url, options.subject or f"{topics[0]}-value")
    try:
        kind = Column.of(_parsed(text).read_schema, {}).type
    except (needed("fastavro.schema", "Avro").SchemaParseException, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"valueSchema is no schema of Avro that makes columns: {error}") from error
    found = from_arrow_type(_for_spark(kind), prefer_timestamp_ntz=True)
    if not isinstance(found, StructType):
        raise ValueError("the schema of a value is to be a record, so that its fields can be columns")
    return found


def _parsed(text: str, schema_id: int | None = None) -> Avro:
    try:
        schema = json.loads(text)
    except ValueError:
        # The bare name of a type.
        schema = text.strip()
    return Avro(schema, schema_id=schema_id)


def _for_spark(kind: Any) -> Any:
    """The type nearest to Avro's that Spark has: times in microseconds, times of day as their number."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        return pa.struct([(one.name, _for_spark(one.type)) for one in kind])
    if types.is_list(kind):
        return pa.list_(_for_spark(kind.value_type))
    if types.is_map(kind):
        return pa.map_(kind.key_type, _for_spark(kind.item_type))
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if types.is_time32(kind):
        return pa.int32()
    return pa.int64() if types.is_time64(kind) else kind


def _framed(raw: Any, url: str) -> Decoded:
    """Values in frames, each under its own schema."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from ottla.client.arrow_avro import avro_values

    heads = pc.binary_slice(raw, 0, FRAME_BYTES)
    parts, kinds = [], []
    for head in pc.unique(heads).to_pylist():
        if head is None:
            continue
        schema_id = int.from_bytes(head[1:], "big")
        text = schema_of(url, schema_id) if len(head) == FRAME_BYTES and head[0] == 0 else None
        if text is None:
            continue
        where = pc.indices_nonzero(pc.fill_null(pc.equal(heads, pa.scalar(head, pa.binary())), False))
        found = avro_values(raw.take(where), _parsed(text, schema_id))
        parts.append((schema_id, where, found))
        kinds.append(found.array.type)
    if len(parts) == 1 and len(parts[0][1]) == len(raw):
        return parts[0][2]
    # The newest schema decides how the others are shaped: it has what they have, but for what was taken out of it.
    parts.sort(key=lambda part: part[0])
    kind = _of_all([part[2].array.type for part in parts])
    arrays = [fitted(found.array, kind) for _, _, found in parts]
    places = pa.concat_arrays([where for _, where, _ in parts]) if parts else pa.array([], pa.uint64())
    order = pc.index_in(pa.array(range(len(raw)), pa.uint64()), places)
    array = pa.concat_arrays(arrays).take(order) if arrays else pa.nulls(len(raw), kind)
    unread = pc.and_(raw.is_valid(), order.is_null())
    flags = [pa.repeat(pa.scalar(False), len(where)) if found.bad is None else found.bad for _, where, found in parts]
    bad = pc.or_(unread, pc.fill_null(pa.concat_arrays(flags).take(order), False)) if flags else unread
    return Decoded(array, bad if pc.any(bad).as_py() else None, "it is not framed by a schema that the registry has")


def _of_all(kinds: list[Any]) -> Any:
    """A struct with the fields of all, each of the type of the last that has it."""
    import pyarrow as pa

    fields: dict[str, Any] = {}
    for kind in kinds:
        fields.update({one.name: one.type for one in kind})
    return pa.struct(list(fields.items()))


@cache
def schema_of(url: str, schema_id: int) -> str | None:
    """The text of a schema; None where the registry has none of this id. Raises: RegistryFailed."""
    found = _asked(url, f"/schemas/ids/{schema_id}")
    return None if found is None else _avro_text(found, f"schema {schema_id}")


def latest_schema(url: str, subject: str) -> str:
    """The newest schema of a subject. Raises: RegistryFailed."""
    found = _asked(url, f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
    if found is None:
        raise RegistryFailed(f"the schema registry has no subject {subject}; name another with valueSubject, or give valueSchema")
    return _avro_text(found, f"subject {subject}")


def _avro_text(found: dict[str, Any], what: str) -> str:
    if found.get("schemaType", "AVRO") != "AVRO":
        raise RegistryFailed(f"{what} of the registry is {found['schemaType']}, and not Avro")
    return str(found["schema"])


def _asked(url: str, path: str) -> dict[str, Any] | None:
    """The registry's answer; None: not found. Raises: RegistryFailed."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise RegistryFailed(f"schema.registry.url is to begin with http:// or https://, not {url!r}")
    request = urllib.request.Request(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}{path}")
    if parts.username is not None:
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(secret.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=REGISTRY_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise RegistryFailed(f"the schema registry refuses {path}: {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        raise RegistryFailed(f"the schema registry cannot be asked for {path}: {error}") from error
