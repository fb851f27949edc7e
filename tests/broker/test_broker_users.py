"""SCRAM credentials: what the store gets, what is refused, and what is described."""

from typing import Any

import pytest
from cluster import Broker, Cluster

from ottla.base.ports import Op
from ottla.base.scram import ScramCredential, ScramMechanism, salted_password
from ottla.store import layout
from ottla.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName

SALT = b"0123456789abcdef"
SALTED = {mechanism: salted_password(mechanism, "secret", SALT, 4096) for mechanism in ScramMechanism}
NONE, DUPLICATE, NOT_FOUND, UNACCEPTABLE, UNSUPPORTED, POLICY = 0, 92, 91, 93, 33, 44


def upsertion(user: str = "alice", mechanism: ScramMechanism = ScramMechanism.SHA_256, **changed: Any) -> ScramCredentialUpsertion:
    given: dict[str, Any] = {"mechanism": mechanism.code, "iterations": 4096, "salt": SALT, "salted_password": SALTED[mechanism]}
    return ScramCredentialUpsertion(name=user, **{**given, **changed})


def alter(broker: Broker, *alterations: ScramCredentialUpsertion | ScramCredentialDeletion) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=[one for one in alterations if isinstance(one, ScramCredentialDeletion)],
        upsertions=[one for one in alterations if isinstance(one, ScramCredentialUpsertion)],
    )
    return {one.user: one.error_code for one in broker.ask(request, 0).results}


def described(broker: Broker, *users: str) -> dict[str, Any]:
    response = broker.ask(DescribeUserScramCredentialsRequest(users=[UserName(name=user) for user in users] or None), 0)
    return {one.user: [(info.mechanism, info.iterations) for info in one.credential_infos] or one.error_code for one in response.results}


def stored(cluster: Cluster, user: str = "alice") -> dict[str, str]:
    node = cluster.store.tree.nodes.get(layout.config("users", user))
    return {} if node is None else layout.decode_config(node.data)


def test_a_credential_is_stored_in_kafkas_layout_at_the_controller() -> None:
    cluster = Cluster(3)
    assert alter(cluster[2], upsertion(), upsertion(mechanism=ScramMechanism.SHA_512), upsertion("bob")) == {"alice": NONE, "bob": NONE}
    expected = ScramCredential.of_password(ScramMechanism.SHA_256, "secret", SALT, 4096)
    assert stored(cluster)["SCRAM-SHA-256"] == expected.text
    for broker in cluster.brokers.values():
        assert described(broker) == {"alice": [(1, 4096), (2, 4096)], "bob": [(1, 4096)]}


def test_other_settings_of_the_user_stay() -> None:
    cluster = Cluster()
    path = layout.config("users", "alice")
    cluster.store.session().submit((Op("create", path, layout.encode_config({"producer_byte_rate": "1024"})),), lambda result: None)
    cluster.run()
    alter(cluster[1], upsertion())
    assert stored(cluster).keys() == {"producer_byte_rate", "SCRAM-SHA-256"}
    assert alter(cluster[1], ScramCredentialDeletion(name="alice", mechanism=1)) == {"alice": NONE}
    assert stored(cluster) == {"producer_byte_rate": "1024"}


def test_the_last_credential_of_a_user_takes_its_node_along() -> None:
    cluster = Cluster()
    alter(cluster[1], upsertion())
    alter(cluster[1], ScramCredentialDeletion(name="alice", mechanism=1))
    assert layout.config("users", "alice") not in cluster.store.tree.nodes
    assert described(cluster[1], "alice") == {"alice": NOT_FOUND}


@pytest.mark.parametrize(
    ("alterations", "error"),
    [
        ([upsertion("")], UNACCEPTABLE),
        ([upsertion("<default>")], UNACCEPTABLE),
        ([upsertion(iterations=4095)], UNACCEPTABLE),
        ([upsertion(iterations=16_385)], UNACCEPTABLE),
        ([upsertion(salted_password=b"short")], UNACCEPTABLE),
        ([upsertion(salt=b"")], UNACCEPTABLE),
        ([ScramCredentialDeletion(name="alice", mechanism=3)], UNSUPPORTED),
        ([upsertion(), upsertion()], DUPLICATE),
        ([ScramCredentialDeletion(name="alice", mechanism=1), upsertion()], DUPLICATE),
        ([ScramCredentialDeletion(name="alice", mechanism=2)], NOT_FOUND),
        ([upsertion(), ScramCredentialDeletion(name="alice", mechanism=2)], NOT_FOUND),
    ],
)
def test_a_wrong_alteration_changes_nothing_for_its_user(alterations: list[Any], error: int) -> None:
    cluster = Cluster()
    assert list(alter(cluster[1], *alterations, upsertion("bob")).values()) == [error, NONE]
    assert stored(cluster) == {}
    assert stored(cluster, "bob")


def test_users_count_for_the_limit_of_settings() -> None:
    cluster = Cluster(settings={"ottla.config.max.bytes": "2000"})
    outcomes = alter(cluster[1], *(upsertion(f"user-{number}") for number in range(5)))
    assert sorted(outcomes.values()) == [NONE, POLICY, POLICY, POLICY, POLICY]


def test_a_user_that_is_described_twice_is_refused() -> None:
    cluster = Cluster()
    alter(cluster[1], upsertion())
    assert described(cluster[1], "alice", "alice", "bob") == {"alice": DUPLICATE, "bob": NOT_FOUND}
