"""Topics of a real broker that become tables."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.client.admin.results import NewTopic
from ottla.client.sync.admin import Admin
from serving import SOURCE, Elsewhere, Serving

_numbers = itertools.count()


@pytest.fixture
def bootstrap(ottla_server: Serving | Elsewhere) -> str:
    return ottla_server.bootstrap


@pytest.fixture
def a_topic(bootstrap: str) -> Callable[..., str]:
    """Creates a topic and returns its name."""

    def make(partitions: int = 2, **configs: str) -> str:
        name = f"lake-{os.getpid()}-{next(_numbers)}"
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(NewTopic(name, partitions, configs={key.replace("_", "."): value for key, value in configs.items()}))
        return name

    return make


@pytest.fixture
def send(bootstrap: str) -> Callable[..., None]:
    """Sends values, or (key, value): objects as JSON, bytes and None unchanged."""
    import ottla

    def put(topic: str, values: Iterable[Any], partition: int | None = None) -> None:
        with ottla.Producer(bootstrap_servers=bootstrap) as producer:
            for given in values:
                key, value = given if isinstance(given, tuple) else (None, given)
                data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
                producer.send(topic, key=key if key is None else key.encode(), value=data, partition=partition)

    return put


class Ottla:
    """The command line: in this process, or in its own process that can be killed."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def start(self, *words: str | Path) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "ottla", *map(str, words), "-b", self._bootstrap]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def __call__(self, *words: str | Path, code: int = 0) -> list[dict[str, Any]]:
        """The JSON lines that it printed, in this process; for a refused command [{"refused": error output}]."""
        done = CliRunner().invoke(main, [*map(str, words), "-b", self._bootstrap], catch_exceptions=False)
        assert done.exit_code == code, done.output
        return [json.loads(line) for line in done.stdout.splitlines()] if code == 0 else [{"refused": done.stderr}]


@pytest.fixture
def ottla(bootstrap: str) -> Ottla:
    return Ottla(bootstrap)
