"""Names of `[spark]`, looked up in what Spark knows: a setting misspelt in silence is a setting without effect.

Spark takes any name. One that it does not know, and that is nearly one of those it does, is refused; others may be somebody's own.
"""

from difflib import get_close_matches
from typing import Any

from ottla.spark.pipeline.config.model import Pipeline

#: How like a known name an unknown one must be: a letter or two.
LIKENESS = 0.88
#: Of those that are not for SQL, which Spark does not list.
COMMON = """
spark.app.name spark.archives spark.cores.max spark.default.parallelism spark.driver.cores spark.driver.extraClassPath
spark.driver.extraJavaOptions spark.driver.host spark.driver.maxResultSize spark.driver.memory spark.driver.memoryOverhead
spark.driver.port spark.dynamicAllocation.enabled spark.eventLog.enabled spark.executor.cores spark.executor.extraJavaOptions
spark.executor.instances spark.executor.memory spark.executor.memoryOverhead spark.executor.pyspark.memory spark.files spark.jars
spark.jars.packages spark.local.dir spark.master spark.memory.fraction spark.network.timeout spark.pyspark.python
spark.python.worker.memory spark.python.worker.reuse spark.scheduler.mode spark.serializer spark.speculation spark.submit.pyFiles
spark.task.cpus spark.task.maxFailures spark.ui.enabled spark.ui.port
"""


def check(pipeline: Pipeline, session: Any) -> None:
    """Raises: PipelineError for a name that is nearly one of Spark's."""
    names = [name for name in pipeline.spark if not _known(session, name)]
    if not names:
        return
    known = [*COMMON.split(), *(row["key"] for row in session.sql("SET -v").collect())]
    for name in names:
        near = get_close_matches(name, known, n=1, cutoff=LIKENESS)
        if near and name not in known:
            raise pipeline.error(name, f"is no setting of Spark; did you mean {near[0]}?")


def _known(session: Any, name: str) -> bool:
    return session._jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(name) is not None
