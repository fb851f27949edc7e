"""Delegation tokens: who may create, renew, expire and see them, what the store gets, and when they end."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from access_rules import grant, guarded, rule
from cluster import Broker, Cluster

from ottla.base.acls import Operation, ResourceType
from ottla.base.delegation_tokens import token_hmac
from ottla.base.origin import ANONYMOUS
from ottla.store import layout
from ottla.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from ottla.wire.messages.describe_delegation_token import DescribeDelegationTokenOwner, DescribeDelegationTokenRequest
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.wire.messages.renew_delegation_token import RenewDelegationTokenRequest

DAY_MS = 24 * 3600 * 1000
ALICE, BOB, CAROL = "User:alice", "User:bob", "User:carol"
DISABLED, NOT_FOUND, MISMATCH, NOT_ALLOWED, UNAUTHORIZED, EXPIRED, WRONG_TYPE, POLICY = 61, 62, 63, 64, 65, 66, 67, 44


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    yield Cluster(2, settings={"delegation.token.secret.key": "key", "ottla.delegation.tokens.max": "3"})


def create(broker: Broker, principal: str = ALICE, *, renewers: tuple[str, ...] = (), lifetime_ms: int = -1, **owner: str) -> Any:
    request = CreateDelegationTokenRequest(
        renewers=[CreatableRenewers(principal_type="User", principal_name=name) for name in renewers], max_lifetime_ms=lifetime_ms, **owner
    )
    return broker.ask(request, 3, principal=principal)


def renew(broker: Broker, hmac: bytes, principal: str = ALICE, period_ms: int = -1) -> tuple[int, int]:
    response = broker.ask(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms), 2, principal=principal)
    return response.error_code, response.expiry_timestamp_ms


def expire(broker: Broker, hmac: bytes, principal: str = ALICE, period_ms: int = -1) -> tuple[int, int]:
    response = broker.ask(ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms), 2, principal=principal)
    return response.error_code, response.expiry_timestamp_ms


def described(broker: Broker, principal: str = ALICE, owners: list[str] | None = None) -> list[str]:
    named = None if owners is None else [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in owners]
    return [token.token_id for token in broker.ask(DescribeDelegationTokenRequest(owners=named), 3, principal=principal).tokens]


def test_a_token_is_stored_in_kafkas_layout_and_its_hmac_is_computed(cluster: Cluster) -> None:
    made = create(cluster[2], renewers=("bob",))
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "alice", "alice")
    assert made.hmac == token_hmac(made.token_id, "key")
    assert (made.expiry_timestamp_ms - made.issue_timestamp_ms, made.max_timestamp_ms - made.issue_timestamp_ms) == (DAY_MS, 7 * DAY_MS)
    node = msgspec.json.decode(cluster.store.tree.nodes[f"/delegation_token/tokens/{made.token_id}"].data)
    assert node == {
        "version": 3, "owner": "User%3Aalice", "tokenRequester": "User%3Aalice", "renewers": ["User%3Abob"], "tokenId": made.token_id,
        "issueTimestamp": made.issue_timestamp_ms, "expiryTimestamp": made.expiry_timestamp_ms, "maxTimestamp": made.max_timestamp_ms,
    }  # fmt: skip
    assert described(cluster[1]) == [made.token_id]


def test_only_authenticated_clients_without_a_token_may_request_tokens(cluster: Cluster) -> None:
    hmac = create(cluster[1]).hmac
    for request, version in (
        (CreateDelegationTokenRequest(), 3),
        (RenewDelegationTokenRequest(hmac=hmac), 2),
        (ExpireDelegationTokenRequest(hmac=hmac), 2),
        (DescribeDelegationTokenRequest(owners=None), 3),
    ):
        assert cluster[1].ask(request, version, principal=ANONYMOUS).error_code == NOT_ALLOWED
        assert cluster[1].ask(request, version, principal=ALICE, token=True).error_code == NOT_ALLOWED


def test_tokens_need_a_key() -> None:
    cluster = Cluster()
    assert create(cluster[1]).error_code == DISABLED
    assert (
        Cluster(settings={"delegation.token.master.key": "old"})[1].ask(CreateDelegationTokenRequest(), 3, principal=ALICE).error_code == 0
    )


def test_a_token_is_its_requesters_and_renewers_are_users(cluster: Cluster) -> None:
    assert create(cluster[1], owner_principal_type="User", owner_principal_name="bob").error_code == UNAUTHORIZED
    wrong = CreateDelegationTokenRequest(renewers=[CreatableRenewers(principal_type="Group", principal_name="x")])
    assert cluster[1].ask(wrong, 3, principal=ALICE).error_code == WRONG_TYPE


def test_the_number_of_tokens_is_limited(cluster: Cluster) -> None:
    assert [create(cluster[1]).error_code for _ in range(4)] == [0, 0, 0, POLICY]


@pytest.mark.slow
def test_owner_and_renewers_renew_up_to_the_maximum_lifetime(cluster: Cluster) -> None:
    made = create(cluster[1], renewers=("bob",), lifetime_ms=2 * DAY_MS)
    assert renew(cluster[2], made.hmac, CAROL) == (MISMATCH, -1)
    cluster.pass_ms(DAY_MS // 2)
    error, expires_ms = renew(cluster[2], made.hmac, BOB)
    assert (error, expires_ms // 60_000) == (0, (made.issue_timestamp_ms + DAY_MS // 2 + DAY_MS) // 60_000)
    cluster.pass_ms(DAY_MS)
    assert renew(cluster[2], made.hmac, ALICE) == (0, made.max_timestamp_ms)
    assert renew(cluster[2], b"x" * 64) == (NOT_FOUND, -1)


def test_a_token_is_expired_at_once_or_later(cluster: Cluster) -> None:
    made = create(cluster[1])
    assert expire(cluster[1], made.hmac, BOB) == (MISMATCH, -1)
    error, expires_ms = expire(cluster[1], made.hmac, period_ms=5_000)
    assert error == 0
    assert expires_ms < made.expiry_timestamp_ms
    cluster.pass_ms(6_000)
    assert renew(cluster[1], made.hmac) == (EXPIRED, -1)
    assert expire(cluster[1], made.hmac)[0] == 0
    assert described(cluster[2]) == []
    assert expire(cluster[1], made.hmac) == (NOT_FOUND, -1)


def test_expired_tokens_are_deleted_by_the_controller(cluster: Cluster) -> None:
    made = create(cluster[2], lifetime_ms=10_000)
    path = layout.delegation_token(made.token_id)
    assert path in cluster.store.tree.nodes
    cluster.pass_ms(3_700_000)
    assert path not in cluster.store.tree.nodes


def test_a_client_sees_the_tokens_that_it_owns_or_may_renew(cluster: Cluster) -> None:
    first, second = create(cluster[1], renewers=("bob",)).token_id, create(cluster[1], CAROL).token_id
    assert described(cluster[1]) == [first]
    assert described(cluster[1], BOB) == [first]
    assert described(cluster[1], CAROL) == [second]
    assert described(cluster[1], owners=["carol"]) == []
    assert described(cluster[1], owners=[]) == []


def test_access_rules_allow_to_create_and_see_tokens_of_others() -> None:
    cluster = guarded(delegation_token_secret_key="key")
    assert create(cluster[1], BOB, owner_principal_type="User", owner_principal_name="alice").error_code == UNAUTHORIZED
    grant(cluster, rule(Operation.CREATE_TOKENS, ResourceType.USER, ALICE, principal=BOB))
    made = create(cluster[1], BOB, owner_principal_type="User", owner_principal_name="alice")
    assert (made.error_code, made.principal_name) == (0, "alice")
    assert described(cluster[1], CAROL) == []
    grant(cluster, rule(Operation.DESCRIBE_TOKENS, ResourceType.USER, ALICE, principal=CAROL))
    assert described(cluster[1], CAROL) == [made.token_id]
    assert described(cluster[1], "User:dave") == []
    grant(cluster, rule(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, made.token_id, principal="User:dave"))
    assert described(cluster[1], "User:dave") == [made.token_id]
