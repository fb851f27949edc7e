"""Decodes values to typed columns with Spark's own expressions: no Python runs per record.

Every record becomes one row. A value that cannot be decoded has null fields and `_malformed` = true (`bad_records = "keep"`), is left out
(`"drop"`) or fails the query (`"fail"`). A tombstone, a record without a value, has null fields and is not malformed.

    fields of [decode] ...  _malformed  _key (by default as text)  _headers (on request)
    _topic  _partition  _offset  _timestamp (of the record)

The raw key and value stay in hidden columns for dead letters (rejected_rows.py). Invalid UTF-8 becomes the replacement character in text,
since sinks need valid text.

JSON: Spark's from_json reads one value and ignores any text after it. So a value is parsed inside a larger JSON text that ends with a mark
(JSON_AROUND). Trailing text makes the larger text invalid or moves the mark. Each process draws random names for the larger text, so that
no value can imitate its end. Keys are parsed the same way; an invalid key is null.

Regular expressions run once per value, not once per group: the value is rewritten to its groups with a separator, and then split. The
separator is a Unicode noncharacter; in a value it becomes the replacement character.
"""

import re
import secrets
from dataclasses import replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.types import StructType, _parse_datatype_string

from ottla.base.options import suggestion
from ottla.spark.pipeline.config.decode import named_groups
from ottla.spark.pipeline.config.model import Decode, Field, Pipeline
from ottla.spark.pipeline.rejected_rows import RAW_KEY, RAW_VALUE, literal
from ottla.spark.source.rows import HEADERS_TYPE

#: A noncharacter: Unicode reserves it for internal use by programs.
SEPARATOR = "\ufdd0"
CORRUPT = "_corrupt"
REPLACEMENT = "\ufffd"
#: A random name that no value contains.
MARK = f"m{secrets.token_hex(8)}"
#: The text around a JSON value: a list of the value and an object with the mark.
JSON_AROUND = (f'{{"{MARK}":[', f',{{"{MARK}":true}}]}}')
STRUCT = re.compile(r"^\s*struct\s*<(.*)>\s*$", re.IGNORECASE | re.DOTALL)
#: The largest milliseconds whose microseconds fit into 64 bits.
EPOCH_MS_MAX = (2**63 - 1) // 1000
EPOCHS = {"epoch_ms": "timestamp_millis", "epoch_s": "timestamp_seconds"}
TYPES = ("string", "int", "bigint", "long", "double", "float", "boolean", "timestamp", "date", "binary", "short", "decimal(10,2)")
#: The source's columns that pipelines use.
SOURCE_SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
METADATA: tuple[str, ...] = ("topic AS _topic", "partition AS _partition", "offset AS _offset", "timestamp AS _timestamp")
#: The record's key, parsed as JSON but not yet checked.
PARSED_KEY = "parsed_key"
RAW_OF_CORRUPT = f"{CORRUPT} AS {RAW_VALUE}"
METADATA += (f"key AS {RAW_KEY}", f"value AS {RAW_VALUE}")


def source_schema(decode: Decode) -> str:
    """The columns of ``format("ottla")`` to read if values are decoded here."""
    return f"{SOURCE_SCHEMA}, headers {HEADERS_TYPE}" if decode.headers else SOURCE_SCHEMA


def metadata(decode: Decode) -> tuple[str, ...]:
    """The columns besides the value, as SQL over the source's columns."""
    match decode.record_key.format:
        case "text":
            key = "make_valid_utf8(CAST(key AS STRING)) AS _key"
        case "raw":
            key = "key AS _key"
        case "json":
            assert decode.record_key.schema is not None, "checked with the file"
            names = [field.name for field in _parsed(decode.record_key.schema).fields]
            fields = ", ".join(f"get({PARSED_KEY}.{MARK}, 0).`{name}`" for name in names)
            key = f"CASE WHEN {_alone(PARSED_KEY)} THEN struct({fields}) END AS _key"
    return (key, *METADATA, *(["headers AS _headers"] if decode.headers else []))


def decoded(frame: Any, pipeline: Pipeline, decode: Decode) -> Any:
    """The view of a source, from a frame with the columns of `source_schema`.

    Raises: PipelineError for an unknown type.
    """
    decode = _typed(pipeline, decode)
    if decode.record_key.schema:
        # A separate projection, so that the key is parsed once.
        frame = frame.withColumn(PARSED_KEY, functions.expr(_read_json("key", decode.record_key.schema)))
    match decode.format:
        case "json":
            frame = _json(frame, decode)
        case "regex":
            frame = _regex(frame, decode)
        case "csv":
            frame = _csv(frame, decode)
        case "avro" | "protobuf" | "json-schema":
            frame = _by_source(frame, decode)
        case "text":
            frame = frame.selectExpr("make_valid_utf8(CAST(value AS STRING)) AS value", "FALSE AS _malformed", *metadata(decode))
        case "raw":
            frame = frame.selectExpr("value", "FALSE AS _malformed", *metadata(decode))
    if decode.bad_records == "drop":
        return frame.where("NOT _malformed")
    if decode.bad_records == "fail":
        message = "concat('cannot decode the value of ', _topic, '-', _partition, ' at offset ', _offset)"
        return frame.where(f"CASE WHEN _malformed THEN raise_error({message}) ELSE TRUE END")
    return frame


