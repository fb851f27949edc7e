"""Notifies systemd: the process is ready, stops, and its event loop runs (sd_notify(3)).

systemd sets ``NOTIFY_SOCKET``, a datagram socket, for units with ``Type=notify``, and ``WATCHDOG_USEC`` for units with ``WatchdogSec=``::

    READY=1      after the start: systemd starts what is ordered after the unit, and the watchdog
    WATCHDOG=1   from a timer of the event loop: a loop that is blocked sends nothing, and systemd ends and restarts the process
    STOPPING=1   a clean stop has begun: the watchdog ends, TimeoutStopSec counts
    STATUS=...   a line of systemctl status

Without these variables, and with another supervisor, nothing happens. systemd ends a stalled process with SIGABRT; with a watchdog the
stacks of all threads are therefore written to standard error on that signal.
"""

import asyncio
import faulthandler
import logging
import os
import socket
from collections.abc import MutableMapping

log = logging.getLogger("ottla.server")

SOCKET, INTERVAL, PROCESS = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
#: Beats in an interval of the watchdog: two may be late.
BEATS = 3


class ServiceNotify:
    """Notifications of one process."""

    def __init__(self, address: str | None, watchdog_s: float | None) -> None:
        """``address``: of systemd's socket. ``watchdog_s``: how long systemd waits for a beat; None: no watchdog."""
        self._address = address
        self._watchdog_s = watchdog_s if address else None
        self._socket: socket.socket | None = None
        #: The timer of the next beat, while ready.
        self._timer: asyncio.TimerHandle | None = None
        self._failed = False

    @classmethod
    def of_environment(cls, environment: MutableMapping[str, str]) -> "ServiceNotify":
        """What systemd asks for. Removes the variables, so that no child process notifies systemd."""
        address, interval, process = (environment.pop(name, "") for name in (SOCKET, INTERVAL, PROCESS))
        if not address.startswith(("/", "@")):
            return cls(None, None)
        is_watched = interval.isdecimal() and int(interval) > 0 and process in ("", str(os.getpid()))
        return cls(address, int(interval) / 1e6 if is_watched else None)

    def starting(self) -> None:
        """The start has begun."""
        if self._watchdog_s is not None:
            faulthandler.enable()
        self._send("STATUS=starting: opening the store and the logs")

    def ready(self, status: str) -> None:
        """Clients can connect. Starts the beats of the watchdog on the running loop."""
        self._send(f"READY=1\nSTATUS={status}")
        if self._watchdog_s is not None:
            self._beat(asyncio.get_running_loop(), self._watchdog_s / BEATS)

    def stopping(self) -> None:
        """A stop has begun."""
        if self._timer is not None:
            self._timer.cancel()
        self._send("STOPPING=1\nSTATUS=stopping: moving leadership and closing the logs")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()

    def _beat(self, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        self._send("WATCHDOG=1")
        self._timer = loop.call_later(every_s, self._beat, loop, every_s)

    def _send(self, message: str) -> None:
        """Never blocks, and never fails: the broker serves without systemd."""
        if self._address is None:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(message.encode(), "\0" + self._address[1:] if self._address[0] == "@" else self._address)
        except OSError as error:
            if not self._failed:
                log.warning("systemd cannot be notified at %s: %s", self._address, error.strerror or error)
            self._failed = True
