"""Reads and checks ``[decode]`` of a source: the format of its values."""

import json
import re
from collections.abc import Mapping

from ottla.base.options import suggestion
from ottla.spark.pipeline.config.model import NAME, Decode, Field, KeyDecode
from ottla.spark.pipeline.config.toml_table import Table

FORMATS = ("json", "regex", "csv", "avro", "protobuf", "json-schema", "text", "raw")
#: Formats that need fields or a schema.
TYPED = ("json", "csv")
RESERVED = "_key, _topic, _partition, _offset, _timestamp, _headers, _malformed"
#: The formats that have a key.
FORMATS_OF_KEY = {
    "pattern": ("regex",),
    "nulls": ("regex", "csv"),
    "separator": ("csv",),
    "fields": ("json", "regex", "csv"),
    "schema": ("json", "csv", "avro", "json-schema"),
    "schema_file": ("avro",),
    "registry": ("avro", "protobuf", "json-schema"),
    "subject": ("avro", "protobuf", "json-schema"),
    "descriptor": ("protobuf",),
    "message": ("protobuf",),
}
#: The source's option -> the file's key.
OPTIONS = {
    "schema.registry.url": "registry",
    "valueSubject": "subject",
    "valueSchema": "schema",
    "valueDescriptor": "descriptor",
    "valueMessage": "message",
}


def in_file_terms(sentence: str, decode: Decode) -> tuple[str, str]:
    """Translates the source's error about its options: the file's key, and the message with the file's names."""
    named = [option for option in OPTIONS if re.search(rf"{re.escape(option)}\b", sentence)]
    for option in named:
        sentence = re.sub(rf"{re.escape(option)}\b", OPTIONS[option], sentence)
    at = next((OPTIONS[option] for option in [*named, *OPTIONS] if option in decode.options), None)
    if at is None:
        return decode.key.removesuffix("."), sentence
    return decode.key + at, sentence.removeprefix(f"{at}: ")


def read_decode(table: Table) -> Decode:
    """Raises: PipelineError."""
    form = table.choice(
        "format",
        FORMATS,
        "text" if not {*table.values} - {"key", "headers"} else None,
        required=f"name the format of values: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
    )
    for name, forms in FORMATS_OF_KEY.items():
        if name in table.values and form not in forms:
            raise table.fail(name, f"is only for {' and '.join(forms)}; {_format_hint(form)}")
    fields = read_fields(table, form)
    schema, pattern, nulls = table.text("schema"), table.text("pattern"), table.texts("nulls")
    if (form in TYPED and not (schema or fields)) or (schema and fields):
        problem = 'give either fields, such as { user = "string" }, or a schema, such as "user STRING, n BIGINT"'
        raise table.misspelled("fields", "schema") or table.fail("fields", problem)
    options: dict[str, str] = {}
    if form == "regex":
        _check_pattern(table, pattern, fields)
    elif form == "avro":
        options, schema = _avro(table, schema), None
    elif form == "protobuf":
        options = _protobuf(table)
    elif form == "json-schema":
        registry = table.text("registry", required='set its address; values without the frame of a registry are format = "json"')
        options, schema = {**_registered(form, registry, table.text("subject")), **({"valueSchema": schema} if schema else {})}, None
    for name in FORMATS_OF_KEY:
        table.read_keys.append(name)
    separator = table.text("separator", ",", blank=True)
    if len(separator) != 1:
        raise table.fail("separator", f"expected one character, such as ';', not {separator!r}")
    bad = table.choice("bad_records", ("keep", "drop", "fail", "dead_letter"), "keep")
    key, headers = _key(table), table.flag("headers", False)
    table.finish()
    return Decode(form, fields, schema, pattern, nulls, bad, separator, options, key, headers, table.prefix)


def _avro(table: Table, schema: str | None) -> dict[str, str]:
    file, registry, subject = table.text("schema_file"), table.text("registry"), table.text("subject")
    if sum(map(bool, (schema, file, registry))) != 1:
        misspelled = None if schema or file or registry else table.misspelled("schema", "schema_file", "registry")
        raise misspelled or table.fail("schema", "set exactly one of schema (JSON), schema_file and registry (its address)")
    if subject and not registry:
        raise table.fail("subject", "needs registry: it names the schemas there")
    if registry:
        return _registered("avro", registry, subject)
    if file:
        schema = table.companion_file("schema_file", file).read_text(encoding="utf-8")
    try:
        json.loads(schema or "")
    except ValueError as error:
        raise table.fail("schema_file" if file else "schema", f"is not an Avro schema in JSON: {error}") from None
    return {"valueFormat": "avro", "valueSchema": schema or ""}


