"""The sinks of a pipeline file: ``[[sink]]``, read and checked."""

from ottla.spark.pipeline.model import Sink
from ottla.spark.pipeline.table import Table


def read_sinks(table: Table, views: tuple[str, ...]) -> tuple[Sink, ...]:
    sinks = tuple(_sink(inner, views) for inner in table.tables("sink"))
    if not sinks:
        raise table.fail("sink", 'is missing; say where results go: [[sink]] with type = "delta", "topic" or "console"')
    return sinks


def _sink(table: Table, views: tuple[str, ...]) -> Sink:
    kind = table.choice("type", ("delta", "topic", "console"), required="say where results go: delta, topic or console")
    view = table.choice("from", views, views[-1])
    if kind == "delta":
        mode = table.choice("mode", ("append", "merge", "replace"), "append")
        path = table.text("path", required="say in which directory the table is")
        keys = table.texts("keys")
        if mode == "merge" and not keys:
            raise table.fail(
                "keys", 'is missing; merge replaces the row with the same keys: name the columns, such as keys = ["window_start"]'
            )
        if mode != "merge" and keys:
            raise table.fail("keys", 'is only for mode = "merge"')
        sink = Sink(kind, view, mode, table.prefix, path=path, keys=keys)
    elif kind == "topic":
        mode = table.choice("mode", ("append", "update"))
        topic = table.text("topic", required="name the topic that results go to")
        codec = table.choice("compression", ("none", "gzip", "snappy", "lz4", "zstd"), "none")
        sink = Sink(kind, view, mode, table.prefix, topic=topic, key_sql=table.text("key"), compression=codec)
    else:
        mode = table.choice("mode", ("append", "update", "replace"))
        sink = Sink(kind, view, mode, table.prefix, rows=table.number("rows", 20))
    table.finish()
    return sink