def _typed(pipeline: Pipeline, decode: Decode) -> Decode:
    """Validates the types, and turns the schema of csv into fields. Raises: PipelineError."""
    if decode.schema:
        ddl = _columns(pipeline, f"{decode.key}schema", decode.schema)
        if decode.format == "csv":
            fields = {field.name: Field(field.dataType.simpleString()) for field in _parsed(ddl).fields}
            decode = replace(decode, schema=None, fields=fields)
        elif decode.format == "json":
            decode = replace(decode, schema=ddl)
    if decode.record_key.schema:
        ddl = _columns(pipeline, f"{decode.key}key.schema", decode.record_key.schema)
        decode = replace(decode, record_key=replace(decode.record_key, schema=ddl))
    for name, field in decode.fields.items():
        try:
            _parsed(field.type)
        except ValueError:
            known = "string, int, bigint, double, boolean, timestamp, date, array<int>"
            raise pipeline.error(
                f"{decode.key}fields.{name}",
                f"{field.type!r} is not a type of Spark{suggestion(field.type, TYPES)}; common ones are {known}",
            ) from None
    return decode


def _columns(pipeline: Pipeline, key: str, schema: str) -> str:
    """The columns of a schema without an enclosing STRUCT<...>. Raises: PipelineError."""
    try:
        if isinstance(_parsed(schema), StructType):
            return STRUCT.sub(r"\1", schema)
    except ValueError:
        pass
    raise pipeline.error(key, 'is not a list of columns in Spark\'s DDL, such as "user STRING, n BIGINT"')


def _parsed(text: str) -> Any:
    """A type from its DDL. Raises: ValueError."""
    try:
        return _parse_datatype_string(text)
    except PySparkException:
        raise ValueError(text) from None


def _json(frame: Any, decode: Decode) -> Any:
    """One pass of from_json. Formatted times are parsed as text or numbers and converted afterwards."""
    if decode.schema:
        fields, schema = {}, decode.schema
    else:
        fields = dict(decode.fields)
        schema = ", ".join(f"`{name}` {_written_type(field)}" for name, field in fields.items())
    names = list(fields) or [field.name for field in _parsed(schema).fields]
    frame = frame.selectExpr(f"{_read_json('value', schema)} AS parsed", "value IS NOT NULL AS present", *metadata(decode))
    whole = f"{_alone('parsed')} AND parsed.{CORRUPT} IS NULL"
    frame = frame.selectExpr(
        f"get(parsed.{MARK}, 0) AS parsed", f"NOT coalesce({whole}, FALSE) AS broken", "present", *_names_of(metadata(decode))
    )
    columns = [f"{_converted(f'parsed.`{name}`', fields[name]) if name in fields else f'parsed.`{name}`'} AS `{name}`" for name in names]
    timed = {name: field for name, field in fields.items() if field.format}
    unread = [f"(parsed.`{name}` IS NOT NULL AND {_converted(f'parsed.`{name}`', field)} IS NULL)" for name, field in timed.items()]
    malformed = " OR ".join(["broken", *unread])
    return frame.selectExpr(*columns, f"present AND ({malformed}) AS _malformed", *_names_of(metadata(decode)))


def _read_json(column: str, schema: str) -> str:
    """SQL that parses bytes as JSON inside `JSON_AROUND`; text that is not JSON or not of the schema goes to `CORRUPT`."""
    whole = f"{MARK} ARRAY<STRUCT<{schema}, {MARK} BOOLEAN>>, {CORRUPT} STRING"
    begin, end = map(literal, JSON_AROUND)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}')"
    return f"from_json(concat({begin}, CAST({column} AS STRING), {end}), {literal(whole)}, {options})"


def _alone(parsed: str) -> str:
    """SQL: whether `_read_json` parsed exactly one object without trailing text."""
    return f"size({parsed}.{MARK}) = 2 AND get({parsed}.{MARK}, 1).{MARK} AND get({parsed}.{MARK}, 0) IS NOT NULL"


def _by_source(frame: Any, decode: Decode) -> Any:
    """Values that the source has decoded to a struct, with the bytes of malformed ones in `CORRUPT`."""
    columns = [RAW_OF_CORRUPT if column.startswith("value AS ") else column for column in metadata(decode)]
    return frame.selectExpr("value.*", f"{CORRUPT} IS NOT NULL AS _malformed", *columns)