def _registered(form: str, registry: str, subject: str | None) -> dict[str, str]:
    return {"valueFormat": form, "schema.registry.url": registry, **({"valueSubject": subject} if subject else {})}


def _protobuf(table: Table) -> dict[str, str]:
    registry, subject, message = table.text("registry"), table.text("subject"), table.text("message")
    if registry and "descriptor" in table.values:
        raise table.fail("descriptor", "and registry exclude each other: both say what the messages are")
    if subject and not registry:
        raise table.fail("subject", "needs registry: it names the schemas there")
    if registry:
        return {**_registered("protobuf", registry, subject), **({"valueMessage": message} if message else {})}
    written = "name the file written by protoc --include_imports --descriptor_set_out=FILE, or set registry, its address"
    descriptor = table.text("descriptor", required=written)
    message = table.text("message", required="name the message, with its package, such as shop.Order")
    return {"valueFormat": "protobuf", "valueDescriptor": str(table.companion_file("descriptor", descriptor)), "valueMessage": message}


def _format_hint(form: str) -> str:
    if form in ("text", "raw"):
        return f'{form} has one column, value; set format = "json", "csv", "regex" ... for more'
    return f'this is format = "{form}"'


def read_fields(table: Table, form: str) -> dict[str, Field]:
    inner = table.table("fields", 'columns and their types, such as { user = "string" }')
    fields = {}
    for name in inner.values:
        if not NAME.fullmatch(name):
            raise inner.fail(name, "a column name has letters, digits and _, and does not start with a digit")
        if name.startswith("_"):
            raise inner.fail(name, f"names that start with _ are reserved: {RESERVED}")
        if isinstance(inner.values[name], dict):
            described = inner.table(name, "type and format")
            kind = described.text("type", required='set its type, such as "timestamp"')
            fields[name] = Field(kind, described.text("format"), _year(described))
            if fields[name].format and kind.lower() != "timestamp":
                raise described.fail("format", "is only for a timestamp")
            described.finish()
        else:
            fields[name] = Field(inner.text(name))
    return fields


def _year(table: Table) -> str | None:
    """The year of times that are written without one."""
    year = table.get("year")
    if year is None:
        return None
    if year != "record" and not (re.fullmatch(r"\d{4}", str(year)) and not isinstance(year, bool)):
        raise table.fail("year", f'expected "record", the year of the record\'s timestamp, or a year such as 2026, not {year!r}')
    pattern = re.sub(r"'[^']*'", "", table.text("format") or "")
    if not pattern or pattern.startswith("epoch_") or re.search("[yu]", pattern):
        raise table.fail("year", 'is for a format without a year, such as "MMM d HH:mm:ss"')
    return str(year)


def _key(table: Table) -> KeyDecode:
    if not isinstance(table.values.get("key"), dict):
        if table.values.get("key") == "json":
            raise table.fail("key", 'json needs columns: expected { format = "json", schema = "user STRING, n BIGINT" }')
        return KeyDecode(table.choice("key", ("text", "raw"), "text"))
    inner = table.table("key", "format and schema")
    form = inner.choice("format", ("text", "raw", "json"), required="name the format of keys: text, raw or json")
    schema = inner.text("schema")
    if (form == "json") != bool(schema):
        raise inner.fail("schema", 'is for json only, which needs it, such as "user STRING, n BIGINT"')
    inner.finish()
    return KeyDecode(form, schema)


def _check_pattern(table: Table, pattern: str | None, fields: Mapping[str, Field]) -> None:
    if not pattern:
        raise table.missing("pattern", r"give a regular expression with named groups, such as '(?<user>\S+) (?<rest>.*)'")
    try:
        groups = named_groups(pattern)
    except re.error as error:
        raise table.fail("pattern", f"is not a regular expression: {error}") from None
    if not groups:
        raise table.fail("pattern", "has no named group; each (?<name>...) becomes a column")
    for name in fields:
        if name not in groups:
            raise table.fail(f"fields.{name}", f"the pattern has no group {name}{suggestion(name, groups)}; it has {', '.join(groups)}")


def named_groups(pattern: str) -> dict[str, int]:
    """Names and numbers of a pattern's groups, written as in Java, (?<name>...), or as in Python, (?P<name>...).

    Raises: re.error.
    """
    return dict(re.compile(re.sub(r"(?<!\\)\(\?<(?=[A-Za-z_])", "(?P<", pattern)).groupindex)
