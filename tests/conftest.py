"""Fixtures for several directories."""

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import hypothesis
import pytest
from tools.class_archives import options_for

from object_store import ObjectStore
from ottla.base.log_levels import LOGGERS, ROOT
from ottla.server import broker_log
from ottla.server.data_directory import CannotStart
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.spark.java import NoJava, java_home

# Its filter of kazoo's log is there before the first test.
from ottla.store.zookeeper import session as _session  # noqa: F401
from serving import ELSEWHERE, Elsewhere, Serving
from store_servers import STORE_SECRET

# As in a broker: with Python's defaults a fifth of the processor time of `make check` is garbage collection. Tests of the whole suite count
# descriptors and garbage, and what earlier tests left must be gone then.
if os.environ.get("OTTLA_TEST_GARBAGE") == "rare":
    gc.set_threshold(50_000, 20, 100)

#: What users get by installing Ottla; here it is not always installed.
pytest_plugins = ["ottla.testing.plugin"]

# A property holds or not; how long one example takes says more about who else uses the machine.
hypothesis.settings.register_profile("ottla", deadline=None)
hypothesis.settings.load_profile("ottla")

# Every JVM of the tests lives shortly: the thorough compiler costs more than it gives. The launcher reads this.
os.environ.setdefault("JDK_JAVA_OPTIONS", " ".join(["-XX:TieredStopAtLevel=1", *options_for("spark")]))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start what they run in the background so; children would inherit it, and some tests send them Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _logging() -> dict[str, object]:
    """What tests may change in Python's logging: the root, and loggers of Ottla that are not as they are made."""
    root = logging.getLogger()
    found: dict[str, object] = {"root": (root.level, root.manager.disable, [id(one) for one in root.handlers])}
    for name, logger in root.manager.loggerDict.items():
        if name.startswith("ottla") and isinstance(logger, logging.Logger):
            state = (logger.level, logger.disabled, logger.propagate, len(logger.filters))
            if state != (logging.NOTSET, False, True, 0):
                found[name] = state
    return found


@pytest.fixture(autouse=True)
def logging_is_as_before() -> Iterator[None]:
    """Fails a test that leaves a level, a filter or a handler: a later test of the process would miss lines of the log."""
    before = _logging()
    yield
    assert _logging() == before, "the test has changed logging for the tests after it; use the fixture changed_logging"


@pytest.fixture
def changed_logging(logging_is_as_before: None) -> Iterator[None]:
    """For tests that set up logging as a server does: everything is as before afterwards."""
    root, levels = logging.getLogger(), broker_log.levels()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    broker_log.set_levels({name: levels.get(name) for name in LOGGERS if name != ROOT})
    for name in broker_log.NET_LOGGERS:
        logging.getLogger(name).filters.clear()


@pytest.fixture(scope="session")
def ottla_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving | Elsewhere]:
    """One server with stock settings for all tests of a session that only need *a* broker; each uses topics of its own."""
    if ELSEWHERE:
        yield Elsewhere()
        return
    with Serving(tmp_path_factory.mktemp("ottla") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """One real ZooKeeper server for all tests of a session that leave it alive; each uses a chroot of its own."""
    yield from _ensemble(tmp_path_factory, 1)


@pytest.fixture(scope="session")
def zookeepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three real ZooKeeper servers, of which a test may kill one; it is started again for the next."""
    yield from _ensemble(tmp_path_factory, 3)


@pytest.fixture(scope="module")
def object_servers() -> Iterator[Callable[[str], ObjectStore]]:
    """Servers of object stores with faults, one of each kind for the tests of a module."""
    with ExitStack() as open_servers:
        yield cache(lambda kind: open_servers.enter_context(ObjectStore(kind)))


@pytest.fixture
def object_store(
    object_servers: Callable[[str], ObjectStore], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    """A server without faults, of S3 or of the kind in the parameter, in an environment that names no store and has no secrets."""
    for name in [one for one in os.environ if one.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    server = object_servers(getattr(request, "param", "s3"))
    monkeypatch.setenv(STORE_SECRET, server.kind.secret)
    server.clear()
    return server


def _ensemble(tmp_path_factory: pytest.TempPathFactory, nodes: int) -> Iterator[Ensemble]:
    try:
        made = Ensemble(tmp_path_factory.mktemp("zookeeper"), java_home(needed_by="ZooKeeper"), nodes=nodes)
    except (CannotStart, NoJava) as error:
        pytest.skip(f"no ZooKeeper can be run here: {error}")
    try:
        made.start()
        yield made
    finally:
        made.stop()
