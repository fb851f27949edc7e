"""The listeners of a broker, from its settings, with Kafka's rules.

::

    listeners=CLIENT://:9092,BROKER://10.0.0.1:9094              names and addresses to listen on
    advertised.listeners=CLIENT://kafka1.example:9092,...        addresses that clients and brokers get; default: those of listeners
    listener.security.protocol.map=CLIENT:SSL,BROKER:PLAINTEXT   protocol of each name; default: names that are protocols
    inter.broker.listener.name=BROKER                            or security.inter.broker.protocol, whose name is then the listener's

Names and ports differ, except that an IPv4 and an IPv6 address may share a port. Advertised names are among the listeners, and the
listener between brokers is advertised. Source: KIP-103; Kafka's KafkaConfig and CoreUtils.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import combinations

from ottla.base.listeners import Endpoint, SecurityProtocol
from ottla.base.options import ConfigError
from ottla.broker.metadata.configs import ServerOptions
from ottla.server.addresses import parse_address

#: Hosts that stand for every address of a machine.
ANYWHERE = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners of one broker."""

    endpoints: tuple[Endpoint, ...]
    #: Addresses for clients and brokers.
    advertised: tuple[Endpoint, ...]
    #: Name of the listener that brokers use among themselves.
    inter_broker: str

    @classmethod
    def of(cls, options: ServerOptions) -> "Listeners":
        """Raises: ConfigError."""
        protocols = _protocols(options)
        endpoints = _endpoints(options.listeners, protocols, name="listeners")
        if not endpoints:
            raise ConfigError("listeners", "expected at least one listener, as NAME://HOST:PORT")
        _refuse_equal_ports(endpoints)
        advertised = _endpoints(options.advertised_listeners, protocols, name="advertised.listeners") or endpoints
        _check_advertised(advertised if options.advertised_listeners else (), endpoints)
        return cls(endpoints, advertised, _inter_broker(options, protocols, advertised))

    @property
    def anywhere(self) -> list[Endpoint]:
        """Advertised addresses that stand for every address."""
        return [endpoint for endpoint in self.advertised if endpoint.host in ANYWHERE]


def normalised(name: str) -> str:
    """The name of a listener, in upper case."""
    return name.strip().upper()


def _protocols(options: ServerOptions) -> dict[str, SecurityProtocol]:
    """Protocols by name of listener."""
    setting = "listener.security.protocol.map"
    found: dict[str, SecurityProtocol] = {}
    for pair in options.listener_security_protocol_map:
        name, colon, protocol = pair.rpartition(":")
        if not colon or not name.strip():
            raise ConfigError(setting, f"expected NAME:PROTOCOL, not {pair!r}")
        if protocol.strip().upper() not in SecurityProtocol.__members__:
            raise ConfigError(setting, f"{protocol.strip()!r} is not one of {', '.join(SecurityProtocol)}")
        value = SecurityProtocol[protocol.strip().upper()]
        if found.setdefault(normalised(name), value) is not value:
            raise ConfigError(setting, f"listener {normalised(name)} has two protocols, {found[normalised(name)]} and {value}")
    return found


def _endpoints(texts: Sequence[str], protocols: dict[str, SecurityProtocol], *, name: str) -> tuple[Endpoint, ...]:
    found: dict[str, Endpoint] = {}
    for text in texts:
        written, slashes, address = text.strip().partition("://")
        if not slashes or not written.strip():
            raise ConfigError(name, f"expected NAME://HOST:PORT, such as PLAINTEXT://127.0.0.1:9092, not {text!r}")
        listener = normalised(written)
        if listener not in protocols:
            raise ConfigError(name, f"no security protocol is defined for listener {listener}; add it to listener.security.protocol.map")
        if listener in found:
            raise ConfigError(name, f"each listener must have a different name, and two are named {listener}")
        found[listener] = Endpoint(listener, *parse_address(address, name=name), protocols[listener])
    return tuple(found.values())


def _refuse_equal_ports(endpoints: Sequence[Endpoint]) -> None:
    for one, other in combinations(endpoints, 2):
        if one.port and one.port == other.port and {_ip_version(one.host), _ip_version(other.host)} != {4, 6}:
            problem = f"each listener must have a different port, and {one.listener} and {other.listener} have {one.port}"
            raise ConfigError("listeners", problem + "; only an IPv4 and an IPv6 address may share one")


def _ip_version(host: str) -> int:
    """4 or 6; 0 for a name and for every address."""
    try:
        return ip_address(host).version
    except ValueError:
        return 0


def _check_advertised(advertised: Sequence[Endpoint], endpoints: Sequence[Endpoint]) -> None:
    setting = "advertised.listeners"
    names = [endpoint.listener for endpoint in endpoints]
    for endpoint in advertised:
        if endpoint.listener not in names:
            raise ConfigError(setting, f"{endpoint.listener} is no listener of this broker; it listens as {', '.join(names)}")
        if endpoint.host in ANYWHERE:
            raise ConfigError(setting, f"{endpoint.text} is no address that others can reach; set a host name or an address")


def _inter_broker(options: ServerOptions, protocols: dict[str, SecurityProtocol], advertised: Sequence[Endpoint]) -> str:
    setting = "inter.broker.listener.name"
    if options.inter_broker_listener_name:
        name = normalised(options.inter_broker_listener_name)
        if name not in protocols:
            raise ConfigError(setting, f"listener {name} is not in listener.security.protocol.map")
        if options.security_inter_broker_protocol != SecurityProtocol.PLAINTEXT:
            raise ConfigError(setting, "only one of inter.broker.listener.name and security.inter.broker.protocol may be set")
    else:
        name = options.security_inter_broker_protocol
    names = [endpoint.listener for endpoint in advertised]
    if name not in names:
        problem = f"brokers use the listener {name}, which is not advertised; set it to one of {', '.join(names)}"
        raise ConfigError(setting, problem)
    return name
