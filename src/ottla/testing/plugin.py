"""Fixtures for pytest; there as soon as Ottla is installed.

    ottla_broker        one broker for the whole session (with pytest-xdist: one in each worker)
    ottla_own_broker    a broker for one test alone: to advance its clock, or to kill it
    ottla_topics        makes fresh topics for a test:  ottla_topics("orders", partitions=3, value="json")
    ottla_topic         one fresh topic, named after the test
    ottla_producer  ottla_consumer  ottla_admin     Ottla's blocking clients; the consumer reads ``ottla_topic`` from its beginning

Settings of brokers are lines of ``ottla_broker_settings`` in the ini file, or what a fixture ``ottla_broker_settings`` of one's own gives.
The marker ``ottla`` says how a test's topic is made (partitions, config, key, value), and with which settings its own broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla import Admin, Consumer, Producer
    from ottla.testing.in_process_broker import Broker
    from ottla.testing.topic import Topic

MARKER = "ottla(partitions=1, config=None, key=None, value=None, settings=None): how the test's topic, and its own broker, are made"
#: A topic's name has at most 249 characters.
NAME_MAX = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("ottla_broker_settings", "settings of Ottla's brokers in tests, one 'name = value' a line", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def ottla_broker_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of every broker; write a fixture of this name, of session scope, to have others."""
    lines = request.config.getini("ottla_broker_settings")
    pairs = [line.partition("=") for line in lines]
    for name, equals, _ in pairs:
        if not equals:
            raise pytest.UsageError(f"ottla_broker_settings: expected 'name = value', not {name!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}


@pytest.fixture(scope="session")
def ottla_broker(ottla_broker_settings: dict[str, Any]) -> Iterator[Broker]:
    """One broker in memory for the whole session."""
    from ottla.testing import broker

    with broker(settings=ottla_broker_settings) as started:
        yield started


@pytest.fixture
def ottla_own_broker(ottla_broker_settings: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker in memory for this test alone."""
    from ottla.testing import broker

    with broker(settings={**ottla_broker_settings, **(_marked(request).get("settings") or {})}) as started:
        yield started


class Topics:
    """Makes fresh topics for one test; their names are the given one, or the test's, with a number where it was there before."""

    def __init__(self, broker: Broker, test: str) -> None:
        self.broker = broker
        self._test = test

    def __call__(
        self, name: str | None = None, *, partitions: int = 1, config: dict[str, Any] | None = None, key: Any = None, value: Any = None
    ) -> Topic:
        """The topic. ``key`` and ``value`` say in which form the test sends and sees them: ``"str"``, ``"json"``, a format; None: bytes."""
        base = name or self._test
        there = {listed.name for listed in self.broker.clients.admin.list_topics()}
        number = 1
        fresh = base
        while fresh in there:
            number += 1
            fresh = f"{base}-{number}"
        return self.broker.topic(fresh, partitions=partitions, config=config, key=key, value=value)


@pytest.fixture
def ottla_topics(request: pytest.FixtureRequest) -> Topics:
    """Makes fresh topics: in the test's own broker if it has one, else in the session's."""
    own = "ottla_own_broker" in request.fixturenames
    broker = request.getfixturevalue("ottla_own_broker" if own else "ottla_broker")
    return Topics(broker, re.sub(r"[^\w.-]+", "-", request.node.name).strip("-.")[:NAME_MAX] or "test")


@pytest.fixture
def ottla_topic(ottla_topics: Topics, request: pytest.FixtureRequest) -> Topic:
    """A fresh topic, named after the test; the marker ``ottla`` says how it is made."""
    made = {name: value for name, value in _marked(request).items() if name != "settings"}
    return ottla_topics(**made)


@pytest.fixture
def ottla_producer(ottla_topics: Topics) -> Iterator[Producer]:
    """A blocking producer."""
    from ottla import Producer

    with Producer(bootstrap_servers=ottla_topics.broker.bootstrap_servers) as producer:
        yield producer


@pytest.fixture
def ottla_consumer(ottla_topic: Topic, ottla_topics: Topics) -> Iterator[Consumer]:
    """A blocking consumer that reads ``ottla_topic`` from its beginning, in a group of its own."""
    from ottla import Consumer

    with Consumer(
        ottla_topic.name,
        bootstrap_servers=ottla_topics.broker.bootstrap_servers,
        group_id=f"{ottla_topic.name}-consumer",
        auto_offset_reset="earliest",
    ) as consumer:
        yield consumer


@pytest.fixture
def ottla_admin(ottla_topics: Topics) -> Iterator[Admin]:
    """A blocking admin client."""
    from ottla import Admin

    with Admin(bootstrap_servers=ottla_topics.broker.bootstrap_servers) as admin:
        yield admin


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the markers say; the one nearest to the test wins. Raises: pytest.UsageError."""
    found: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("ottla"))):
        unknown = set(marker.kwargs) - {"partitions", "config", "key", "value", "settings"}
        if marker.args or unknown:
            raise pytest.UsageError(f"@pytest.mark.{MARKER}; not {', '.join(sorted(unknown) or map(repr, marker.args))}")
        found.update(marker.kwargs)
    return found
