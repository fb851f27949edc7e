"""Files of a checkpoint at a URL: through Spark's Hadoop file systems, or read without Java where that is possible.

    HadoopFiles    any URL, reads and writes, through the JVM of a session
    StoreFiles     object stores, reads only, by `ottla.lake.storage`: for commands that need no Java

A write is visible as a whole or not at all: an object is created when its stream is closed, and elsewhere a temporary file is renamed over
the old one, which a `FileContext` of Hadoop does in one step. Names are relative to the URL, with `/`.

Errors never contain values of settings that look like secrets: Hadoop may quote a setting that it cannot use.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from ottla.lake.storage import Location
from ottla.spark.pipeline.config.spark import hidden, secrets_in

#: File systems that create an object when its stream is closed. Their rename is a copy.
OBJECT_STORES = ("s3a", "gs", "oss", "obs", "cosn")
#: The package of a file system in Hadoop's releases, by scheme.
PACKAGES = {
    "s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure", "wasb": "hadoop-azure", "wasbs": "hadoop-azure",
    "gs": "hadoop-gcp", "oss": "hadoop-aliyun", "obs": "hadoop-huaweicloud", "cosn": "hadoop-cos",
}  # fmt: skip
#: Java's classes of errors that a repetition does not mend.
LASTING = (
    "AccessDeniedException", "AccessControlException", "UnknownStoreException", "UnsupportedFileSystemException", "ClassNotFoundException",
    "CredentialInitializationException", "NoAuthWithAWSException", "IllegalArgumentException", "NoClassDefFoundError",
    "InvalidConfigurationException", "FileNotFoundException", "PathIOException",
)  # fmt: skip
NO_CLASS = re.compile(r"ClassNotFoundException: Class (?P<name>\S+) not found|NoClassDefFoundError: (?P<part>\S+)")
NO_SCHEME = re.compile(r'No FileSystem for scheme "(?P<scheme>[^"]+)"')


class ReadableFiles(Protocol):
    """The files below a URL."""

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is none. Raises: OSError."""

    def entries(self, name: str) -> dict[str, bool]:
        """The names in a directory, and whether each is a directory; empty if there is none. Raises: OSError."""


class FilesUnusable(OSError):
    """The file system refuses a request, or Spark does not know it. A repetition does not help."""


class FilesUnreachable(OSError):
    """The file system does not answer, or with an error of its own. The same request may succeed later."""


class HadoopFiles:
    """The files below `url`, through a session's JVM."""

    def __init__(self, session: Any, url: str, settings: Mapping[str, str]) -> None:
        """`settings`: those of Spark; values of secrets are hidden in errors. Raises: FilesUnusable, FilesUnreachable."""
        self._jvm = session._jvm
        self._new_array = session.sparkContext._gateway.new_array
        self._url = url
        self._secrets = secrets_in(settings)
        with self._reported(""):
            self._conf = session._jsparkSession.sessionState().newHadoopConf()
            root = self._jvm.org.apache.hadoop.fs.Path(url)
            self._files = root.getFileSystem(self._conf)
            # `hdfs:///a` is in the default file system, whose host a FileContext does not look up.
            self._root = self._files.makeQualified(root)
            self._context = None if url.partition(":")[0] in OBJECT_STORES else self._renaming()

    def read(self, name: str) -> bytes | None:
        with self._reported(name):
            try:
                stream = self._files.open(self._path(name))
            except Py4JJavaError as error:
                if _is_missing(error):
                    return None
                raise
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def entries(self, name: str) -> dict[str, bool]:
        with self._reported(name):
            try:
                found = self._files.listStatus(self._path(name))
            except Py4JJavaError as error:
                if _is_missing(error):
                    return {}
                raise
            return {str(one.getPath().getName()): bool(one.isDirectory()) for one in found}

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file atomically. Raises: OSError."""
        with self._reported(name):
            if self._context is None:
                self._create(self._path(name), data)
                return
            unfinished, path = self._path(f".{name}.{uuid.uuid4().hex}"), self._path(name)
            self._create(unfinished, data)
            rename = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
            options = self._new_array(rename, 1)
            options[0] = rename.OVERWRITE
            self._context.rename(unfinished, path, options)

    def remove(self, name: str) -> None:
        """Removes a file, or a directory with its content; a missing one is no error. Raises: OSError."""
        with self._reported(name):
            self._files.delete(self._path(name), True)

    def _create(self, path: Any, data: bytes) -> None:
        stream = self._files.create(path, True)
        try:
            stream.write(data)
        finally:
            stream.close()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

    def _renaming(self) -> Any:
        """A `FileContext`; None for a file system that has none, such as one of a third party."""
        try:
            return self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), self._conf)
        except (Py4JJavaError, PySparkException) as error:
            if "UnsupportedFileSystemException" in _text_of(error):
                return None
            raise

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Java's errors of the block, as one sentence. Raises: FilesUnusable, FilesUnreachable."""
        try:
            yield
        except (Py4JJavaError, PySparkException) as error:
            text = _text_of(error)
            missing = self._missing(text)
            if missing is not None:
                raise FilesUnusable(missing) from None
            where = f"{self._url}/{name}".rstrip("/")
            kind = FilesUnusable if any(one in text for one in LASTING) else FilesUnreachable
            raise kind(f"{where}: {hidden(cause(text), self._secrets)}") from None

    def _missing(self, text: str) -> str | None:
        """What to write if Spark does not have the file system; None for another error."""
        absent, unknown = NO_CLASS.search(text), NO_SCHEME.search(text)
        if absent is None and unknown is None:
            return None
        scheme = self._url.partition(":")[0]
        package = PACKAGES.get(scheme)
        if package is None:
            return (
                f"Spark has no file system for {scheme}://; name the package that has it in packages of [spark], and its class in"
                f" hadoop.fs.{scheme}.impl, unless the package does"
            )
        version = self._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
        lacks = f" ({absent['name'] or absent['part']} is missing)" if absent is not None else ""
        return (
            f'Spark has no file system for {scheme}://{lacks}; write below [spark]: packages = ["org.apache.hadoop:{package}:{version}"]'
            f" ({version} is the Hadoop of this Spark)"
        )


class StoreFiles:
    """The files below a prefix of an object store, to read."""

    def __init__(self, place: Location) -> None:
        self._place = place

    def read(self, name: str) -> bytes | None:
        found = self._place.read(name)
        return None if found is None else found[0]

    def entries(self, name: str) -> dict[str, bool]:
        return self._place.children(name)


def _text_of(error: Exception) -> str:
    """Java's exception with its causes, one a line."""
    exception = getattr(error, "java_exception", None)
    lines: list[str] = []
    while exception is not None and len(lines) < 10:
        lines.append(str(exception.toString()))
        exception = exception.getCause()
    return "\n".join(lines) or str(error)


def _is_missing(error: Py4JJavaError) -> bool:
    return str(error.java_exception.getClass().getName()) == "java.io.FileNotFoundException"


def cause(text: str) -> str:
    """The first line of Java's exceptions without classes, the file's name, and what Amazon's SDK repeats."""
    line = re.sub(r" \(SDK Attempt Count: \d+\)", "", text.splitlines()[0])
    line = re.sub(r" \(Service: \w+, Status Code: (\d+)[^)]*\)", r" (status \1)", line)
    line = re.sub(r"^(?:(?:[\w$]+\.)+[\w$]+: |`[^']*': |\w+ on \S+: )*", "", line)
    # MESSAGE:CODE: MESSAGE
    repeated = re.fullmatch(r"(.*):[A-Z]\w+: \1", line)
    return repeated[1] if repeated else line
