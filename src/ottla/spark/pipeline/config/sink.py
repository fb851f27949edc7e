"""Reads and checks ``[[sink]]``, ``[[rule]]``, ``[dead_letters]`` and ``trigger`` of a pipeline file."""

import re
from typing import Any

from ottla.lake.table.iceberg_partitions import parsed
from ottla.spark.pipeline.config.model import DURATION, NAME, Compaction, DeadLetters, Pipeline, Rule, Sink
from ottla.spark.pipeline.config.toml_table import StorageDefaults, Table

KINDS = ("delta", "iceberg", "topic", "parquet", "jdbc", "console")
KINDS_TEXT = "delta, iceberg, topic, parquet, jdbc or console"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SCHEMA_FORMATS = ("avro", "protobuf", "json-schema")
TRIGGERS = ("continuous", "available-now", "once")
EVERY = re.compile(r"every (\d+) batch(?:es)?")
FILES = re.compile(r"at (\d+) files")
HOURS = re.compile(r"(\d+) (hour|day)s?")


def read_sinks(table: Table, views: tuple[str, ...], storage: StorageDefaults) -> tuple[Sink, ...]:
    """`storage`: options of object stores for sinks without their own."""
    sinks = tuple(_sink(inner, views, storage) for inner in table.tables("sink"))
    if not sinks:
        raise table.missing("sink", f"add a target for results: [[sink]] with type = {KINDS_TEXT}")
    return sinks


def _sink(table: Table, views: tuple[str, ...], storage: StorageDefaults) -> Sink:
    kind = table.choice("type", KINDS, required=f"choose the kind of target: {KINDS_TEXT}")
    view = table.choice("from", views, views[-1])
    match kind:
        case "delta":
            sink = _delta(table, view, storage)
        case "iceberg":
            sink = _iceberg(table, view)
        case "topic":
            sink = _topic(table, view)
        case "parquet":
            sink = _parquet(table, view, storage)
        case "jdbc":
            sink = _jdbc(table, view)
        case _:
            mode = table.choice("mode", ("append", "update", "replace"))
            sink = Sink("console", view, mode, table.prefix, rows=table.number("rows", 20))
    table.finish()
    return sink


def _parquet(table: Table, view: str, storage: StorageDefaults) -> Sink:
    path, options = table.location("path", storage, required="name the directory of the files")
    codec = table.choice("compression", ("zstd", "snappy", "gzip", "none"), "zstd")
    partition_by = table.texts("partition_by")
    return Sink("parquet", view, "append", table.prefix, path=path, storage=options, partition_by=partition_by, compression=codec)


def _delta(table: Table, view: str, storage: StorageDefaults) -> Sink:
    mode = table.choice("mode", ("append", "merge", "replace"), "append")
    path, options = table.location("path", storage, required="name the directory of the table")
    return Sink(
        "delta",
        view,
        mode,
        table.prefix,
        path=path,
        storage=options,
        keys=_keys(table, mode, "window_start"),
        partition_by=table.texts("partition_by"),
        schema=table.choice("schema", ("fixed", "evolve"), "fixed"),
        compaction=_compaction(table),
    )


def _iceberg(table: Table, view: str) -> Sink:
    mode = table.choice("mode", ("append", "merge", "replace"), "append")
    where = _iceberg_keys(table)
    compaction, expire_hours = _compaction(table), _expire_hours(table)
    if expire_hours is not None and compaction is None:
        raise table.missing("compact", 'old snapshots are removed after a compaction: say when, such as "every 100 batches"')
    sink = Sink(
        "iceberg",
        view,
        mode,
        table.prefix,
        keys=_keys(table, mode, "window_start"),
        partition_by=_iceberg_partitions(table),
        schema=table.choice("schema", ("fixed", "evolve"), "fixed"),
        compaction=compaction,
        expire_hours=expire_hours,
        **where,
    )
    _require_iceberg(table, sink)
    return sink


