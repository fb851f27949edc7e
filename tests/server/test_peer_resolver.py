"""Addresses of registered brokers: resolved in the background, and told to the broker when they change."""

import asyncio

from ottla.broker.events import PeersResolved
from ottla.server.peer_resolver import PeerResolver


async def test_hosts_of_registrations_and_of_the_setting_are_resolved() -> None:
    hosts = ["127.0.0.1"]
    told: asyncio.Queue[PeersResolved] = asyncio.Queue()
    resolver = PeerResolver("localhost, 10.0.0.0/8, *", lambda: hosts, told.put_nowait)
    resolver.look()
    assert "127.0.0.1" in (await told.get()).addresses
    hosts.append("192.0.2.7")
    resolver.look()
    assert "192.0.2.7" in (await told.get()).addresses
    resolver.stop()


async def test_host_that_cannot_be_resolved_leaves_the_others() -> None:
    told: asyncio.Queue[PeersResolved] = asyncio.Queue()
    resolver = PeerResolver("", lambda: ["192.0.2.7", "bad..name"], told.put_nowait)
    resolver.look()
    assert (await told.get()).addresses == ("192.0.2.7",)
    resolver.stop()
