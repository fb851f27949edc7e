"""A real broker for tests: in the test's process, in memory, started in milliseconds, with faults and time under the test's control.

    with ottla.testing.broker() as broker:
        connect(broker.bootstrap_servers)                       any Kafka client
        with broker.answering("NOT_LEADER_OR_FOLLOWER", "Produce", times=2): ...
        broker.kill(); broker.restart()
        broker.clock.advance(hours=1)

    with ottla.testing.broker(tls=True, users={"alice": "secret"}, acls=[Acl(...)]) as broker:
        ottla.Producer(**broker.client_settings("alice"))

    with ottla.testing.broker() as broker, ottla.testing.schema_registry(broker) as registry:
        configure(registry.url)                                 any client of Confluent's registry

pytest finds the fixtures ``ottla_broker``, ``ottla_topic`` and others without configuration; see ``docs/testing.md``.

Submodules are imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.admin.acl_results import Acl
    from ottla.testing.clock import Clock
    from ottla.testing.faults import Fault
    from ottla.testing.in_process_broker import Broker, BrokerFailed
    from ottla.testing.registry import SchemaRegistry
    from ottla.testing.topic import Topic

_HOME = {
    "Broker": "in_process_broker", "BrokerFailed": "in_process_broker", "Clock": "clock", "Fault": "faults", "SchemaRegistry": "registry",
    "Topic": "topic",
}  # fmt: skip

__all__ = ["Broker", "BrokerFailed", "Clock", "Fault", "SchemaRegistry", "Topic", "broker", "schema_registry"]


def broker(
    *,
    settings: Mapping[str, Any] | None = None,
    data_dir: Path | str | None = None,
    port: int = 0,
    users: Mapping[str, str] | None = None,
    tls: bool = False,
    acls: Iterable[Acl] | None = None,
) -> Broker:
    """A broker that runs inside a ``with`` block: in memory, or with files in ``data_dir`` like ``ottla serve``.

    ``port`` 0: a free port. ``settings``: broker settings by Kafka's names. ``users``: passwords by name, if clients must authenticate.
    ``tls``: with a certificate of an authority of its own; without users, clients may show certificates of it. ``acls``: access rules; what
    none allows is denied. ``client_settings("alice")`` of the broker gives a client's settings.
    """
    from ottla.testing.in_process_broker import Broker

    return Broker(settings=settings, data_dir=data_dir, port=port, users=users, tls=tls, acls=acls)


def schema_registry(broker: Broker, *, port: int = 0, user: str | None = None) -> SchemaRegistry:
    """A schema registry that runs inside a ``with`` block, with its schemas in a topic of the broker. ``user``: of a broker with users.

    Several of one broker are one registry: they elect who writes. Needs the extra ``registry``. Raises: ImportError.
    """
    from ottla.testing.registry import SchemaRegistry

    return SchemaRegistry(broker.client_settings(user), port=port)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'ottla.testing' has no attribute {name!r}")
    return getattr(import_module(f"ottla.testing.{_HOME[name]}"), name)
