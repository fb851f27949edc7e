"""TLS of a client: its certificates, read again when their files change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.base.options import ConfigError
from ottla.base.ssl_options import SslOptions

if TYPE_CHECKING:
    # Imported on use: programs without TLS do not need the library for certificates.
    from ottla.net.tls.context import TlsContext

log = logging.getLogger("ottla.client")


class Tls:
    """The certificates of a client."""

    def __init__(self, options: SslOptions) -> None:
        """Reads files. Raises: ConfigError, with the name of the setting in Python."""
        self._options = options
        self._present = _load(options)

    def present(self) -> TlsContext:
        """For a new connection. If changed files cannot be read, the old certificates stay, with a warning."""
        if self._present.changed:
            try:
                self._present = _load(self._options)
            except ConfigError as error:
                log.warning("the old certificates stay in use: %s", error)
        return self._present


def _load(options: SslOptions) -> TlsContext:
    from ottla.net.tls.context import client_context

    try:
        return client_context(options)
    except ConfigError as error:
        raise ConfigError(error.name.replace(".", "_"), error.problem) from None
