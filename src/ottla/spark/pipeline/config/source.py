"""Reads and checks the sources of a pipeline file: one ``[source]``, or several ``[[source]]``.

topic   an endless stream of records; `decode` turns them into columns
files   csv, json, parquet, text or orc: the files at the start, or with `stream = true` also each new file
delta   the version of a Delta table at the start of a batch
"""

from collections.abc import Mapping

from ottla.spark.pipeline.config.decode import read_decode
from ottla.spark.pipeline.config.model import DURATION, NAME, RECORDS, Decode, Source, Watermark
from ottla.spark.pipeline.config.toml_table import StorageDefaults, Table
from ottla.spark.source.options import OptionError, SourceOptions

TYPES = ("topic", "files", "delta")
FORMATS = ("csv", "json", "parquet", "text", "orc")
ENDINGS = {"csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet", "txt": "text", "orc": "orc"}
#: Examples for error messages.
SOURCE = 'topic and more, such as { topic = "orders" }'
DECODE = 'format and what belongs to it, such as { format = "json", fields = { user = "string" } }'
#: The keys of each type.
OF_TYPE = {
    "topic": ("topic", "topics", "pattern", "start", "bootstrap", "decode"),
    "files": ("path", "format", "schema", "stream", "options"),
    "delta": ("path", "storage"),
}


def read_sources(table: Table, bootstrap: str, kafka: Mapping[str, str], storage: StorageDefaults) -> tuple[Source, ...]:
    """Every source; `table` is the whole file, `kafka` its settings of clients, `storage` of object stores. Raises: PipelineError."""
    if isinstance(table.values.get("source"), list):
        tables = tuple(table.tables("source"))
    else:
        tables = (table.table("source", SOURCE, required="name the topic: [source] with topic = ..."),)
    outer = read_decode(table.table("decode", DECODE)) if "decode" in table.values else None
    table.read_keys.append("decode")
    if outer is not None and len(tables) > 1:
        raise table.fail("decode", "is ambiguous with several sources; write [source.decode] below its [[source]]")
    sources: list[Source] = []
    for inner in tables:
        alone = RECORDS if len(tables) == 1 else None
        name = inner.text("name", alone, required="several sources need names: steps use them as views")
        if not NAME.fullmatch(name):
            raise inner.fail("name", f"{name!r} is not a valid view name; use letters, digits and _")
        if name in (source.name for source in sources):
            raise inner.fail("name", f"there is already a view {name}; choose another name")
        sources.append(_source(inner, name, outer, {"kafka.bootstrap.servers": bootstrap, **kafka}, storage))
        inner.finish()
    return tuple(sources)


def read_watermark(table: Table) -> Watermark | None:
    if "watermark" not in table.values:
        table.read_keys.append("watermark")
        return None
    inner = table.table("watermark", 'column and delay, such as { column = "at", delay = "10 seconds" }')
    column = inner.text("column", required="name the column that holds the time of each record")
    delay = inner.text("delay", required='set how late a record may be, such as "10 seconds"')
    if not DURATION.fullmatch(delay):
        raise inner.fail("delay", f'expected a number and a unit, such as "10 seconds" or "5 minutes", not {delay!r}')
    inner.finish()
    return Watermark(column, delay)


def _source(table: Table, name: str, outer: Decode | None, brokers: Mapping[str, str], storage: StorageDefaults) -> Source:
    kind = table.choice("type", (*TYPES, "table"), "topic")
    kind = "delta" if kind == "table" else kind
    for other, keys in OF_TYPE.items():
        for key in keys:
            if key in table.values and other != kind and key not in OF_TYPE[kind] and not (kind == "topic" and key == "options"):
                raise table.misspelled("type") or table.fail(key, f'is only for a source of type = "{other}"; this one is {kind}')
    if kind != "topic" and outer is not None:
        raise table.fail("type", "[decode] applies to topics only: files and tables have columns; leave it out")
    watermark = read_watermark(table)
    table.read_keys += (*OF_TYPE[kind], *(("options",) if kind == "topic" else ()))
    match kind:
        case "topic":
            return _topic(table, name, outer, brokers, watermark)
        case "files":
            return _files(table, name, watermark)
        case _:
            path, options = table.location("path", storage, required="name the directory of the table")
            return Source(name, table.prefix, "delta", watermark=watermark, path=path, storage=options, stream=False)


def _topic(table: Table, name: str, outer: Decode | None, brokers: Mapping[str, str], watermark: Watermark | None) -> Source:
    topic, topics, pattern = table.text("topic"), table.texts("topics"), table.text("pattern")
    if sum(map(bool, (topic, topics, pattern))) != 1:
        error = table.fail("topic", "set exactly one of topic, topics and pattern")
        raise error if topic or topics or pattern else table.misspelled("topic", "topics", "pattern") or error
    start = table.choice("start", ("earliest", "latest"), "earliest")
    options = {"subscribePattern": pattern} if pattern else {"subscribe": topic or ",".join(topics)}
    options["startingOffsets"] = start
    options |= table.settings("options", "{ maxOffsetsPerTrigger = 10000 }")
    for option in table.values.get("options", {}):
        if option.lower().startswith("value") or option == "schema.registry.url":
            raise table.fail(f"options.{option}", "belongs in [decode], as format and its keys")
        if option.lower() == "includeheaders":
            raise table.fail(f"options.{option}", "belongs in [decode]: headers = true adds the column _headers")
    own = table.brokers("bootstrap")
    try:
        SourceOptions.of({**({"kafka.bootstrap.servers": own} if own else brokers), **options}, streaming=True)
    except OptionError as error:
        if error.name in table.values.get("options", {}):
            raise table.fail(f"options.{error.name}", str(error).removeprefix(f"option {error.name}: ")) from None
        raise table.fail("pattern" if error.name == "subscribePattern" else "options", str(error)) from None
    inner = table.table("decode", DECODE)
    if outer is not None and inner.values:
        raise table.fail("decode", "is set twice: as [decode] and here; keep one")
    decode = outer or read_decode(inner)
    return Source(name, table.prefix, "topic", options, watermark, decode, own)


def _files(table: Table, name: str, watermark: Watermark | None) -> Source:
    path = table.local_path("path", required='name the files, such as "logs/*.csv"')
    ending = path.rpartition(".")[2].lower() if "." in path else ""
    form = table.choice("format", FORMATS, ENDINGS.get(ending), required=f"name the format of the files: {', '.join(FORMATS)}")
    schema, stream = table.text("schema"), table.flag("stream", False)
    if schema and form == "text":
        raise table.fail("schema", "text has one column, value; leave the schema out")
    if stream and not schema and form != "text":
        raise table.missing("schema", 'a stream of files needs its columns in advance, such as "user STRING, n BIGINT"')
    options = table.settings("options", "{ header = false }")
    if form == "csv":
        options = {"header": "true", **({"sep": "\t"} if ending == "tsv" else {}), **options}
        options |= {} if schema or "inferSchema" in options else {"inferSchema": "true"}
    return Source(name, table.prefix, "files", options, watermark, path=path, format=form, schema=schema, stream=stream)
