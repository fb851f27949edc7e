"""Reads and checks ``[spark]`` of a pipeline file.

Names are dotted, quoted or nested tables; the prefix `spark.` is optional. `packages` is a list for `spark.jars.packages`. Spark checks
most values when it uses them. Values that prevent its start are checked here, since Spark's error is in its log and names no line. Names
are checked when Spark runs (`check_names`): it accepts any name, so an unknown name that is close to a known one is an error; other names
may belong to third parties.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ottla.base.options import suggestion
from ottla.spark.connector_settings import no_effect
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import Table

#: Spark's master URLs; host names are not checked.
MASTER = re.compile(
    r"local|local\[([1-9]\d*|\*)(\s*,\s*[1-9]\d*)?\]|local-cluster\[\s*[1-9]\d*\s*,\s*[1-9]\d*\s*,\s*[1-9]\d*\s*\]"
    r"|spark://[^\s,/]+:\d+(,[^\s,/]+:\d+)*|yarn|k8s://\S+"
)
MASTERS = "local, local[N], local[*], local[N,TRIES], local-cluster[N,CORES,MIB], spark://HOST:PORT, yarn or k8s://ADDRESS"
#: Java's format of a heap size: a unit of one letter; a number without unit would be bytes.
HEAP = re.compile(r"[1-9]\d*[kmgtKMGT]")
SIZE = re.compile(r"\d+(b|[kmgtp]b?)?", re.IGNORECASE)
SIZES = (
    "spark.driver.maxResultSize", "spark.driver.memoryOverhead", "spark.executor.memory", "spark.executor.memoryOverhead",
    "spark.executor.pyspark.memory", "spark.memory.offHeap.size", "spark.python.worker.memory",
)  # fmt: skip

#: A list of Maven coordinates, for `spark.jars.packages`.
PACKAGES = "spark.packages"
PACKAGE = re.compile(r"[^\s:,]+:[^\s:,]+:[^\s:,]+")
EXAMPLE_PACKAGE = "org.apache.hadoop:hadoop-aws:3.5.0"
#: Names of settings whose values are not shown.
SECRET = re.compile(r"secret|password|token|access\.?key|account\.?key|\.key\b|sas|credential|private", re.IGNORECASE)
#: Shorter values are too common in texts to be hidden.
SECRET_LENGTH_MIN = 4
#: Similarity to a known name that makes an unknown one an error: a letter or two.
LIKENESS = 0.88
#: Settings that are not for SQL, which Spark does not list.
COMMON = """
spark.app.name spark.archives spark.cores.max spark.default.parallelism spark.driver.cores spark.driver.extraClassPath
spark.driver.extraJavaOptions spark.driver.host spark.driver.maxResultSize spark.driver.memory spark.driver.memoryOverhead
spark.driver.port spark.dynamicAllocation.enabled spark.eventLog.enabled spark.executor.cores spark.executor.extraJavaOptions
spark.executor.instances spark.executor.memory spark.executor.memoryOverhead spark.executor.pyspark.memory spark.files spark.jars
spark.jars.packages spark.local.dir spark.master spark.memory.fraction spark.network.timeout spark.pyspark.python
spark.python.worker.memory spark.python.worker.reuse spark.scheduler.mode spark.serializer spark.speculation
spark.sql.streaming.stateStore.providerClass spark.submit.pyFiles
spark.task.cpus spark.task.maxFailures spark.ui.enabled spark.ui.port
"""
#: Settings of RocksDB as state store. Spark does not list them, ignores unknown ones, and reads names in any case of letters.
ROCKSDB = "spark.sql.streaming.stateStore.rocksdb."
ROCKSDB_NAMES = """
allowFAllocate blockCacheSizeMB blockSizeKB boundedMemoryUsage changelogCheckpointing.enabled checkStaleReusedFilesInSnapshot
compactOnCommit compression formatVersion highPriorityPoolRatio lockAcquireTimeoutMs maxMemoryUsageMB maxOpenFiles maxWriteBufferNumber
memoryUpdateIntervalMs mergeOperatorVersion resetStatsOnLoad trackTotalNumberOfRows verifyNonEmptyFilesInZip writeBufferCacheRatio
writeBufferSizeMB
"""


def read_spark(table: Table) -> dict[str, str]:
    """Settings by their full names. Raises: PipelineError."""
    settings: dict[str, str] = {}

    def collect(written: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                collect(f"{written}.{name}", item)
            return
        name = written if written.startswith("spark.") else f"spark.{written}"
        if name == PACKAGES:
            settings["spark.jars.packages"] = _packages(table, written, value)
            return
        if isinstance(value, list):
            raise table.fail(written, f"expected one text, with commas between several values, not {value!r}")
        settings[name] = table.plain(written, value)
        _check(table, written, name, settings[name])

    for name in table.values:
        collect(name, table.get(name))
    return settings


def _packages(table: Table, written: str, value: Any) -> str:
    """The packages as Spark writes them, with commas. Raises: PipelineError."""
    if "spark.jars.packages" in {name if name.startswith("spark.") else f"spark.{name}" for name in table.values}:
        raise table.fail(written, "is given besides jars.packages, which is the same; keep one of them")
    if not isinstance(value, list) or not value:
        raise table.fail(written, f'expected a list of texts, such as ["{EXAMPLE_PACKAGE}"], not {value!r}')
    packages = [table.plain(written, one) for one in value]
    for one in packages:
        if not PACKAGE.fullmatch(one):
            raise table.fail(written, f'expected packages as GROUP:NAME:VERSION, such as "{EXAMPLE_PACKAGE}", not {one!r}')
    return ",".join(packages)


def _check(table: Table, written: str, name: str, value: str) -> None:
    if (reason := no_effect(name)) is not None:
        raise table.fail(written, f"has no effect on a pipeline: {reason}. Leave it out")
    if name == "spark.master" and not MASTER.fullmatch(value):
        near = suggestion(value, ("local", "local[*]", "yarn"))
        raise table.fail(written, f"expected where Spark runs, {MASTERS}, not {value!r}{near}")
    if name == "spark.driver.memory" and not HEAP.fullmatch(value):
        raise table.fail(written, f'expected a size as Java writes it, a whole number and k, m, g or t, such as "4g", not {value!r}')
    if name in SIZES and not SIZE.fullmatch(value):
        raise table.fail(written, f'expected a size, a whole number and its unit, such as "512m" or "4g", not {value!r}')


def secrets_in(settings: Mapping[str, str]) -> list[str]:
    """The values of settings whose names look like secrets, the longest first."""
    found = {value for name, value in settings.items() if SECRET.search(name) and len(value) >= SECRET_LENGTH_MIN}
    return sorted(found, key=len, reverse=True)


def hidden(text: str, secrets: list[str]) -> str:
    """The text without the secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def check_names(pipeline: Pipeline, session: Any) -> None:
    """Raises: PipelineError for an unknown name that is close to one of Spark's."""
    names = [name for name in pipeline.spark if not _known(session, name)]
    if not names:
        return
    known = [*COMMON.split(), *(row["key"] for row in session.sql("SET -v").collect())]
    for name in names:
        near = _near_rocksdb(name) if name.startswith(ROCKSDB) else get_close_matches(name, known, n=1, cutoff=LIKENESS)
        if near and name not in known:
            raise pipeline.error(name, f"is not a Spark setting; did you mean {near[0]}?")


def _near_rocksdb(name: str) -> list[str]:
    """The setting of RocksDB that a name is close to, if it is none. The prefix does not count: it makes all names alike."""
    known = {one.lower(): f"{ROCKSDB}{one}" for one in ROCKSDB_NAMES.split()}
    wanted = name.removeprefix(ROCKSDB).lower()
    return [known[one] for one in get_close_matches(wanted, known, n=1, cutoff=LIKENESS) if wanted not in known]


def _known(session: Any, name: str) -> bool:
    return session._jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(name) is not None
