"""Which clients may send requests that only brokers send: those at an address of a registered broker.

AlterPartition changes who can lead; a Fetch with a replica id moves the high watermark. A client that sends one by mistake, or a broker of
another cluster with a wrong address, must not do either. Without authentication the address is all that is known of a sender.

The process resolves the hosts of all registrations, and those of ``ottla.peers.hosts``, and passes the addresses as ``PeersResolved``. A
request is accepted from these addresses, from the networks of the setting, from loopback addresses, from the address to which the client
connected (the same machine), and from brokers of the same process. Before the first ``PeersResolved`` every address is accepted.
"""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from ottla.broker.events import PeersResolved

#: Client id of requests between brokers.
PEER = "ottla-broker"
#: Value of the setting that accepts every address.
ANY = "*"
#: Addresses whose result is remembered.
REMEMBERED = 1_000


def entries(setting: str) -> list[str]:
    """The hosts, addresses and networks of the setting."""
    return [entry for part in setting.split(",") if (entry := part.strip())]


def network_of(entry: str) -> IPv4Network | IPv6Network | None:
    """An address or a network; None for a host name."""
    try:
        return ip_network(entry, strict=False)
    except ValueError:
        return None


class PeerAddresses:
    """The addresses of brokers."""

    def __init__(self, setting: str) -> None:
        found = entries(setting)
        self._any = ANY in found
        self._networks = [network for entry in found if (network := network_of(entry)) is not None]
        #: None before the first resolution.
        self._addresses: frozenset[str] | None = None
        #: Refused clients that were reported; at most ``REMEMBERED``.
        self._reported: set[str] = set()
        self._is_local_or_configured = lru_cache(REMEMBERED)(self._look)

    def resolved(self, event: PeersResolved) -> None:
        """Adopts the addresses of all registered brokers."""
        self._addresses = frozenset(event.addresses)

    def accept(self, host: str, local: str) -> bool:
        """Whether a client at the address ``host``, connected to ``local``, may be a broker; an empty host is this process."""
        addresses = self._addresses
        if addresses is None or self._any or host in addresses or host in ("", local):
            return True
        return self._is_local_or_configured(host)

    def is_new(self, host: str) -> bool:
        """Whether a refused client is to be reported: once each."""
        if host in self._reported or len(self._reported) >= REMEMBERED:
            return False
        self._reported.add(host)
        return True

    def _look(self, host: str) -> bool:
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return address.is_loopback or any(address in network for network in self._networks if network.version == address.version)
