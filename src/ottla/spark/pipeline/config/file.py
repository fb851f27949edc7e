"""Reads and checks a pipeline file. Pure, except for the read of the file and of profiles.

    name = "requests"                             [decode]                             [[sink]]
    bootstrap = "127.0.0.1:9092"                  format = "json"                      type = "delta"
    checkpoint = "state/requests"                 fields = { user = "string" }         path = "tables/requests"
    trigger = "1 second"                          [[step]]                             mode = "merge"
    [source]                                      name = "by_user"                     keys = ["user"]
    topic = "requests"                            sql = "SELECT user, count(*) ..."

`${name}` or `${name:-default}` in a string is replaced by a variable of the command line, else of the environment.
All keys are checked before anything runs. An error names the file, the line, the key, and what to do.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ottla.base.options import ConfigError, suggestion
from ottla.client.profiles import DEFAULT_BOOTSTRAP
from ottla.spark.cluster_profile import profile_cluster
from ottla.spark.pipeline.config.checkpoint import read_checkpoint
from ottla.spark.pipeline.config.kafka import read_kafka
from ottla.spark.pipeline.config.model import NAME, Functions, Pipeline, Step
from ottla.spark.pipeline.config.sink import check_dead_letters, read_dead_letters, read_rules, read_sinks, read_trigger
from ottla.spark.pipeline.config.source import read_sources, read_watermark
from ottla.spark.pipeline.config.spark import read_spark
from ottla.spark.pipeline.config.toml_table import PipelineError, StorageDefaults, Table
from ottla.spark.pipeline.functions import check, kinds

#: The known tables and keys. Checked first: otherwise a misspelled table would cause misleading errors about others.
KEYS = (
    "name", "bootstrap", "profile", "checkpoint", "trigger", "source", "decode", "step", "sink", "rule", "dead_letters", "functions",
    "spark", "kafka", "storage", "test",
)  # fmt: skip
#: An example for errors.
COLUMNS = 'columns = "id STRING, score DOUBLE"'
#: The beginning of a query, after comments.
QUERY = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*(?:SELECT|WITH|FROM|VALUES|TABLE)\b", re.IGNORECASE | re.DOTALL)


def load(path: Path, variables: Mapping[str, str] | None = None, *, profile: str | None = None) -> Pipeline:
    """The pipeline in a file; `profile` replaces its cluster by that of a profile. Raises: PipelineError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PipelineError(str(path), "", f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise PipelineError(str(path), "", "is not UTF-8 text") from None
    return parse(text, path, {**os.environ, **(variables or {})}, profile=profile)


def parse(text: str, path: Path, variables: Mapping[str, str], *, profile: str | None = None) -> Pipeline:
    """The pipeline in `text`, the content of `path`. Raises: PipelineError."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _invalid_toml(path, text, str(error)) from None
    table = Table(raw, "", path, text, variables)
    table.allow_only(KEYS)
    name = table.text("name", path.stem)
    own = read_kafka(table.table("kafka", 'settings of clients, such as { security.protocol = "SSL" }'))
    bootstrap, inherited, by_kind = _cluster(table, profile)
    kafka = {**inherited, **own}
    given = table.settings("storage", '{ endpoint = "https://minio.example:9000" }')
    storage = StorageDefaults(given if "storage" in raw else None, by_kind)
    sources = read_sources(table, bootstrap, kafka, storage)
    steps = _steps(table, tuple(source.name for source in sources))
    views = (*(source.name for source in sources), *(step.name for step in steps))
    place = read_checkpoint(table, name)
    pipeline = Pipeline(
        file=path,
        text=text,
        name=name,
        bootstrap=bootstrap,
        checkpoint=place.directory,
        checkpoint_topic=place.topic,
        checkpoint_url=place.url,
        trigger=read_trigger(table),
        sources=sources,
        steps=steps,
        sinks=read_sinks(table, views, storage),
        spark=read_spark(table.table("spark", 'settings of Spark, such as { "driver.memory" = "4g" }')),
        functions=_functions(table),
        rules=read_rules(table, views),
        dead_letters=read_dead_letters(table, storage),
        kafka=kafka,
    )
    # Tests are read by `ottla pipeline test` (cases.py).
    table.read_keys.append("test")
    table.finish()
    check_dead_letters(pipeline)
    _check_step_functions(pipeline)
    return pipeline


def _cluster(table: Table, profile: str | None) -> tuple[str, dict[str, str], Mapping[str, Mapping[str, str]]]:
    """Brokers, settings of their clients as options, and options of object stores by kind: those of the file, else of a profile or the
    environment. Raises: PipelineError.
    """
    own, named = table.brokers("bootstrap"), table.text("profile")
    if own and named:
        raise table.fail("profile", "is given besides bootstrap; keep one of them")
    if own and profile is None:
        return own, {}, {}
    try:
        cluster = profile_cluster(profile or named)
    except ConfigError as error:
        raise table.fail("profile" if named and profile is None else "", str(error)) from None
    if cluster is None:
        return DEFAULT_BOOTSTRAP, {}, {}
    return cluster.bootstrap, {f"kafka.{name}": value for name, value in cluster.settings.items()}, cluster.storage


def _invalid_toml(path: Path, text: str, message: str) -> PipelineError:
    """The parser's error, with its line if reported."""
    if position := re.search(r" \(at line (\d+), column (\d+)\)$", message):
        return PipelineError(f"{path}:{position[1]}", "", f"is not TOML: {message[: position.start()]} (column {position[2]})")
    if message.endswith("(at end of document)"):
        return PipelineError(f"{path}:{max(1, len(text.splitlines()))}", "", f"is not TOML: {message}")
    return PipelineError(str(path), "", f"is not TOML: {message}")


def _steps(table: Table, sources: tuple[str, ...]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for inner in table.tables("step"):
        name = inner.text("name", required="later steps and sinks use a step by its name")
        if not NAME.fullmatch(name):
            raise inner.fail("name", f"{name!r} is not a valid view name; use letters, digits and _")
        if name in sources or name in (step.name for step in steps):
            raise inner.fail("name", f"there is already a view {name}; choose another name")
        sql = inner.text("sql", required=f"give the query, such as SELECT * FROM {sources[0]}")
        if not QUERY.match(sql):
            raise inner.fail("sql", "is not a query: begin with SELECT, WITH, FROM, VALUES or TABLE; sinks write results")
        deduplicate = inner.texts("deduplicate")
        within = inner.choice("within", ("watermark",))
        if within and not deduplicate:
            raise inner.fail("within", 'needs deduplicate: name the columns that identify a row, such as deduplicate = ["id"]')
        function = inner.text("function")
        columns = inner.text("columns", required=f"declare what {function} returns, such as {COLUMNS}" if function else "")
        if columns and not function:
            raise inner.fail("columns", f"is for a step with a function; a query has its own columns, as in {sql.split()[0]} id, score")
        watermark, key, lines = read_watermark(inner), f"{inner.prefix}sql", inner.lines("sql")
        steps.append(Step(name, sql, watermark, key, lines, deduplicate, bool(within), function, columns))
        inner.finish()
    return tuple(steps)


def _check_step_functions(pipeline: Pipeline) -> None:
    """Raises: PipelineError for a step with a function that the module does not have, or that is none of record batches."""
    known = kinds(pipeline.functions) if pipeline.functions is not None else {}
    for step in pipeline.steps:
        if step.function is None:
            continue
        key = f"{step.prefix}function"
        if pipeline.functions is None:
            raise pipeline.error(key, f'needs [functions] with module, the file of {step.function}, such as module = "functions.py"')
        module = pipeline.functions.module.name
        if step.function not in known:
            listed = ", ".join(name for name, kind in known.items() if kind == "batches") or "none"
            raise pipeline.error(
                key, f"{module} has no function {step.function}{suggestion(step.function, known)}; of record batches: {listed}"
            )
        if known[step.function] != "batches":
            written = f"write def {step.function}(batch: pa.RecordBatch) -> pa.RecordBatch: in {module}, or use it in the SQL"
            raise pipeline.error(key, f"{step.function} is a function of SQL, not of record batches; {written}")


def _functions(table: Table) -> Functions | None:
    inner = table.table("functions", 'module and files, such as { module = "functions.py" }')
    if not inner.values:
        return None
    module = inner.companion_file("module", inner.text("module", required='name the Python file, such as module = "functions.py"'))
    if not module.stem.isidentifier() or module.suffix != ".py":
        raise inner.fail("module", f"expected a Python file with an importable name, such as functions.py, not {module.name!r}")
    files = tuple(inner.companion_file("files", name) for name in inner.texts("files"))
    inner.finish()
    functions = Functions(module, files)
    check(functions)
    return functions
