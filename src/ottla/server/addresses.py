"""Addresses in settings: ``PLAINTEXT://HOST:PORT``, ``HOST:PORT``, ``[::1]:9092``, ``:9092``."""

from collections.abc import Sequence

from ottla.base.options import ConfigError

Address = tuple[str, int]
PROTOCOL = "PLAINTEXT"


def parse_address(text: str, *, name: str) -> Address:
    """Host and port; the host may be empty, which means every address. Raises: ConfigError about the setting ``name``."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(name, f"expected HOST:PORT, such as 127.0.0.1:9092, not {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(name, f"write an IPv6 address in brackets, such as [::1]:9092, not {text!r}")
    return host, int(port)


def parse_listener(text: str, *, name: str) -> Address:
    """As ``parse_address``, after ``PLAINTEXT://`` or another listener name. Raises: ConfigError."""
    protocol, slashes, address = text.strip().partition("://")
    if not slashes:
        raise ConfigError(name, f"expected {PROTOCOL}://HOST:PORT, not {text!r}")
    if protocol.upper() in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigError(name, f"{protocol} is not available in this version; use {PROTOCOL}://HOST:PORT")
    return parse_address(address, name=name)


def only_listener(texts: Sequence[str], *, name: str) -> Address:
    """The single address of a setting that may hold several in Kafka. Raises: ConfigError."""
    if len(texts) != 1:
        raise ConfigError(name, f"expected one listener, {PROTOCOL}://HOST:PORT, not {len(texts)}")
    return parse_listener(texts[0], name=name)


def listener_text(address: Address) -> str:
    return f"{PROTOCOL}://{address_text(address)}"


def address_text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
