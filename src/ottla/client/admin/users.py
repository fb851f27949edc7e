"""Admin requests about users: SCRAM credentials.

    await admin.set_scram_credential("alice", ScramMechanism.SHA_512, password)

The password does not leave the client: it sends the salted password, from which the broker derives the keys that it stores.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from functools import partial

from ottla.base.scram import BY_CODE, ITERATIONS_MIN, ScramMechanism, salted_password
from ottla.client.admin.calls import HasCalls, Outcome, failed, good
from ottla.client.admin.user_results import ScramCredentialInfo
from ottla.wire import messages as m
from ottla.wire.errors import ResourceNotFound

SALT_BYTES = 24


async def describe_scram_credentials(
    self: HasCalls, users: Iterable[str] | None = None, *, timeout_ms: float | None = None
) -> dict[str, Outcome[list[ScramCredentialInfo]]]:
    """Mechanisms and iterations of these users' credentials, or of all users that have any.

    Example: `admin.describe_scram_credentials(["ann"])`.
    """
    names = None if users is None else [m.UserName(name=user) for user in users]
    if names == []:
        return {}
    request = m.DescribeUserScramCredentialsRequest(users=names)
    response = await self._calls.any_broker(request, timeout_ms, "describing users")
    return {
        one.user: failed(one)
        or [ScramCredentialInfo(BY_CODE[info.mechanism], info.iterations) for info in one.credential_infos if info.mechanism in BY_CODE]
        for one in response.results
    }


async def set_scram_credential(
    self: HasCalls,
    user: str,
    mechanism: ScramMechanism,
    password: str,
    *,
    iterations: int = ITERATIONS_MIN,
    timeout_ms: float | None = None,
) -> None:
    """Set a user's password for a mechanism; the user exists from then on. Raises: UnacceptableCredential, for the iterations.

    Example: `admin.set_scram_credential("ann", ScramMechanism.SHA_512, password, iterations=8192)`.
    """
    salt = os.urandom(SALT_BYTES)
    salting = partial(salted_password, mechanism, password, salt, iterations)
    salted = await asyncio.get_running_loop().run_in_executor(None, salting)
    upsertion = m.ScramCredentialUpsertion(name=user, mechanism=mechanism.code, iterations=iterations, salt=salt, salted_password=salted)
    await _alter(self, user, m.AlterUserScramCredentialsRequest(upsertions=[upsertion]), timeout_ms)


async def delete_scram_credential(self: HasCalls, user: str, mechanism: ScramMechanism, *, timeout_ms: float | None = None) -> None:
    """Delete a user's credential of a mechanism; open connections stay open. Raises: ResourceNotFound.

    Example: `admin.delete_scram_credential("ann", ScramMechanism.SHA_512)`.
    """
    deletion = m.ScramCredentialDeletion(name=user, mechanism=mechanism.code)
    await _alter(self, user, m.AlterUserScramCredentialsRequest(deletions=[deletion]), timeout_ms)


async def _alter(self: HasCalls, user: str, request: m.AlterUserScramCredentialsRequest, timeout_ms: float | None) -> None:
    async def ask(_: list[str], left_ms: float) -> dict[str, Outcome[None]]:
        response = await self._calls.controller(request, lambda found: [one.error_code for one in found.results], left_ms)
        return {one.user: failed(one) for one in response.results}

    outcome = await self._calls.each([user], ask, timeout_ms, "changing the credentials of")
    if user not in outcome:
        raise ResourceNotFound(f"the broker did not answer for user {user!r}")
    good(outcome[user])
