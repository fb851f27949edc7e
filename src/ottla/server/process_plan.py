"""The configuration of a process: data directory, settings, brokers and their listeners."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ottla.base.listeners import Endpoint
from ottla.base.options import ConfigError
from ottla.base.paths import NotLocal, local_path
from ottla.base.units import MiB
from ottla.broker.metadata.configs import BrokerOptions, ServerOptions, Settings, broker_spec, listener_options, listener_setting
from ottla.broker.metadata.image import Image
from ottla.net.connection_context import DUPLICATES_MAX, AuthenticationLimits, Limits, ListenerLimits
from ottla.net.listener import bound_socket
from ottla.net.tls.listener_tls import TlsState
from ottla.server.addresses import Address, address_text
from ottla.server.data_directory import CannotStart
from ottla.server.initial_users import InitialUser
from ottla.server.listeners import Listeners
from ottla.server.sasl import check_listener, peer_login

#: Descriptors reserved for anything but connections and log files.
SPARE_DESCRIPTORS = 128
#: Memory for requests without queued.max.request.bytes.
REQUEST_MEMORY_BYTES = 256 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """``texts`` are settings by Kafka's names; ``broker_texts`` derives those of one broker."""

    data_dir: Path
    texts: dict[str, str] = field(default_factory=dict)
    brokers: int = 1
    #: Settings of plugins and tools, which brokers only show.
    plugins: dict[str, str] = field(default_factory=dict)
    #: Users that are added at the start, unless they exist.
    users: tuple[InitialUser, ...] = ()

    def options(self) -> BrokerOptions:
        """Options of the whole process. Raises: ConfigError."""
        return Settings(self.texts).options

    def listeners(self) -> Listeners:
        """The listeners of the first broker. Raises: ConfigError."""
        found = Listeners.of(self.options())
        names = [endpoint.listener.lower() for endpoint in found.endpoints]
        for setting in self.texts:
            own = listener_setting(setting)
            if own is not None and own.listener not in names:
                problem = f"there is no listener {own.listener!r}; the names are, in lower case, {', '.join(names)}"
                raise ConfigError(setting, problem)
        settings = Settings(self.texts)
        for one in found.endpoints:
            if one.protocol.sasl:
                options_of = partial(listener_options, settings, Image(), settings.options.broker_id, one.listener)
                check_listener(one.listener, options_of)
                if one.listener == found.inter_broker and settings.options.zookeeper_connect:
                    peer_login(one.listener, options_of)
        for one in found.endpoints:
            if one.port and one.port + self.brokers > 65536:
                raise ConfigError("listeners", f"{self.brokers} brokers from port {one.port} on need ports above 65535")
            for other in found.endpoints:
                if other.port and 0 < other.port - one.port < self.brokers:
                    problem = f"{self.brokers} brokers need {self.brokers} ports for each listener, from {one.port} and {other.port} on"
                    raise ConfigError("listeners", f"{problem}; leave more between them")
        return found

    def warnings(self) -> list[str]:
        """Warnings about settings that are valid but probably not intended. Raises: ConfigError."""
        return [
            "listening on every address without advertised.listeners: a client gets the address to which it connected, and brokers "
            f"on other machines cannot reach this one; set advertised.listeners={listener}://HOST:{port} to a name that all can resolve"
            for listener, _, port, _ in self.listeners().anywhere
        ]

    def broker_texts(self, number: int, bound: Sequence[Endpoint]) -> dict[str, str]:
        """Settings of the ``number``-th broker, which listens at ``bound``. Raises: ConfigError."""
        options = self.options()
        texts = {**self.texts, "broker.id": str(options.broker_id + number)}
        texts["listeners"] = ",".join(endpoint.text for endpoint in bound)
        texts["log.dirs"] = ",".join(map(str, self.log_dirs(number)))
        if options.advertised_listeners:
            ports = {endpoint.listener: endpoint.port for endpoint in bound}
            texts["advertised.listeners"] = ",".join(
                found._replace(port=found.port + number if found.port else ports[found.listener]).text
                for found in self.listeners().advertised
            )
        return texts

    def log_dirs(self, number: int) -> list[Path]:
        """The log directories of the ``number``-th broker. Raises: ConfigError."""
        options = self.options()
        name = f"broker-{options.broker_id + number}"
        if not options.log_dirs:
            return [self.data_dir / name]
        try:
            roots = [Path(local_path(path)) for path in options.log_dirs]
        except NotLocal as error:
            raise ConfigError("log.dirs", str(error)) from None
        return [root / name if self.brokers > 1 else root for root in roots]


