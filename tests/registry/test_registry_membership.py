"""An instance's membership in the group of the election, with a broker."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.options import AdminOptions, from_keywords
from ottla.registry.election import ElectionResult, InstanceIdentity
from ottla.registry.membership import Membership
from ottla.testing import broker

pytestmark = pytest.mark.server


def test_an_instance_is_not_elected_before_it_is_eligible() -> None:
    async def story(bootstrap: str) -> tuple[ElectionResult | None, ElectionResult | None, bool]:
        learned: asyncio.Queue[ElectionResult | None] = asyncio.Queue()
        options = from_keywords(AdminOptions, {"bootstrap_servers": bootstrap})
        member = Membership(options, "election", InstanceIdentity("127.0.0.1", 1), learned.put_nowait)
        member.start()
        try:
            while_it_reads = await learned.get()
            member.make_eligible()
            async with asyncio.timeout(60):
                return while_it_reads, await learned.get(), member.is_elected
        finally:
            await member.stop()

    with broker() as started:
        while_it_reads, then, elected = asyncio.run(story(started.bootstrap_servers))
    assert while_it_reads is not None and while_it_reads.master is None
    assert then is not None and then.master_identity is not None and then.master_identity.url == "http://127.0.0.1:1"
    assert elected
