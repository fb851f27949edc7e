"""A pipeline file, read and checked. Pure but for reading the file.

    name = "requests"                             [decode]                             [[sink]]
    bootstrap = "127.0.0.1:9092"                  format = "json"                      type = "delta"
    checkpoint = "state/requests"                 fields = { user = "string" }         path = "tables/requests"
    trigger = "1 second"                          [[step]]                             mode = "merge"
    [source]                                      name = "by_user"                     keys = ["user"]
    topic = "requests"                            sql = "SELECT user, count(*) ..."

A string may hold `${name}` or `${name:-default}`: filled from the variables given on the command line, then from the environment.
Every key is checked before anything runs. An error names the file, the line where it can be found, the key, and what to do.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.base.options import suggestion
from ottla.spark.pipeline.model import DURATION, NAME, RECORDS, Decode, Field, Pipeline, Source, Step, Watermark
from ottla.spark.pipeline.sink_file import read_dead_letters, read_rules, read_sinks, read_trigger, refuse_lost_letters
from ottla.spark.pipeline.table import PipelineError, Table


def load(path: Path, variables: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline in a file. Raises: PipelineError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PipelineError(str(path), "", f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise PipelineError(str(path), "", "is not UTF-8 text") from None
    return parse(text, path, {**os.environ, **(variables or {})})


def parse(text: str, path: Path, variables: Mapping[str, str]) -> Pipeline:
    """The pipeline in `text`, which came from `path`. Raises: PipelineError."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(str(path), "", f"is not TOML: {error}") from None
    table = Table(raw, "", path, text, variables)
    name = table.text("name", path.stem)
    bootstrap = table.text("bootstrap", "127.0.0.1:9092")
    source = _source(table.table("source", required="say which topic is read: [source] and topic = ..."))
    decode = _decode(table.table("decode"))
    steps = _steps(table)
    views = (RECORDS, *(step.name for step in steps))
    pipeline = Pipeline(
        file=path,
        text=text,
        name=name,
        bootstrap=bootstrap,
        checkpoint=table.text("checkpoint", f".ottla/{name}"),
        trigger=read_trigger(table),
        source=source,
        decode=decode,
        steps=steps,
        sinks=read_sinks(table, views),
        spark=_spark(table.table("spark")),
        rules=read_rules(table, views),
        dead_letters=read_dead_letters(table),
    )
    table.finish()
    refuse_lost_letters(pipeline)
    return pipeline


def _source(table: Table) -> Source:
    topic, topics, pattern = table.text("topic"), table.texts("topics"), table.text("pattern")
    if sum(map(bool, (topic, topics, pattern))) != 1:
        raise table.fail("topic", "say what is read with exactly one of topic, topics and pattern")
    start = table.choice("start", ("earliest", "latest"), "earliest")
    options = {"subscribePattern": pattern} if pattern else {"subscribe": topic or ",".join(topics)}
    options["startingOffsets"] = start
    given = table.get("options")
    if not isinstance(given, dict | None):
        raise table.fail("options", 'expected a table of options of format("ottla"), such as { maxOffsetsPerTrigger = 10000 }')
    for name, value in (given or {}).items():
        value = table.filled(f"options.{name}", value)
        options[name] = str(value).lower() if isinstance(value, bool) else str(value)
    watermark = _watermark(table)
    table.finish()
    return Source(options, watermark)


def _watermark(table: Table) -> Watermark | None:
    if "watermark" not in table.values:
        table.asked.append("watermark")
        return None
    inner = table.table("watermark")
    column = inner.text("column", required="name the column that holds the time of each record")
    delay = inner.text("delay", required='say how late a record may be, such as "10 seconds"')
    if not DURATION.fullmatch(delay):
        raise inner.fail("delay", f'expected a number and a unit, such as "10 seconds" or "5 minutes", not {delay!r}')
    inner.finish()
    return Watermark(column, delay)


def _decode(table: Table) -> Decode:
    form = table.choice(
        "format",
        ("json", "regex", "text"),
        "text" if not table.values else None,
        required="say how values are written: json, regex or text" if table.values else "",
    )
    fields = _fields(table)
    schema, pattern = table.text("schema"), table.text("pattern")
    nulls = table.texts("nulls")
    if (form == "json" and not (schema or fields)) or (schema and fields):
        raise table.fail("fields", 'give either fields, such as { user = "string" }, or a schema, such as "user STRING, n BIGINT"')
    if form != "json" and schema:
        raise table.fail("schema", "is only for json; name types with fields")
    if form == "regex":
        _check_pattern(table, pattern, fields)
    elif nulls:
        raise table.fail("nulls", "is only for regex")
    elif pattern:
        raise table.fail("pattern", 'is only for regex; set format = "regex"')
    if form == "text" and fields:
        raise table.fail("fields", 'text has one column, value; set format = "json" or "regex"')
    bad = table.choice("bad_records", ("keep", "drop", "fail", "dead_letter"), "keep")
    table.finish()
    return Decode(form, fields, schema, pattern, nulls, bad)


def _fields(table: Table) -> dict[str, Field]:
    inner = table.table("fields")
    fields = {}
    for name in inner.values:
        if not NAME.fullmatch(name):
            raise inner.fail(name, "a column's name has letters, digits and _, and does not begin with a digit")
        if name.startswith("_"):
            raise inner.fail(name, "names that begin with _ are taken: _key, _topic, _partition, _offset, _timestamp, _malformed")
        if isinstance(inner.values[name], dict):
            described = inner.table(name)
            kind = described.text("type", required='say its type, such as "timestamp"')
            fields[name] = Field(kind, described.text("format"))
            if fields[name].format and kind.lower() != "timestamp":
                raise described.fail("format", "is only for a timestamp")
            described.finish()
        else:
            fields[name] = Field(inner.text(name))
    return fields


def _check_pattern(table: Table, pattern: str | None, fields: Mapping[str, Field]) -> None:
    if not pattern:
        raise table.fail("pattern", r"is missing; give a regular expression with named groups, such as '(?<user>\S+) (?<rest>.*)'")
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
    """Names and numbers of the groups of a pattern that may write them as Java, (?<name>...), or as Python, (?P<name>...).

    Raises: re.error.
    """
    return dict(re.compile(re.sub(r"(?<!\\)\(\?<(?=[A-Za-z_])", "(?P<", pattern)).groupindex)


def _steps(table: Table) -> tuple[Step, ...]:
    steps: list[Step] = []
    for inner in table.tables("step"):
        name = inner.text("name", required="later steps and sinks use a step by its name")
        if not NAME.fullmatch(name):
            raise inner.fail("name", f"{name!r} is no name for a view; use letters, digits and _")
        if name == RECORDS or name in (step.name for step in steps):
            raise inner.fail("name", f"there is already a view {name}; choose another name")
        sql = inner.text("sql", required="give the query, such as SELECT * FROM records")
        steps.append(Step(name, sql, _watermark(inner), f"{inner.prefix}sql"))
        inner.finish()
    return tuple(steps)


def _spark(table: Table) -> dict[str, str]:
    """`[spark]`: dotted names, quoted or as nested tables."""
    settings: dict[str, str] = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                collect(f"{prefix}.{name}" if prefix else name, item)
        elif isinstance(value, bool):
            settings[prefix] = str(value).lower()
        else:
            settings[prefix] = str(table.filled(prefix, value))

    for name in table.values:
        collect(name if name.startswith("spark.") else f"spark.{name}", table.get(name))
    return settings