def _regex(frame: Any, decode: Decode) -> Any:
    """One run of the expression per value, then one cast per field."""
    assert decode.pattern is not None, "checked with the file"
    groups = named_groups(decode.pattern)
    # Java's group names cannot contain an underscore, so groups are numbered.
    pattern = re.sub(r"(?<!\\)\(\?P?<(?=[A-Za-z_])[^>]*>", "(", decode.pattern)
    text = f"replace(CAST(value AS STRING), '{SEPARATOR}', '{REPLACEMENT}')"
    rewritten = SEPARATOR + SEPARATOR.join(f"${number}" for number in groups.values())
    whole = f"regexp_replace({text}, {literal(f'(?s)^.*?(?:{pattern}).*$')}, '{rewritten}')"
    frame = frame.selectExpr(f"split(make_valid_utf8({whole}), '{SEPARATOR}') AS parts", "value IS NOT NULL AS present", *metadata(decode))
    # A value that does not match stays unchanged: one part, without a separator.
    matched = f"size(parts) = {len(groups) + 1}"
    texts = {
        name: f"CASE WHEN {matched} THEN {_without_nulls(f'parts[{index}]', decode.nulls)} END" for index, name in enumerate(groups, 1)
    }
    selected = [f"{text} AS `{name}`" for name, text in texts.items()]
    frame = frame.selectExpr(*selected, f"{matched} AS matched", "present", *_names_of(metadata(decode)))
    columns = [f"{_converted(f'`{name}`', decode.fields.get(name, Field('string')))} AS `{name}`" for name in groups]
    unread = [f"(`{name}` IS NOT NULL AND {_converted(f'`{name}`', field)} IS NULL)" for name, field in decode.fields.items()]
    return frame.selectExpr(*columns, f"present AND ({' OR '.join(['NOT matched', *unread])}) AS _malformed", *_names_of(metadata(decode)))


def _csv(frame: Any, decode: Decode) -> Any:
    """Parses to text, then casts each field. An empty field is null; another number of fields is malformed."""
    written = ", ".join(f"`{name}` STRING" for name in decode.fields)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}', 'sep', {literal(decode.separator)})"
    parsed = f"from_csv(make_valid_utf8(CAST(value AS STRING)), {literal(f'{written}, {CORRUPT} STRING')}, {options}) AS parsed"
    frame = frame.selectExpr(parsed, "value IS NOT NULL AS present", *metadata(decode))
    texts = {name: _without_nulls(f"parsed.`{name}`", decode.nulls) for name in decode.fields}
    columns = [f"{_converted(text, decode.fields[name])} AS `{name}`" for name, text in texts.items()]
    unread = [f"({text} IS NOT NULL AND {_converted(text, decode.fields[name])} IS NULL)" for name, text in texts.items()]
    malformed = " OR ".join([f"parsed IS NULL OR parsed.{CORRUPT} IS NOT NULL", *unread])
    return frame.selectExpr(*columns, f"present AND ({malformed}) AS _malformed", *_names_of(metadata(decode)))


def _without_nulls(text: str, nulls: tuple[str, ...]) -> str:
    return f"CASE WHEN {text} NOT IN ({', '.join(map(literal, nulls))}) THEN {text} END" if nulls else text


def _written_type(field: Field) -> str:
    if field.format is None:
        return field.type
    return "BIGINT" if field.format == "epoch_ms" else "DOUBLE" if field.format == "epoch_s" else "STRING"


def _converted(value: str, field: Field) -> str:
    """SQL for `value` as its type; null if it cannot be converted."""
    if field.format in EPOCHS:
        number = f"TRY_CAST({value} AS {_written_type(field)})"
        if field.format == "epoch_ms":
            # Spark converts to microseconds; an overflow of 64 bits would fail the query.
            number = f"CASE WHEN {number} BETWEEN -{EPOCH_MS_MAX} AND {EPOCH_MS_MAX} THEN {number} END"
        return f"{EPOCHS[field.format]}({number})"
    if field.format is not None and field.year is not None:
        return _with_year(value, field.format, field.year)
    if field.format is not None:
        return f"try_to_timestamp({value}, {literal(field.format)})"
    return f"TRY_CAST({value} AS {field.type})"


def _with_year(value: str, pattern: str, year: str) -> str:
    """SQL for a time that is written without a year. Several spaces count as one: syslog pads days, `Jan  1`.

    With `record`, of the times in the year of the record's timestamp, the one before and the one after, the nearest to the timestamp.
    """
    written, whole = f"regexp_replace({value}, ' +', ' ')", literal(f"yyyy {pattern}")
    if year != "record":
        return f"try_to_timestamp(concat('{year} ', {written}), {whole})"
    at = f"try_to_timestamp(concat(CAST(year(_timestamp) + __y AS STRING), ' ', {written}), {whole})"
    near = f"transform(array(-1, 0, 1), __y -> struct(abs(unix_micros({at}) - unix_micros(_timestamp)) AS far, {at} AS at))"
    return f"array_min(filter({near}, __t -> __t.at IS NOT NULL)).at"


def _names_of(expressions: tuple[str, ...]) -> list[str]:
    return [expression.rpartition(" AS ")[2] for expression in expressions]
