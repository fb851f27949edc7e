"""The configuration of a process: data directory, settings, brokers and their listeners."""

from dataclasses import dataclass, field
from pathlib import Path

from ottla.base.options import ConfigError
from ottla.base.paths import NotLocal, local_path
from ottla.base.units import MiB
from ottla.broker.metadata.configs import ServerOptions, Settings
from ottla.net.connection_context import DUPLICATES_MAX, Limits
from ottla.net.listener import bound_socket
from ottla.server.addresses import Address, address_text, listener_text, only_listener
from ottla.server.data_directory import CannotStart

#: Descriptors reserved for anything but connections and log files.
SPARE_DESCRIPTORS = 128
#: Hosts that stand for every address of a machine.
ANY_ADDRESS = ("", "0.0.0.0", "::")
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

    def options(self) -> ServerOptions:
        """Options of the whole process. Raises: ConfigError."""
        return Settings(self.texts).options

    def listen(self) -> list[Address]:
        """The address of each broker: consecutive ports, or port 0 for free ones. Raises: ConfigError."""
        host, port = only_listener(self.options().listeners, name="listeners")
        if port and port + self.brokers > 65536:
            raise ConfigError("listeners", f"{self.brokers} brokers from port {port} on need ports above 65535")
        return [(host, port + number if port else 0) for number in range(self.brokers)]

    def warnings(self) -> list[str]:
        """Sentences about settings that are valid and unlikely to be what is meant. Raises: ConfigError."""
        options = self.options()
        host, port = only_listener(options.listeners, name="listeners")
        if host in ANY_ADDRESS and not options.advertised_listeners:
            return [
                "listening on every address without advertised.listeners: a client gets the address to which it connected, and brokers "
                f"on other machines cannot reach this one; set advertised.listeners=PLAINTEXT://HOST:{port} to a name that all can resolve"
            ]
        return []

    def broker_texts(self, number: int, address: Address) -> dict[str, str]:
        """Settings of the ``number``-th broker, which listens at ``address``. Raises: ConfigError."""
        options = self.options()
        texts = {**self.texts, "broker.id": str(options.broker_id + number), "listeners": listener_text(address)}
        texts["log.dirs"] = ",".join(map(str, self.log_dirs(number)))
        if options.advertised_listeners:
            host, port = only_listener(options.advertised_listeners, name="advertised.listeners")
            texts["advertised.listeners"] = listener_text((host, port + number if port else address[1]))
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
    """The bound socket of a broker, and its settings, which depend on the port."""

    def __init__(self, plan: ProcessPlan, number: int, address: Address) -> None:
        """Raises: ConfigError, CannotStart."""
        try:
            options = plan.options()
            self.socket = bound_socket(
                *address, send_bytes=options.socket_send_buffer_bytes, receive_bytes=options.socket_receive_buffer_bytes
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotStart(f"cannot listen on {address_text(address)}: {reason}; choose another --listen HOST:PORT") from None
        try:
            #: The address of the socket, and the advertised one.
            self.address: Address = (address[0] or "0.0.0.0", self.socket.getsockname()[1])
            self.settings = Settings(plan.broker_texts(number, self.address), plan.plugins)
            listeners = self.settings.options.advertised_listeners
            self.advertised = only_listener(listeners, name="advertised.listeners") if listeners else self.address
        except BaseException:
            self.socket.close()
            raise


def host_limits(text: str) -> tuple[tuple[str, int], ...]:
    """Hosts and numbers of ``max.connections.per.ip.overrides``."""
    pairs = [part.strip().rpartition(":") for part in text.split(",") if part.strip()]
    return tuple((host.strip("[]"), int(number)) for host, _, number in pairs)


def limits(options: ServerOptions, descriptors: int) -> Limits:
    """Limits from the options. Connections are also limited by the descriptors that log files leave."""
    return Limits(
        frame_bytes_max=options.socket_request_max_bytes,
        first_frame_bytes_max=min(options.first_request_max_bytes, options.socket_request_max_bytes),
        request_memory_bytes=REQUEST_MEMORY_BYTES if options.queued_max_request_bytes < 0 else options.queued_max_request_bytes,
        connections_max=min(options.max_connections, max(descriptors // 2 - DUPLICATES_MAX - SPARE_DESCRIPTORS, 16)),
        connections_per_host_max=options.max_connections_per_ip,
        connections_of_hosts=host_limits(options.max_connections_per_ip_overrides),
        connection_rate=options.max_connection_creation_rate,
        idle_ms=options.connections_max_idle_ms,
        read_timeout_ms=options.request_read_timeout_ms,
        write_buffer_bytes_max=options.write_buffer_max_bytes,
        write_timeout_ms=options.write_timeout_ms,
        answer_bytes_max=options.answers_max_bytes,
    )