class BoundBroker:
    """The bound sockets of a broker, and its settings, which depend on the ports."""

    def __init__(self, plan: ProcessPlan, number: int, image: Image) -> None:
        """``image``: with settings in the store. Reads certificates. Raises: ConfigError, CannotStart."""
        options = plan.options()
        #: By listener, in the order of the setting.
        self.sockets: dict[str, socket.socket] = {}
        try:
            bound = [self._bind(endpoint, number, options) for endpoint in plan.listeners().endpoints]
            self.settings = Settings(plan.broker_texts(number, bound), plan.plugins)
            #: With the ports of the sockets.
            self.listeners = Listeners.of(self.settings.options)
            #: Certificates of the listeners with TLS.
            self.tls = {
                endpoint.listener: self._certificates(endpoint.listener, image)
                for endpoint in self.listeners.endpoints
                if endpoint.protocol.tls
            }
        except BaseException:
            self.close()
            raise

    def _certificates(self, name: str, image: Image) -> TlsState:
        """Raises: ConfigError."""
        options = listener_options(self.settings, image, self.settings.options.broker_id, name)
        try:
            return TlsState.load(options, between_brokers=name == self.listeners.inter_broker)
        except ConfigError as error:
            raise ConfigError(error.name, f"listener {name}: {error.problem}") from None

    def close(self) -> None:
        """Closes the sockets of a broker that does not start."""
        for bound in self.sockets.values():
            bound.close()

    def _bind(self, endpoint: Endpoint, number: int, options: ServerOptions) -> Endpoint:
        """The endpoint with the port of its socket. Raises: CannotStart."""
        address: Address = (endpoint.host, endpoint.port + number if endpoint.port else 0)
        try:
            made = self.sockets[endpoint.listener] = bound_socket(
                *address, send_bytes=options.socket_send_buffer_bytes, receive_bytes=options.socket_receive_buffer_bytes
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotStart(f"cannot listen on {address_text(address)}: {reason}; choose another --listen HOST:PORT") from None
        return endpoint._replace(host=endpoint.host or "0.0.0.0", port=made.getsockname()[1])


def changed_settings(texts: Mapping[str, str]) -> dict[str, str]:
    """The settings whose value is not the default."""
    specs = {name: broker_spec(name) for name in texts}
    return {name: text for name, text in texts.items() if (spec := specs[name]) is None or spec.parse(text) != spec.default}


def listener_limits(options: ServerOptions) -> ListenerLimits:
    """Limits of one listener from its settings."""
    return ListenerLimits(connections_max=options.max_connections, connection_rate=options.max_connection_creation_rate)


def authentication_limits(options: BrokerOptions) -> AuthenticationLimits:
    """Limits of connections to a listener with SASL before they are authenticated."""
    return AuthenticationLimits(frame_bytes_max=options.sasl_server_max_receive_size, timeout_ms=options.authentication_timeout_ms)


def host_limits(text: str) -> tuple[tuple[str, int], ...]:
    """Hosts and numbers of ``max.connections.per.ip.overrides``."""
    pairs = [part.strip().rpartition(":") for part in text.split(",") if part.strip()]
    return tuple((host.strip("[]"), int(number)) for host, _, number in pairs)


def log_descriptors(descriptors: int) -> int:
    """How many of the process's descriptors log files may keep: three eighths. More files are closed and opened again."""
    return descriptors * 3 // 8


def limits(options: ServerOptions, descriptors: int) -> Limits:
    """Limits from the options. Connections are also limited by the descriptors that log files leave."""
    left = descriptors - log_descriptors(descriptors) - DUPLICATES_MAX - SPARE_DESCRIPTORS
    return Limits(
        frame_bytes_max=options.socket_request_max_bytes,
        first_frame_bytes_max=min(options.first_request_max_bytes, options.socket_request_max_bytes),
        request_memory_bytes=REQUEST_MEMORY_BYTES if options.queued_max_request_bytes < 0 else options.queued_max_request_bytes,
        connections_max=min(options.max_connections, max(left, 16)),
        connections_per_host_max=options.max_connections_per_ip,
        connections_of_hosts=host_limits(options.max_connections_per_ip_overrides),
        connection_rate=options.max_connection_creation_rate,
        idle_ms=options.connections_max_idle_ms,
        read_timeout_ms=options.request_read_timeout_ms,
        write_buffer_bytes_max=options.write_buffer_max_bytes,
        write_timeout_ms=options.write_timeout_ms,
        handshake_timeout_ms=options.handshake_timeout_ms,
        answer_bytes_max=options.answers_max_bytes,
    )
