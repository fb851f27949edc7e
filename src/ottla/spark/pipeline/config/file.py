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

from ottla.spark.pipeline.config.model import NAME, Functions, Pipeline, Step
from ottla.spark.pipeline.config.sink import read_dead_letters, read_rules, read_sinks, read_trigger, refuse_lost_letters
from ottla.spark.pipeline.config.source import read_sources, read_watermark
from ottla.spark.pipeline.config.spark import read_spark
from ottla.spark.pipeline.config.toml_table import PipelineError, Table
from ottla.spark.pipeline.functions import check

#: What a file has at most. Looked at first: without a table that is misspelt, others lack what it would bring.
KEYS = (
    "name", "bootstrap", "checkpoint", "trigger", "source", "decode", "step", "sink", "rule", "dead_letters", "functions", "spark",
)  # fmt: skip
#: How a query begins, behind comments.
QUERY = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*(?:SELECT|WITH|FROM|VALUES|TABLE)\b", re.IGNORECASE | re.DOTALL)


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
        raise _no_toml(path, text, str(error)) from None
    table = Table(raw, "", path, text, variables)
    table.only(KEYS)
    name = table.text("name", path.stem)
    bootstrap = table.brokers("bootstrap", "127.0.0.1:9092")
    sources = read_sources(table, bootstrap)
    steps = _steps(table, tuple(source.name for source in sources))
    views = (*(source.name for source in sources), *(step.name for step in steps))
    pipeline = Pipeline(
        file=path,
        text=text,
        name=name,
        bootstrap=bootstrap,
        checkpoint=table.place("checkpoint", f".ottla/{name}"),
        trigger=read_trigger(table),
        sources=sources,
        steps=steps,
        sinks=read_sinks(table, views),
        spark=read_spark(table.table("spark", 'settings of Spark, such as { "driver.memory" = "4g" }')),
        functions=_functions(table),
        rules=read_rules(table, views),
        dead_letters=read_dead_letters(table),
    )
    table.finish()
    refuse_lost_letters(pipeline)
    return pipeline


def _no_toml(path: Path, text: str, said: str) -> PipelineError:
    """Where the text stops being TOML, as far as the parser tells."""
    if told := re.search(r" \(at line (\d+), column (\d+)\)$", said):
        return PipelineError(f"{path}:{told[1]}", "", f"is not TOML: {said[: told.start()]} (column {told[2]})")
    if said.endswith("(at end of document)"):
        return PipelineError(f"{path}:{max(1, len(text.splitlines()))}", "", f"is not TOML: {said}")
    return PipelineError(str(path), "", f"is not TOML: {said}")


def _steps(table: Table, sources: tuple[str, ...]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for inner in table.tables("step"):
        name = inner.text("name", required="later steps and sinks use a step by its name")
        if not NAME.fullmatch(name):
            raise inner.fail("name", f"{name!r} is no name for a view; use letters, digits and _")
        if name in sources or name in (step.name for step in steps):
            raise inner.fail("name", f"there is already a view {name}; choose another name")
        sql = inner.text("sql", required=f"give the query, such as SELECT * FROM {sources[0]}")
        if not QUERY.match(sql):
            raise inner.fail("sql", "is no query: begin with SELECT, WITH, FROM, VALUES or TABLE; sinks write results")
        deduplicate = inner.texts("deduplicate")
        within = inner.choice("within", ("watermark",))
        if within and not deduplicate:
            raise inner.fail("within", 'is for deduplicate: say which columns make a row the same, such as deduplicate = ["id"]')
        steps.append(
            Step(name, sql, read_watermark(inner), f"{inner.prefix}sql", inner.lines("sql"), deduplicate, within_watermark=bool(within))
        )
        inner.finish()
    return tuple(steps)


def _functions(table: Table) -> Functions | None:
    inner = table.table("functions", 'module and files, such as { module = "functions.py" }')
    if not inner.values:
        return None
    module = inner.beside("module", inner.text("module", required='name the Python file, such as module = "functions.py"'))
    if not module.stem.isidentifier() or module.suffix != ".py":
        raise inner.fail("module", f"expected a Python file whose name can be imported, such as functions.py, not {module.name!r}")
    files = tuple(inner.beside("files", name) for name in inner.texts("files"))
    inner.finish()
    functions = Functions(module, files)
    check(functions)
    return functions
