"""Fixtures for pytest, available when Ottla is installed.

    ottla_broker        one broker for the whole session (with pytest-xdist: one in each worker)
    ottla_own_broker    a broker for one test: to advance its clock, or to kill it
    ottla_topics        creates fresh topics for a test:  ottla_topics("orders", partitions=3, value="json")
    ottla_topic         one fresh topic, named after the test
    ottla_registry      a schema registry on ``ottla_broker``, for the whole session
    ottla_producer  ottla_consumer  ottla_admin     Ottla's blocking clients; the consumer reads ``ottla_topic`` from its beginning

Broker settings are lines of ``ottla_broker_settings`` in the ini file, or the result of your own fixture ``ottla_broker_settings``.
The marker ``ottla`` configures a test's topic (partitions, config, key, value) and its own broker (settings, users, tls, acls).
With ``users``, passwords by name, clients must authenticate: ``ottla_own_broker.client_settings("alice")`` are a user's settings, and
Ottla's clients are the first user. With ``tls`` the broker has a certificate of an authority of its own, with ``acls`` access rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla import Admin, Consumer, Producer
    from ottla.testing.in_process_broker import Broker
    from ottla.testing.registry import SchemaRegistry
    from ottla.testing.topic import Topic

MARKER = (
    "ottla(partitions=1, config=None, key=None, value=None, settings=None, users=None, tls=False, acls=None): "
    "configures the test's topic and its own broker"
)
#: Arguments of the marker for the test's topic, and for its broker.
OF_TOPIC, OF_BROKER = ("partitions", "config", "key", "value"), ("settings", "users", "tls", "acls")
#: A topic's name has at most 249 characters.
NAME_MAX = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("ottla_broker_settings", "settings of Ottla's brokers in tests, one 'name = value' per line", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def ottla_broker_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of every broker. Override it with a fixture of this name and session scope."""
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
    """A broker in memory for this test only."""
    from ottla.testing import broker

    marked = {name: value for name, value in _marked(request).items() if name in OF_BROKER}
    marked["settings"] = {**ottla_broker_settings, **(marked.get("settings") or {})}
    with broker(**marked) as started:
        yield started


@pytest.fixture(scope="session")
def ottla_registry(ottla_broker: Broker) -> Iterator[SchemaRegistry]:
    """A schema registry on the session's broker. Needs the extra ``registry``."""
    from ottla.testing import schema_registry

    with schema_registry(ottla_broker) as started:
        yield started


class Topics:
    """Creates fresh topics for one test, named as requested or after the test, with a number if the name exists."""

    def __init__(self, broker: Broker, test: str) -> None:
        self.broker = broker
        self._test = test

    def __call__(
        self, name: str | None = None, *, partitions: int = 1, config: dict[str, Any] | None = None, key: Any = None, value: Any = None
    ) -> Topic:
        """The topic. ``key`` and ``value`` are the formats in the test: ``"str"``, ``"json"``, a serializer; None: bytes."""
        base = name or self._test
        existing = {listed.name for listed in self.broker.clients.admin.list_topics()}
        number = 1
        fresh = base
        while fresh in existing:
            number += 1
            fresh = f"{base}-{number}"
        return self.broker.topic(fresh, partitions=partitions, config=config, key=key, value=value)


@pytest.fixture
def ottla_topics(request: pytest.FixtureRequest) -> Topics:
    """Creates fresh topics in the test's own broker if it has one, else in the session's."""
    own = "ottla_own_broker" in request.fixturenames
    broker = request.getfixturevalue("ottla_own_broker" if own else "ottla_broker")
    return Topics(broker, re.sub(r"[^\w.-]+", "-", request.node.name).strip("-.")[:NAME_MAX] or "test")


@pytest.fixture
def ottla_topic(ottla_topics: Topics, request: pytest.FixtureRequest) -> Topic:
    """A fresh topic, named after the test and configured by the marker ``ottla``."""
    made = {name: value for name, value in _marked(request).items() if name in OF_TOPIC}
    return ottla_topics(**made)


@pytest.fixture
def ottla_producer(ottla_topics: Topics, request: pytest.FixtureRequest) -> Iterator[Producer]:
    """A blocking producer."""
    from ottla import Producer

    with Producer(**_connection(ottla_topics.broker, request)) as producer:
        yield producer


@pytest.fixture
def ottla_consumer(ottla_topic: Topic, ottla_topics: Topics, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    """A blocking consumer that reads ``ottla_topic`` from its beginning, in its own group."""
    from ottla import Consumer

    with Consumer(
        ottla_topic.name,
        **_connection(ottla_topics.broker, request),
        group_id=f"{ottla_topic.name}-consumer",
        auto_offset_reset="earliest",
    ) as consumer:
        yield consumer


@pytest.fixture
def ottla_admin(ottla_topics: Topics, request: pytest.FixtureRequest) -> Iterator[Admin]:
    """A blocking admin client."""
    from ottla import Admin

    with Admin(**_connection(ottla_topics.broker, request)) as admin:
        yield admin


def _connection(broker: Broker, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of a client, which is the first user of a broker with users."""
    users = _marked(request).get("users") or {} if "ottla_own_broker" in request.fixturenames else {}
    return broker.client_settings(next(iter(users), None))


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The markers' arguments; the marker closest to the test takes precedence. Raises: pytest.UsageError."""
    found: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("ottla"))):
        unknown = set(marker.kwargs) - {*OF_TOPIC, *OF_BROKER}
        if marker.args or unknown:
            raise pytest.UsageError(f"@pytest.mark.{MARKER}; not {', '.join(sorted(unknown) or map(repr, marker.args))}")
        found.update(marker.kwargs)
    return found
