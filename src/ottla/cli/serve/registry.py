"""`ottla serve --registry`: a schema registry beside the brokers, in a process of its own that ends with them."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from ottla.base.options import ConfigError
from ottla.console.options import is_loopback
from ottla.server.addresses import Address, address_text, parse_address
from ottla.server.child_processes import ChildWatcher

if TYPE_CHECKING:
    from ottla.server.process_plan import ProcessPlan

log = logging.getLogger("ottla.server")
#: How long the registry has to stop.
STOP_S = 5.0


class RegistryProcess:
    """`ottla registry serve` as a child process."""

    def __init__(self, listen: str, plan: ProcessPlan) -> None:
        """Raises: ConfigError if the registry could not connect to the brokers."""
        self._listen = address_text(parse_address(listen, name="--registry"))
        if not is_loopback(parse_address(listen, name="--registry")[0]):
            raise ConfigError(
                "--registry", "other machines reach this address; run ottla registry serve with --auth or --tls-client-ca for it"
            )
        first = plan.listeners().endpoints[0]
        if first.protocol.tls or first.protocol.sasl:
            raise ConfigError(
                "--registry",
                f"clients of listener {first.listener} need TLS or a login; run ottla registry serve with -X settings or a profile",
            )
        self._child: subprocess.Popen[bytes] | None = None
        self._watcher: ChildWatcher | None = None
        self._stopping = False

    def start(self, brokers: list[Address]) -> None:
        """Starts it once the brokers listen."""
        bootstrap = ",".join(map(address_text, brokers))
        self._watcher = ChildWatcher()
        command = [sys.executable, "-m", "ottla", "registry", "serve", "-b", bootstrap, "--listen", self._listen]
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._watcher.add(self._child.pid)
        threading.Thread(target=self._watch, args=(self._child,), name="registry", daemon=True).start()

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        code = child.wait()
        if not self._stopping:
            log.error("the schema registry at %s ended with code %d; the brokers continue without it", self._listen, code)

    def stop(self) -> None:
        """Stops it, and waits."""
        self._stopping = True
        if self._child is not None:
            self._child.terminate()
            try:
                self._child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        if self._watcher is not None:
            self._watcher.close()
