"""Listeners of brokers: name, address, and security protocol. A registration has them as ``NAME://host:port`` and a map of the protocols.

Names are upper case, as Kafka normalises them. Source: KIP-103.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

Address = tuple[str, int]


class SecurityProtocol(StrEnum):
    """How the connections of a listener are encrypted and authenticated."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Endpoint(NamedTuple):
    """A listener of a broker; the host is empty if it listens on every address."""

    listener: str
    host: str
    port: int
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def address(self) -> Address:
        return self.host, self.port

    @property
    def text(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


def plaintext(host: str, port: int) -> Endpoint:
    """The only listener of a broker without settings."""
    return Endpoint("PLAINTEXT", host, port)


def first_plaintext(endpoints: Sequence[Endpoint]) -> Endpoint | None:
    """The endpoint in the old fields of a registration: the first plaintext one. Without one, Kafka writes no host and port -1."""
    return next((found for found in endpoints if found.protocol is SecurityProtocol.PLAINTEXT), None)


def registered_addresses(endpoints: Sequence[str]) -> Mapping[str, Address]:
    """Addresses by listener, from the endpoints of a registration. An endpoint in another form is left out."""
    found: dict[str, Address] = {}
    for text in endpoints:
        name, slashes, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if slashes and colon and port.isdigit():
            found[name] = (host.removeprefix("[").removesuffix("]"), int(port))
    return found


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
