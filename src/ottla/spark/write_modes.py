"""Write modes that Spark refuses for a sink in Python, and Spark's own Kafka sink has. Installed by the import of `ottla.spark`.

    write, no mode or error      Spark's Kafka sink appends. Spark refuses the mode for a Python sink; here it is append too
    write, ignore                refused, with the line to write: a topic that has records is the usual case
    writeStream, update          Spark fails the query when it has begun to run. Here the start is refused, with the lines to write

Spark calls no code of a source before it refuses a mode. So the methods of its writers are wrapped, in classic sessions and in Spark
Connect. Writers of other formats are not affected.
"""

import functools
from collections.abc import Callable
from typing import Any

NAME = "ottla"
#: Attributes of a writer: the format and the mode that were set.
FORMAT, MODE = "_ottla_format", "_ottla_mode"
#: The modules of the writers, with the class of each.
WRITERS = {
    "pyspark.sql.readwriter": "DataFrameWriter",
    "pyspark.sql.connect.readwriter": "DataFrameWriter",
    "pyspark.sql.streaming.readwriter": "DataStreamWriter",
    "pyspark.sql.connect.streaming.readwriter": "DataStreamWriter",
}
IGNORE = 'a topic cannot be written with mode ignore: records are always added; write .mode("append").save()'
UPDATE = """Spark does not write output mode update to a sink in Python. Write the batches instead, with the same options:

    def write(batch, number):
        batch.write.format("ottla").options(**options, txnAppId="NAME OF THE QUERY", txnVersion=number).mode("append").save()

    frame.writeStream.outputMode("update").foreachBatch(write).option("checkpointLocation", directory).start()"""


def batch_mode(mode: str | None) -> str:
    """The mode of a batch write to a topic. Raises: ValueError."""
    chosen = (mode or "error").lower()
    if chosen == "ignore":
        raise ValueError(IGNORE)
    return "append" if chosen in ("error", "errorifexists", "default") else chosen


def wrap(cls: type) -> None:
    """Wraps the methods of a writer's class."""
    if cls.__name__ == "DataFrameWriter":
        _remember(cls, "format", FORMAT)
        _remember(cls, "mode", MODE)
        _replace(cls, "save", _save)
    else:
        _remember(cls, "format", FORMAT)
        _remember(cls, "outputMode", MODE)
        _replace(cls, "start", _start)


def _remember(cls: type, name: str, attribute: str) -> None:
    """After a call of the method, its argument is an attribute of the writer."""
    method = getattr(cls, name)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **named: Any) -> Any:
        result = method(self, *args, **named)
        setattr(self, attribute, next(iter((*args, *named.values())), None))
        return result

    setattr(cls, name, wrapped)


def _replace(cls: type, name: str, made: Callable[[Any], Any]) -> None:
    method = getattr(cls, name)
    setattr(cls, name, functools.wraps(method)(made(method)))


def _is_ours(writer: Any, given: str | None) -> bool:
    return str(given or getattr(writer, FORMAT, "")).lower() == NAME


def _save(method: Any) -> Any:
    def save(self: Any, path: str | None = None, format: str | None = None, mode: str | None = None, *args: Any, **options: Any) -> Any:
        if _is_ours(self, format):
            mode = batch_mode(mode or getattr(self, MODE, None))
        return method(self, path, format, mode, *args, **options)

    return save


def _start(method: Any) -> Any:
    def start(
        self: Any, path: str | None = None, format: str | None = None, outputMode: str | None = None, *args: Any, **options: Any
    ) -> Any:
        if _is_ours(self, format) and str(outputMode or getattr(self, MODE, "")).lower() == "update":
            raise ValueError(UPDATE)
        return method(self, path, format, outputMode, *args, **options)

    return start