def _iceberg_keys(table: Table) -> dict[str, Any]:
    """The keys that say where an Iceberg table is, by the names of a sink's fields."""
    catalog, name, path = table.text("catalog"), table.text("table"), table.local_path("path")
    options = table.settings("catalog_options", '{ uri = "https://catalog.example/iceberg" }')
    if (path is None) == (catalog is None):
        problem = "name the directory of the table, or catalog and table: a catalog of .pyiceberg.yaml, and NAMESPACE.TABLE in it"
        raise table.missing("path", problem) if path is None else table.fail("catalog", f"and path exclude each other; {problem}")
    for key, value in (("table", name), ("catalog_options", options)):
        if value and catalog is None:
            raise table.fail(key, "needs catalog: a table in a directory has a catalog of its own")
    if catalog is not None and name is None:
        raise table.missing("table", "name the table in the catalog, NAMESPACE.TABLE")
    return {"path": path, "catalog": catalog, "table": name, "options": options}


def _require_iceberg(table: Table, sink: Sink) -> None:
    """Raises: PipelineError without pyiceberg, or if the table cannot be where the sink says."""
    try:
        from ottla.spark.pipeline.iceberg_place import iceberg_place

        iceberg_place(sink)
    except ImportError as error:
        raise table.fail("type", str(error)) from None
    except ValueError as error:
        raise table.fail("path" if sink.catalog is None else "catalog", str(error)) from None


def _iceberg_partitions(table: Table) -> tuple[str, ...]:
    texts = table.texts("partition_by")
    try:
        for text in texts:
            parsed(text)
    except ValueError as error:
        raise table.fail("partition_by", str(error)) from None
    return texts


def _expire_hours(table: Table) -> int | None:
    text = table.text("expire")
    if text is None:
        return None
    found = HOURS.fullmatch(text)
    if found is None or not int(found[1]):
        raise table.fail("expire", f'expected how long snapshots are kept, such as "24 hours" or "7 days", not {text!r}')
    return int(found[1]) * (24 if found[2] == "day" else 1)


def _keys(table: Table, mode: str, such_as: str) -> tuple[str, ...]:
    keys = table.texts("keys")
    if mode == "merge" and not keys:
        raise table.missing("keys", f'merge replaces the row with the same keys: name the columns, such as keys = ["{such_as}"]')
    if mode != "merge" and keys:
        raise table.fail("keys", 'is only for mode = "merge"')
    return keys


def _compaction(table: Table) -> Compaction | None:
    text = table.text("compact")
    if text is None:
        return None
    if (every := EVERY.fullmatch(text)) and int(every[1]):
        return Compaction(every_batches=int(every[1]))
    if (files := FILES.fullmatch(text)) and int(files[1]) > 1:
        return Compaction(files=int(files[1]))
    raise table.fail("compact", f'expected when small files are merged, "every 100 batches" or "at 50 files", not {text!r}')


def _topic(table: Table, view: str) -> Sink:
    mode = table.choice("mode", ("append", "update"))
    inner = table.table("headers", 'names and SQL expressions, such as { source = "_topic" }')
    headers = {name: inner.text(name) for name in inner.values}
    return Sink(
        "topic",
        view,
        mode,
        table.prefix,
        topic=table.text("topic", required="name the topic for the results"),
        key_sql=table.text("key"),
        value_sql=table.text("value"),
        partition_sql=table.text("partition"),
        headers_sql=headers,
        compression=table.choice("compression", CODECS, "none"),
        delivery=table.choice("delivery", ("exactly_once", "at_least_once")),
        **_schemas(table),
    )


def _schemas(table: Table) -> dict[str, Any]:
    """key_format, value_format and registry: records with schemas of a registry."""
    found = {name: table.text(name) for name in ("key_format", "value_format", "registry")}
    for name in ("key_format", "value_format"):
        text = found[name]
        if text is not None and text.partition(":")[0] not in SCHEMA_FORMATS:
            raise table.fail(name, f"expected {', '.join(SCHEMA_FORMATS)}, with a file or message after a colon, not {text!r}")
        if text is not None and found["registry"] is None:
            raise table.fail("registry", f"give the address of the schema registry: {name} needs it")
    return found


