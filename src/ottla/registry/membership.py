"""An instance's membership in the group that elects who writes: joins, sends heartbeats, joins again after a rebalance.

An instance joins while it still reads the topic, because a broker delays the first rebalance of a group (3 s by default). Until
`make_eligible` it says in its identity that it cannot be elected; then it joins again.

The instance counts as elected only while the coordinator answers heartbeats: after a session timeout without an answer others may have been
elected, so it stops writing first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from ottla.client.admin.calls import good
from ottla.client.errors import ConnectionFailed
from ottla.client.group.coordinator_lookup import COORDINATOR_PASSES, Coordinators
from ottla.client.options import AdminOptions
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.network import Network
from ottla.registry import election
from ottla.wire import errors
from ottla.wire.errors import KafkaError, error_for
from ottla.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

log = logging.getLogger(__name__)
SESSION_TIMEOUT_MS = 10_000
REBALANCE_TIMEOUT_MS = 60_000
#: How much longer than the rebalance a join may take.
JOIN_GRACE_MS = 5_000
BACKOFF_MS, BACKOFF_MAX_MS = 100, 2_000
#: LeaveGroup: first version with several members.
LEAVE_LIST_SINCE = 3


class Membership:
    """One instance in the group. Belongs to one event loop. `changed` is called after each election."""

    def __init__(
        self, options: AdminOptions, group: str, identity: election.InstanceIdentity,
        changed: Callable[[election.ElectionResult | None], None],
        *, session_timeout_ms: int = SESSION_TIMEOUT_MS, rng: Random | None = None,
    ) -> None:  # fmt: skip
        rng = rng or Random()
        self._network = Network(options, rng=rng, allow_auto_create=False)
        self._coordinators = Coordinators(self._network)
        self._group, self._identity, self._changed = group, identity, changed
        self._session_timeout_ms = session_timeout_ms
        self._backoff = Backoff(BACKOFF_MS, BACKOFF_MAX_MS, rng)
        self._member_id, self._generation = "", -1
        #: When the coordinator last confirmed the membership.
        self._confirmed_ms = float("-inf")
        self._elected = False
        #: Set when this instance may be elected, if its identity allows that.
        self._eligible = asyncio.Event()
        #: What the group knows of this instance.
        self._joined_as = identity
        self._task: asyncio.Task[None] | None = None
        self._last_error = ""

    def start(self) -> None:
        """Joins in the background, as an instance that cannot be elected yet."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def make_eligible(self) -> None:
        """The instance has read the topic, and may be elected."""
        self._eligible.set()

    @property
    def is_elected(self) -> bool:
        """Whether this instance may write now."""
        return self._elected and self._network.clock_ms() < self._confirmed_ms + self._session_timeout_ms

    async def stop(self) -> None:
        """Leaves the group, so that another instance is elected at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._elected = False
        if self._member_id:
            try:
                async with asyncio.timeout(2):
                    await self._ask(LeaveGroupRequest, self._leave_request)
            except (KafkaError, TimeoutError):
                pass
        await self._network.close()

    def _leave_request(self, version: int) -> LeaveGroupRequest:
        if version < LEAVE_LIST_SINCE:
            return LeaveGroupRequest(group_id=self._group, member_id=self._member_id)
        member = MemberIdentity(member_id=self._member_id, reason="the instance stops")
        return LeaveGroupRequest(group_id=self._group, members=[member])

    async def _run(self) -> None:
        while True:
            try:
                await self._join()
                self._backoff.succeeded()
                self._last_error = ""
                await self._beat()
            except KafkaError as error:
                if isinstance(error, errors.RebalanceInProgress | errors.MemberIdRequired):
                    continue
                if isinstance(error, errors.UnknownMemberId | errors.IllegalGeneration):
                    self._lost(error)
                    continue
                if str(error) != self._last_error:
                    self._last_error = str(error)
                    log.warning("group %s: %s; retrying", self._group, error)
                if not self.is_elected:
                    self._lost(error)
                await asyncio.sleep(self._backoff.failed() / 1000)

    def _lost(self, error: KafkaError) -> None:
        """The coordinator does not know this member, or did not answer for long."""
        if isinstance(error, errors.UnknownMemberId):
            self._member_id = ""
        if self._elected:
            self._elected = False
            self._changed(None)

    async def _ask(self, request: type[Any], build: Callable[[int], Any], *, timeout_ms: float | None = None) -> Any:
        """Asks the coordinator. Raises: KafkaError, also for an error code."""
        found = good((await self._coordinators.find([self._group]))[self._group])
        try:
            response = await self._network.ask_as(found, request, build, timeout_ms=timeout_ms or self._session_timeout_ms)
        except ConnectionFailed:
            self._coordinators.forget(self._group)
            raise
        if response.error_code:
            if response.error_code in COORDINATOR_PASSES:
                self._coordinators.forget(self._group)
            if response.error_code == errors.MemberIdRequired.code:
                self._member_id = response.member_id
            raise error_for(response.error_code, f"group {self._group}: {error_for(response.error_code).sentence}")
        return response

    async def _join(self) -> None:
        joins_ms = self._network.clock_ms()
        may_lead = self._identity.master_eligibility and self._eligible.is_set()
        self._joined_as = msgspec.structs.replace(self._identity, leader=self._elected, master_eligibility=may_lead)
        identity = election.encode(self._joined_as)
        response = await self._ask(
            JoinGroupRequest,
            lambda _: JoinGroupRequest(
                group_id=self._group, session_timeout_ms=self._session_timeout_ms, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                member_id=self._member_id, protocol_type=election.PROTOCOL_TYPE,
                protocols=[JoinGroupRequestProtocol(name=election.PROTOCOL, metadata=identity)],
            ),
            timeout_ms=REBALANCE_TIMEOUT_MS + JOIN_GRACE_MS,
        )  # fmt: skip
        self._member_id, self._generation = response.member_id, response.generation_id
        assigned: list[SyncGroupRequestAssignment] = []
        if response.leader == response.member_id:
            try:
                members = {one.member_id: election.decode_identity(one.metadata) for one in response.members}
            except msgspec.MsgspecError as error:
                raise errors.UnknownServerError(f"group {self._group} has a member that is no schema registry: {error}") from None
            result = election.encode(election.elect(members))
            assigned = [SyncGroupRequestAssignment(member_id=member, assignment=result) for member in members]
        synced = await self._ask(
            SyncGroupRequest,
            lambda _: SyncGroupRequest(
                group_id=self._group, generation_id=self._generation, member_id=self._member_id, protocol_type=election.PROTOCOL_TYPE,
                protocol_name=election.PROTOCOL, assignments=assigned,
            ),
        )  # fmt: skip
        self._confirmed_ms = max(self._confirmed_ms, joins_ms)
        self._learn(synced.assignment)

    def _learn(self, data: bytes) -> None:
        try:
            assignment = election.decode_assignment(data)
        except msgspec.MsgspecError as error:
            raise errors.UnknownServerError(f"group {self._group}: the assignment is not one of schema registries: {error}") from None
        if assignment.error == election.DUPLICATE_URLS:
            log.error("group %s: two instances have the same URL; give each its own with --advertise", self._group)
        self._elected = assignment.master == self._member_id and assignment.error != election.DUPLICATE_URLS
        self._confirmed_ms = self._network.clock_ms()
        self._changed(assignment)

    async def _beat(self) -> None:
        """Sends heartbeats until an error, or until this instance may be elected and the group does not know it."""
        while not await self._may_lead_now(self._session_timeout_ms / 3000):
            sent_ms = self._network.clock_ms()
            await self._ask(
                HeartbeatRequest,
                lambda _: HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._member_id),
            )
            self._confirmed_ms = sent_ms

    async def _may_lead_now(self, wait_s: float) -> bool:
        """Waits; whether this instance may be elected, and joined as one that cannot be."""
        if not self._identity.master_eligibility or self._joined_as.master_eligibility:
            await asyncio.sleep(wait_s)
            return False
        try:
            async with asyncio.timeout(wait_s):
                await self._eligible.wait()
        except TimeoutError:
            return False
        return True
