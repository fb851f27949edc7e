"""A process and its brokers, as the collection of metrics reads them."""

from collections.abc import Mapping
from typing import Any, Protocol

from ottla.broker.node import Node
from ottla.net.connection_context import ConnectionContext
from ottla.server.metrics.client_telemetry import ClientMetrics
from ottla.server.metrics.counters import Counters
from ottla.server.metrics.request_times import RequestTimes


class ObservedBroker(Protocol):
    """A broker of the process."""

    node: Node
    listeners: Mapping[str, Any]

    @property
    def times(self) -> RequestTimes: ...


class ObservedProcess(Protocol):
    """The process, as the collection reads it."""

    brokers: list[Any]
    counters: Counters
    client_metrics: ClientMetrics
    connection_context: ConnectionContext
    #: CPU clock of the loop's thread; None where the system has none.
    loop_clock: int | None

    @property
    def stopping(self) -> bool: ...

    @property
    def serving(self) -> bool:
        """Whether clients can connect."""
        ...
