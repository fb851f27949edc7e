"""What a pipeline file says of Spark: ``[spark]``, read and checked as far as can be told without Spark.

Names are dotted, quoted or as nested tables, and `spark.` in front of them may be left out. Spark looks at most values when it uses them;
those without which it does not start are looked at here, since what it says of them stands in its log and names no line.
"""

import re
from typing import Any

from ottla.base.options import suggestion
from ottla.spark.pipeline.config.toml_table import Table

#: Places where Spark can run; the names of clusters' hosts are theirs.
MASTER = re.compile(
    r"local|local\[([1-9]\d*|\*)(\s*,\s*[1-9]\d*)?\]|local-cluster\[\s*[1-9]\d*\s*,\s*[1-9]\d*\s*,\s*[1-9]\d*\s*\]"
    r"|spark://[^\s,/]+:\d+(,[^\s,/]+:\d+)*|yarn|k8s://\S+"
)
MASTERS = "local, local[N], local[*], local[N,TRIES], local-cluster[N,CORES,MIB], spark://HOST:PORT, yarn or k8s://ADDRESS"
#: Java's own words for the size of its heap: a unit of one letter; a number alone would be bytes.
HEAP = re.compile(r"[1-9]\d*[kmgtKMGT]")
SIZE = re.compile(r"\d+(b|[kmgtp]b?)?", re.IGNORECASE)
SIZES = (
    "spark.driver.maxResultSize", "spark.driver.memoryOverhead", "spark.executor.memory", "spark.executor.memoryOverhead",
    "spark.executor.pyspark.memory", "spark.memory.offHeap.size", "spark.python.worker.memory",
)  # fmt: skip


def read_spark(table: Table) -> dict[str, str]:
    """Settings by their whole names. Raises: PipelineError."""
    settings: dict[str, str] = {}

    def collect(written: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                collect(f"{written}.{name}", item)
            return
        name = written if written.startswith("spark.") else f"spark.{written}"
        settings[name] = _text(table, written, value)
        _check(table, written, name, settings[name])

    for name in table.values:
        collect(name, table.get(name))
    return settings


def _text(table: Table, written: str, value: Any) -> str:
    if isinstance(value, list):
        raise table.fail(written, f"expected one text, with commas where there are several things, not {value!r}")
    if not isinstance(value, str | int | float | bool):
        raise table.fail(written, f"expected a text, a number, true or false, not {value!r}")
    return str(value).lower() if isinstance(value, bool) else str(table.filled(written, value))


def _check(table: Table, written: str, name: str, value: str) -> None:
    if name == "spark.master" and not MASTER.fullmatch(value):
        near = suggestion(value, ("local", "local[*]", "yarn"))
        raise table.fail(written, f"expected where Spark runs, {MASTERS}, not {value!r}{near}")
    if name == "spark.driver.memory" and not HEAP.fullmatch(value):
        raise table.fail(written, f'expected a size as Java writes it, a whole number and k, m, g or t, such as "4g", not {value!r}')
    if name in SIZES and not SIZE.fullmatch(value):
        raise table.fail(written, f'expected a size, a whole number and its unit, such as "512m" or "4g", not {value!r}')
