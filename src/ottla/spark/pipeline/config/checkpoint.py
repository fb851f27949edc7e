"""Reads `checkpoint` of a pipeline file: a directory, a topic, or a URL of a Hadoop file system.

    checkpoint = "state/visits"            a directory of this machine, all of the checkpoint; also file:///PATH
    checkpoint = "ottla:TOPIC"             a topic; the directory is a working copy of it
    checkpoint = "s3a://BUCKET/PREFIX"     a URL; the directory has Spark's log and a copy of what Ottla reads

Hadoop has one name for each kind of store. The names of other programs, such as `s3://`, are refused with the name to write.
"""

import hashlib
import re
from dataclasses import dataclass

from ottla.base.ids import topic_name_problem
from ottla.base.paths import ADDRESS, NotLocal, local_path, redacted
from ottla.spark.pipeline.config.model import CHECKPOINTS_TOPIC, IN_TOPIC
from ottla.spark.pipeline.config.toml_table import Table

#: Names of pipelines whose checkpoint is in a topic or at a URL.
IN_DIRECTORY = re.compile(r"[\w. -]+")
ABFSS = "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
#: Schemes that Hadoop does not know, and what to write.
INSTEAD = {
    "s3": "s3a://BUCKET/PATH",
    "s3n": "s3a://BUCKET/PATH",
    "gcs": "gs://BUCKET/PATH",
    "az": ABFSS,
    "azure": ABFSS,
    "r2": "s3a://BUCKET/PATH, with hadoop.fs.s3a.endpoint in [spark]",
    "http": "the URL of a file system",
    "https": "the URL of a file system",
}
#: Schemes whose URL has a container or an account before the `@`.
NAMES_CONTAINER = ("abfs", "abfss", "wasb", "wasbs")


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """Where a checkpoint is."""

    directory: str
    topic: str | None = None
    url: str | None = None


def read_checkpoint(table: Table, name: str) -> CheckpointPlace:
    """The place of the checkpoint of the pipeline `name`. Raises: PipelineError."""
    value = table.text("checkpoint", f".ottla/{name}")
    if value.startswith(IN_TOPIC):
        topic = value.removeprefix(IN_TOPIC) or CHECKPOINTS_TOPIC
        if problem := topic_name_problem(topic):
            raise table.fail("checkpoint", f"{problem}; write {IN_TOPIC}TOPIC, or {IN_TOPIC}")
        _require_name(table, name, "records and a directory")
        return CheckpointPlace(f".ottla/{topic}/{name}", topic=topic)
    address = ADDRESS.match(value)
    if address is None or address["scheme"].lower() == "file":
        try:
            return CheckpointPlace(local_path(value))
        except NotLocal as error:
            raise table.fail("checkpoint", str(error)) from None
    scheme = address["scheme"].lower()
    url = _checked_url(table, scheme, value)
    _require_name(table, name, "a directory")
    # Pipelines of the same name with other URLs, such as a test's, have other directories.
    return CheckpointPlace(f".ottla/{scheme}/{name}-{hashlib.sha256(url.encode()).hexdigest()[:8]}", url=url)


def _require_name(table: Table, name: str, what: str) -> None:
    if not IN_DIRECTORY.fullmatch(name) or name in (".", ".."):
        raise table.fail("name", f"{name!r} names {what} of the checkpoint: use letters, digits, '.', '_', '-' and ' '")


def _checked_url(table: Table, scheme: str, value: str) -> str:
    """The URL without a slash at its end. Raises: PipelineError if it is not one of Hadoop's, or has credentials."""
    if scheme in INSTEAD:
        raise table.fail("checkpoint", f"Hadoop's file systems do not know {scheme}://; write {INSTEAD[scheme]}")
    host, _, path = value.partition("://")[2].partition("/")
    user, at, _ = host.rpartition("@")
    if at and (":" in user or scheme not in NAMES_CONTAINER):
        problem = "credentials do not belong into a URL; use the environment variables of the cloud, or settings of [spark]"
        raise table.fail("checkpoint", f"{redacted(value)}: {problem}")
    if re.search(r"[?#*\[\]{}]", value):
        shown = re.split(r"[?#]", value)[0]
        raise table.fail("checkpoint", f"{shown}: a URL with ?, #, *, [], or {{}} names no directory of a Hadoop file system")
    if not host and scheme != "hdfs":
        raise table.fail("checkpoint", f"{value} names no bucket; write {scheme}://BUCKET/PATH")
    if not path.strip("/"):
        raise table.fail("checkpoint", f"{value} has no path; write {value.rstrip('/')}/PATH: a checkpoint has a directory of its own")
    return f"{scheme}://{host}/{path.strip('/')}"
