"""Registers ``format("ottla")`` in every Spark session of this process, whichever Python is on the PATH.

Spark discovers sources: its JVM starts `PYSPARK_DRIVER_PYTHON`, `PYSPARK_PYTHON` or else the `python3` of the PATH, and lists its modules
named ``pyspark_*``. If a virtual environment's Python is started by its full path, the PATH names another Python without the package, and
Spark raises DATA_SOURCE_NOT_FOUND. `install` runs with the first import of `ottla.spark` and does six things:

    environment          sets PYSPARK_DRIVER_PYTHON to this interpreter, for a JVM that starts later, unless a setting names another
    existing sessions    registers the source, with the interpreter that can import it
    secrets              adds private keys to the options that Spark hides
    settings             warns of `spark.kafka.*`, which have no effect
    write modes          Spark's writers take the modes that its Kafka sink has (`write_modes`)
    later sessions       the same on creation: wraps `SparkSession.__init__`, and `newSession` of Spark Connect

A Spark Connect server in another process plans with its own Python. A client cannot change that: the server's environment must name a
Python that has the package (PYSPARK_PYTHON).
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

from ottla.spark.connector_settings import warn_of
from ottla.spark.write_modes import WRITERS, wrap

log = logging.getLogger("ottla.spark")

CLASSIC, CONNECT = "pyspark.sql.session", "pyspark.sql.connect.session"
CONNECT_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
CONNECT_SERVICE = "org.apache.spark.sql.connect.service"
JVM_SOURCE = "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"
NAME = "ottla"
#: Spark's setting of a session: a pattern of options that it redacts; and the pattern that is added to it.
REDACTION = "spark.sql.redaction.options.regex"
SECRET_OPTIONS = r"(?i)ssl[.]keystore[.]key|sasl[.]jaas|PRIVATE KEY"
#: What Spark runs if no setting names an interpreter.
DEFAULT_PYTHON = "python3"
#: `python3 -c` takes 30 ms; one that hangs must not block the import.
ANSWER_TIMEOUT_S = 20.0
SETTINGS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
#: Registration replaces an attribute of the SparkContext for a moment.
_lock = threading.Lock()


@functools.cache
def install() -> None:
    """Runs once per process. Does nothing in a process that Spark started to plan or to read: it creates no sessions."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        return
    if not any(os.environ.get(name) for name in SETTINGS) and not _on_path() and not _python3_has_ottla():
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _when_imported(CLASSIC, _classic)
    _when_imported(CONNECT, _connect)
    for name, cls in WRITERS.items():
        _when_imported(name, functools.partial(_wrap_writer, cls))


def _on_path() -> bool:
    """Whether the `python3` of the PATH belongs to this interpreter's environment."""
    python = shutil.which(DEFAULT_PYTHON)
    return python is not None and Path(python).parent.resolve() == Path(sys.executable).parent.resolve()


def _python3_has_ottla() -> bool:
    """Whether the `python3` of the PATH has the package too. If so it is kept: executors may have that Python at another path."""
    script = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ottla') is None)"
    try:
        return subprocess.run([DEFAULT_PYTHON, "-c", script], capture_output=True, timeout=ANSWER_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _wrap_writer(cls: str, module: ModuleType) -> None:
    wrap(getattr(module, cls))


def _classic(module: ModuleType) -> None:
    sessions = module.SparkSession
    _call_after(sessions, "__init__", lambda session, _: _register(session))
    for session in _instances(sessions):
        _register(session)


def _connect(module: ModuleType) -> None:
    sessions = module.SparkSession
    _call_after(sessions, "__init__", lambda session, _: _register_connect(session))
    _call_after(sessions, "newSession", lambda _, created: _register_connect(created))
    for session in _instances(sessions):
        _register_connect(session)


def _instances(cls: type) -> list[Any]:
    # Spark keeps the active session and the default one; a program may hold others.
    return [one for one in gc.get_objects() if issubclass(type(one), cls)]


def _call_after(cls: type, name: str, then: Callable[[Any, Any], None]) -> None:
    """Wraps the method `name`: after each call, `then` is called with the object and the result."""
    method = getattr(cls, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **keywords: Any) -> Any:
        result = method(self, *args, **keywords)
        then(self, result)
        return result

    setattr(cls, name, wrapped)


def _register(session: Any) -> None:
    """Registers the source in a classic session. A failure is a warning: the session may be used for other work."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    context = session._sc
    if context._jsc is None:
        return
    try:
        manager = session._jsparkSession.sessionState().dataSourceManager()
        # Spark logs a warning if a source replaces a discovered one.
        if not manager.dataSourceExists(NAME):
            # Not `spark.dataSource.register`: it fails if the active session has registered the name already.
            manager.registerDataSource(NAME, _jvm_source(context))
        _hide_secrets(session._jsparkSession.conf())
        warn_of(name for name, _ in context.getConf().getAll())
    except (PySparkException, Py4JError, OSError) as error:
        log.warning('format("ottla") is not registered in a Spark session: %s', str(error).partition("\n")[0])


def _hide_secrets(conf: Any) -> None:
    """Adds the options with secrets that Spark's patterns miss to those that it hides in plans, its UI and event logs.

    Spark hides options whose name or value contains password, secret or token: not private keys.
    """
    shown = str(conf.get(REDACTION, ""))
    if SECRET_OPTIONS not in shown:
        conf.set(REDACTION, f"{shown}|{SECRET_OPTIONS}" if shown else SECRET_OPTIONS)


def _jvm_source(context: Any) -> Any:
    """The JVM's object for the source, with the Python that runs it: a setting takes precedence over this interpreter."""
    from pyspark.sql.udf import _wrap_function

    from ottla.spark.source.data_source import OttlaDataSource

    with _lock:
        before = context.pythonExec
        context.pythonExec = sys.executable if before == DEFAULT_PYTHON else before
        try:
            function = _wrap_function(context, OttlaDataSource)
        finally:
            context.pythonExec = before
    return getattr(context._jvm, JVM_SOURCE)(function)


def _register_connect(session: Any) -> None:
    """Registers the source in a session of a Spark Connect server inside this process (`remote("local")`)."""
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
        # The server creates its side of a session on the first request, by the same lookup.
        jvm = context._jvm
        key = getattr(jvm, f"{CONNECT_SERVICE}.SessionKey")(client._user_id or "", client._session_id)
        service = getattr(getattr(jvm, f"{CONNECT_SERVICE}.SparkConnectService$"), "MODULE$")
        holder = service.sessionManager().getOrCreateIsolatedSession(key, getattr(jvm, "scala.Option").empty())
        # The wrapped __init__ registers the source.
        SparkSession(context, holder.session())
    except (Py4JError, TypeError) as error:
        log.warning('format("ottla") is not registered in a Spark Connect session: %s', str(error).partition("\n")[0])


class _ImportHook(importlib.abc.MetaPathFinder):
    """Calls `then` once with the module `name`, after its import."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        # Removed first, so that the other finders locate the module.
        with suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def execute_then_call(module: ModuleType) -> None:
            execute(module)
            self.then(module)

        loader.exec_module = execute_then_call  # type: ignore[method-assign]
        return spec


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _ImportHook(name, then))
    else:
        then(module)
