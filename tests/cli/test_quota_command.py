"""`ottla quota`."""

from __future__ import annotations

import pytest
from fake_admin import FakeAdmin

from commands import Ottla, documents, refused, rows
from ottla.client.admin.quotas import QuotaEntity


def test_quotas_are_set_listed_and_removed(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert rows(ottla("quota", "set", "--user", "alice", "producer_byte_rate=10MiB", "request_percentage=12.5")).splitlines() == [
        "alice\t-\t-\tproducer_byte_rate\t\t10485760",
        "alice\t-\t-\trequest_percentage\t\t12.5",
    ]
    rows(ottla("quota", "set", "--user-default", "--client-id", "etl", "consumer_byte_rate=1000"))
    rows(ottla("quota", "set", "--ip-default", "connection_creation_rate=5"))
    assert rows(ottla("quota", "list")).splitlines() == [
        "-\t-\t(default)\tconnection_creation_rate\t5",
        "(default)\tetl\t-\tconsumer_byte_rate\t1000",
        "alice\t-\t-\tproducer_byte_rate\t10485760",
        "alice\t-\t-\trequest_percentage\t12.5",
    ]
    assert rows(ottla("quota", "remove", "--user", "alice", "producer_byte_rate")) == "alice\t-\t-\tproducer_byte_rate\t10485760\t\n"
    rows(ottla("quota", "remove", "--user", "alice"))
    assert QuotaEntity(user="alice") not in cluster.quotas


def test_documents_tell_the_default_from_no_part(cluster: FakeAdmin, ottla: Ottla) -> None:
    cluster.quotas[QuotaEntity(user="")] = {"consumer_byte_rate": 1.0}
    (found,) = documents(ottla("quota", "list", "--user-default", "-o", "json"), "quota", "list")
    assert found == {"user": "", "client_id": None, "ip": None, "quota": "consumer_byte_rate", "value": 1.0}


def test_a_dry_run_changes_nothing(cluster: FakeAdmin, ottla: Ottla) -> None:
    result = ottla("quota", "set", "--user", "alice", "producer_byte_rate=1", "--dry-run")
    assert "Nothing was changed." in result.stderr
    assert not cluster.quotas


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "producer_byte_rate=1"), "missing an entity"),
        (("set", "--user", "a", "producer_byte_rate"), "expected QUOTA=NUMBER"),
        (("set", "--user", "a", "producer_byte_rate=x"), "expected QUOTA=NUMBER"),
        (("set", "--user", "a", "--user-default", "producer_byte_rate=1"), "exclude each other"),
        (("set", "--user", "", "producer_byte_rate=1"), "--user-default"),
        (("set", "--user", "a", "--ip", "1.2.3.4", "producer_byte_rate=1"), "--ip excludes"),
    ],
)
def test_mistakes_are_usage_errors(cluster: FakeAdmin, ottla: Ottla, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(ottla("quota", *arguments), 2)


def test_a_quota_that_does_not_exist_is_not_removed(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert "has no quotas" in refused(ottla("quota", "remove", "--user", "a"))
    cluster.quotas[QuotaEntity(user="a")] = {"consumer_byte_rate": 1.0}
    assert "it has consumer_byte_rate" in refused(ottla("quota", "remove", "--user", "a", "producer_byte_rate"))
