"""Addresses in settings: ``HOST:PORT``, ``[::1]:9092``, ``:9092``."""

from ottla.base.listeners import Address, plaintext
from ottla.base.options import ConfigError

__all__ = ["Address", "address_text", "listener_text", "parse_address"]


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


def listener_text(address: Address) -> str:
    """As in ``listeners``: a plaintext listener with this address."""
    return plaintext(*address).text


def address_text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
