"""Fixtures for several directories."""

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
from tools.class_archives import options_for

from ottla.server.data_directory import CannotStart
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.spark.java import NoJava, java_home
from serving import ELSEWHERE, Elsewhere, Serving

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
