"""Exchanges the certificates of a broker's listeners while it serves, and warns before they expire.

A change of settings, or of a file that is looked at every ``LOOK_S``, makes new certificates, in a thread. ``check_exchange`` decides
whether they replace the present ones; if not, the present ones stay, with one warning for each cause.
"""

import asyncio
import datetime
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from cryptography import x509

from ottla.base.options import ConfigError
from ottla.base.ssl_options import ListenerSslOptions
from ottla.net.tls.listener_tls import ListenerTls, TlsState, check_exchange
from ottla.net.tls.principal import distinguished_name
from ottla.server.metrics.counters import Counters

log = logging.getLogger("ottla.server")

#: Interval of looking for changed files.
LOOK_S = 10.0
#: A certificate that expires within this time is warned of.
WARN_DAYS = 30
#: Interval of repeated warnings.
REPEAT_S = 86_400.0


class CertificateRenewal:
    """For one broker; belongs to its loop."""

    def __init__(
        self,
        listeners: Mapping[str, ListenerTls],
        options_of: Callable[[str], ListenerSslOptions],
        *,
        inter_broker: str,
        executor: Executor,
        counters: Counters,
        look_s: float = LOOK_S,
    ) -> None:
        """``options_of``: settings in effect for a listener; ``inter_broker``: the listener that brokers use among themselves."""
        self._listeners = dict(listeners)
        self._options_of = options_of
        self._inter_broker = inter_broker
        self._executor = executor
        self._counters = counters
        self._look_s = look_s
        #: The last refused settings and files by listener: warned of once.
        self._told: dict[str, str] = {}
        self._warned_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def start(self) -> None:
        """Looks at once, and then periodically."""
        if self._listeners:
            self._periodic()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def look(self) -> None:
        """Looks for changed settings and files now."""
        if not self._listeners:
            return
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def problem(self, listeners: Mapping[str, ListenerSslOptions]) -> str:
        """Why listeners, by name in lower case, cannot use these settings now; empty if they can. Reads files; call in a thread."""
        for name, options in listeners.items():
            tls = self._listeners.get(name.upper())
            if tls is None:
                return f"listener {name.upper()} of this broker has no TLS"
            try:
                check_exchange(tls.present, TlsState.load(options, between_brokers=name.upper() == self._inter_broker))
            except ConfigError as error:
                return f"listener {name.upper()}: {error}"
        return ""

    def _periodic(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._look_s, self._periodic)
        self.look()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._again:
            self._again = False
            for name, tls in self._listeners.items():
                options = self._options_of(name)
                try:
                    new = await loop.run_in_executor(self._executor, self._renewed, name, tls.present, options)
                except ConfigError as error:
                    self._refused(name, error)
                else:
                    self._told.pop(name, None)
                    if new is not None:
                        tls.adopt(new)
                        self._counters.certificate_exchanges += 1
                        log.info("listener %s uses exchanged certificates", name)
            self._look_at_ends()

    def _renewed(self, name: str, present: TlsState, options: ListenerSslOptions) -> TlsState | None:
        """The new certificates; None if nothing changed. Runs in a thread. Raises: ConfigError."""
        if options == present.options and not present.context.changed:
            return None
        new = TlsState.load(options, between_brokers=name == self._inter_broker)
        check_exchange(present, new)
        return new

    def _refused(self, name: str, error: ConfigError) -> None:
        if self._told.get(name) != str(error):
            self._told[name] = str(error)
            log.warning("listener %s keeps its certificates: %s", name, error)

    def _look_at_ends(self) -> None:
        """Counts the days until the first certificate expires, and warns."""
        now = datetime.datetime.now(datetime.UTC)
        now_s = asyncio.get_running_loop().time()
        first: float | None = None
        for name, tls in self._listeners.items():
            for certificate in tls.present.context.certificates:
                left_days = (certificate.not_valid_after_utc - now).total_seconds() / 86_400
                first = left_days if first is None else min(first, left_days)
                key = f"{name} {certificate.serial_number}"
                if left_days < WARN_DAYS and now_s - self._warned_s.get(key, float("-inf")) >= REPEAT_S:
                    self._warned_s[key] = now_s
                    log.warning("listener %s: %s", name, expiry(certificate, left_days))
        self._counters.certificate_days_left = first


def expiry(certificate: x509.Certificate, left_days: float) -> str:
    """A sentence about a certificate that has expired or soon will."""
    when = certificate.not_valid_after_utc.strftime("%Y-%m-%d %H:%M UTC")
    name = distinguished_name(certificate.subject)
    return f"the certificate of {name} {'has expired' if left_days < 0 else 'expires'} on {when}; replace it"
