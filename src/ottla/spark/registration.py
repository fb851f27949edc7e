"""Makes ``format("ottla")`` known to every Spark session of this process, whichever Python the PATH names.

Spark finds sources by itself: its JVM starts `PYSPARK_DRIVER_PYTHON`, `PYSPARK_PYTHON` or else the `python3` of the PATH, and looks there
for modules named ``pyspark_*``. A virtual environment whose Python is run by its full path is not on the PATH, so that Python has no
package ottla, and Spark raises DATA_SOURCE_NOT_FOUND. `install` runs with the first import of `ottla.spark` and does three things:

    environment           a JVM that starts later is told this interpreter (PYSPARK_DRIVER_PYTHON), unless a setting names another
    sessions there are    get the source registered, with the interpreter that can import it
    later sessions        the same, when they are made: `SparkSession.__init__` is wrapped, and `newSession` of Spark Connect

A Spark Connect server that runs in another process plans with its own Python. No client can change that: the server's environment must
name a Python that has the package (PYSPARK_PYTHON).
"""

import functools
import gc
import importlib.abc
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

log = logging.getLogger("ottla.spark")

CLASSIC, CONNECT = "pyspark.sql.session", "pyspark.sql.connect.session"
CONNECT_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
CONNECT_SERVICE = "org.apache.spark.sql.connect.service"
JVM_SOURCE = "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"
NAME = "ottla"
#: The name that Spark runs where no setting names another.
UNNAMED = "python3"
#: `python3 -c` answers in 30 ms; one that hangs must not hang the import.
ANSWER_TIMEOUT_S = 20.0
SETTINGS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
#: Registration swaps an attribute of the SparkContext for a moment.
_lock = threading.Lock()


@functools.cache
def install() -> None:
    """Once in a process; nothing in a process that Spark started to plan or to read, which makes no sessions."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        return
    if not any(os.environ.get(name) for name in SETTINGS) and not _on_path() and not _python3_has_ottla():
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _when_imported(CLASSIC, _classic)
    _when_imported(CONNECT, _connect)


def _on_path() -> bool:
    """Whether the `python3` of the PATH belongs to this interpreter's environment."""
    found = shutil.which(UNNAMED)
    return found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()


def _python3_has_ottla() -> bool:
    """Whether the `python3` of the PATH has the package too. Then it stays what runs: executors may have it at another path than here."""
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ottla') is None)"
    try:
        return subprocess.run([UNNAMED, "-c", ask], capture_output=True, timeout=ANSWER_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _classic(module: ModuleType) -> None:
    sessions = module.SparkSession
    _after(sessions, "__init__", lambda session, _: _register(session))
    for session in _instances(sessions):
        _register(session)


def _connect(module: ModuleType) -> None:
    sessions = module.SparkSession
    _after(sessions, "__init__", lambda session, _: _register_connect(session))
    _after(sessions, "newSession", lambda _, made: _register_connect(made))
    for session in _instances(sessions):
        _register_connect(session)


def _instances(kind: type) -> list[Any]:
    # Spark keeps the active session and the default one; a program may hold others.
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def _after(kind: type, name: str, then: Callable[[Any, Any], None]) -> None:
    """Has `then` called with the object and the result after each call of the method `name`."""
    method = getattr(kind, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **keywords: Any) -> Any:
        made = method(self, *args, **keywords)
        then(self, made)
        return made

    setattr(kind, name, wrapped)


def _register(session: Any) -> None:
    """Registers the source in a classic session. A refusal is a warning: the session serves other work as well."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    context = session._sc
    if context._jsc is None:
        return
    try:
        manager = session._jsparkSession.sessionState().dataSourceManager()
        # Spark warns of a source that replaces one that its own search has found.
        if not manager.dataSourceExists(NAME):
            # Not `spark.dataSource.register`: that refuses what another session, the active one, has registered.
            manager.registerDataSource(NAME, _wrapped(context))
    except (PySparkException, Py4JError, OSError) as error:
        log.warning('format("ottla") is not registered in a Spark session: %s', str(error).partition("\n")[0])


def _wrapped(context: Any) -> Any:
    """The source as the JVM keeps it, with the Python that runs it: a setting wins over this interpreter."""
    from pyspark.sql.udf import _wrap_function

    from ottla.spark.source.data_source import OttlaDataSource

    with _lock:
        before = context.pythonExec
        context.pythonExec = sys.executable if before == UNNAMED else before
        try:
            function = _wrap_function(context, OttlaDataSource)
        finally:
            context.pythonExec = before
    return getattr(context._jvm, JVM_SOURCE)(function)


def _register_connect(session: Any) -> None:
    """Registers the source in a session of the Spark Connect server that runs within this process (`remote("local")`)."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._jsc is None or CONNECT_PLUGIN not in context.getConf().get("spark.plugins", ""):
        return
    client = session.client
    if client.host not in ("localhost", "127.0.0.1"):
        return
    from pyspark.sql.session import SparkSession

    try:
        # The server makes its side of a session with the first request; this is the same look-up.
        jvm = context._jvm
        key = getattr(jvm, f"{CONNECT_SERVICE}.SessionKey")(client._user_id or "", client._session_id)
        service = getattr(getattr(jvm, f"{CONNECT_SERVICE}.SparkConnectService$"), "MODULE$")
        holder = service.sessionManager().getOrCreateIsolatedSession(key, getattr(jvm, "scala.Option").empty())
        # Its __init__ is wrapped above, so it registers the source.
        SparkSession(context, holder.session())
    except (Py4JError, TypeError) as error:
        log.warning('format("ottla") is not registered in a Spark Connect session: %s', str(error).partition("\n")[0])


class _Awaited(importlib.abc.MetaPathFinder):
    """Calls `then` with the module `name` once, when it has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        # The other finders know where the module is; this one asks them without itself.
        with suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def then_call(module: ModuleType) -> None:
            execute(module)
            self.then(module)

        loader.exec_module = then_call  # type: ignore[method-assign]
        return spec


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Awaited(name, then))
    else:
        then(module)


__all__ = ["install"]
