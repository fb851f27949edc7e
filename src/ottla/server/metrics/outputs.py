"""Starts what serves or pushes the metrics of a process: the HTTP listener (``--http``) and the push to a collector (``--otlp``)."""

import logging
import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ottla.base.options import ConfigError
from ottla.server.addresses import Address, address_text
from ottla.server.data_directory import CannotStart
from ottla.server.metrics.observed import ObservedProcess

log = logging.getLogger("ottla.server")


class MetricsOutput(Protocol):
    """Serves or pushes metrics from a thread."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class StartedMetrics(NamedTuple):
    """What ends the outputs, and the address of the HTTP listener if there is one."""

    stop: Callable[[], None]
    http: Address | None = None


def start_metrics(process: ObservedProcess, *, http: Address | None, otlp: str | None) -> StartedMetrics:
    """Serves metrics and health at ``http``, and pushes metrics to ``otlp``. Raises: ConfigError, CannotStart."""
    if http is None and otlp is None:
        return StartedMetrics(lambda: None)
    # Imported only now: a server without metrics starts faster.
    from ottla.server.http_server import MetricsServer
    from ottla.server.metrics.observation import Observation

    observation = Observation(process)
    started: list[MetricsOutput] = []
    if otlp is not None:
        try:
            from ottla.server.metrics.otlp import OtlpPush
        except ImportError:
            raise ConfigError("--otlp", "it needs the OpenTelemetry exporter: pip install 'ottla[otlp]'") from None
        started.append(OtlpPush(observation, otlp, instance=f"{socket.gethostname()}:{os.getpid()}"))
    if http is not None:
        try:
            server = MetricsServer(observation, http)
        except OSError as error:
            where = address_text(http)
            raise CannotStart(f"cannot listen on {where}: {error.strerror or error}; choose another --http HOST:PORT") from None
        started.append(server)
        http = server.address
        log.info("serving /metrics, /timeline, /health/live and /health/ready on http://%s", address_text(server.address))
    every: list[MetricsOutput] = [observation, *started]
    for one in every:
        one.start()

    def stop() -> None:
        for one in reversed(every):
            one.stop()

    return StartedMetrics(stop, http)