def _jdbc(table: Table, view: str) -> Sink:
    mode = table.choice("mode", ("append", "merge"), "append")
    url = table.text("url", required='give the address of the database, such as "jdbc:postgresql://host/name"')
    if not url.startswith("jdbc:"):
        raise table.fail("url", f"expected a JDBC address, such as jdbc:postgresql://host/name, not {url!r}")
    return Sink(
        "jdbc",
        view,
        mode,
        table.prefix,
        keys=_keys(table, mode, "id"),
        url=url,
        table=table.text("table", required="name the table; if it does not exist, it is created with the columns of the first result"),
        driver=table.text(
            "driver", required='name the class of the driver, such as "org.postgresql.Driver", and its jar in [spark] jars = "..."'
        ),
        options=table.settings("options", '{ user = "me" }'),
    )


def read_rules(table: Table, views: tuple[str, ...]) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for inner in table.tables("rule"):
        name = inner.text("name", required="dead letters and errors name the rule")
        if not NAME.fullmatch(name):
            raise inner.fail("name", f"{name!r} is not a valid name; use letters, digits and _")
        if name in (rule.name for rule in rules):
            raise inner.fail("name", f"there is already a rule {name}; choose another name")
        rules.append(
            Rule(
                name,
                inner.choice("on", views, views[0]),
                inner.text("check", required='give a SQL condition for good rows, such as "amount > 0"'),
                inner.choice("action", ("dead_letter", "drop", "fail"), "dead_letter"),
                inner.prefix,
            )
        )
        inner.finish()
    return tuple(rules)


def read_dead_letters(table: Table, storage: StorageDefaults) -> DeadLetters | None:
    if "dead_letters" not in table.values:
        table.read_keys.append("dead_letters")
        return None
    inner = table.table("dead_letters", "path, the directory of a Delta table, or topic")
    if inner.choice("type", ("delta", "iceberg", "topic")) == "iceberg":
        letters = DeadLetters("iceberg", **_iceberg_keys(inner))
        _require_iceberg(inner, letters.sink)
        inner.finish()
        return letters
    (path, options), topic, kind = inner.location("path", storage), inner.text("topic"), inner.text("type")
    if (path is None) == (topic is None) or kind == ("topic" if topic is None else "delta"):
        problem = "set exactly one target for rejected rows: path, the directory of a Delta table, or topic"
        problem += '; for an Iceberg table type = "iceberg"'
        raise inner.misspelled("path", "topic") or inner.fail("path", problem)
    inner.finish()
    return DeadLetters("delta" if topic is None else "topic", path, topic, options)


def check_dead_letters(pipeline: Pipeline) -> None:
    """Raises: PipelineError if rows become dead letters without a target, or a target exists without such rows."""
    sent = [f"{rule.key}action" for rule in pipeline.rules if rule.action == "dead_letter"]
    decodes = [source.decode for source in pipeline.sources if source.decode is not None]
    sent = [f"{decode.key}bad_records" for decode in decodes if decode.bad_records == "dead_letter"] + sent
    if sent and pipeline.dead_letters is None:
        raise pipeline.error(sent[0], 'dead letters have no target; add [dead_letters] with path = "..." or topic = "..."')
    if pipeline.dead_letters is not None and not sent:
        raise pipeline.error("dead_letters", 'is not used; set bad_records = "dead_letter" in [decode], or add a [[rule]] with a check')


def read_trigger(table: Table) -> str:
    trigger = str(table.text("trigger", "1 second"))
    if trigger not in TRIGGERS and not DURATION.fullmatch(trigger):
        raise table.fail("trigger", f'expected {", ".join(TRIGGERS)}, or a time between batches such as "5 seconds", not {trigger!r}')
    return trigger
