"""`ottla backup` and `ottla restore`: from one broker into another."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import Ottla, documents, good, refused
from ottla.base.acls import Operation, Permission, ResourceType
from ottla.base.ids import TopicPartition
from ottla.base.scram import ScramMechanism
from ottla.cli.backup.content import Backup, SavedBroker, SavedGroup, SavedOffset, SavedTopic
from ottla.cli.backup.plan import Choices, plan
from ottla.client.admin import results as r
from ottla.client.admin.acl_results import Acl
from ottla.client.admin.calls import good as good_outcome
from ottla.client.admin.quotas import QuotaEntity
from ottla.client.sync.admin import Admin
from ottla.client.sync.producer import Producer
from ottla.testing.in_process_broker import Broker

AUTHORIZED = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
ALICE = QuotaEntity(user="alice")
ALLOW = Acl(principal="User:alice", operation=Operation.READ, resource_type=ResourceType.TOPIC, name="orders")
DENY = Acl(principal="User:*", operation=Operation.WRITE, resource_type=ResourceType.TOPIC, name="orders", permission=Permission.DENY)
COUNTS = {"topics": 2, "settings": 4, "acls": 2, "quotas": 1, "users": 1, "groups": 1}


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    """A cluster that has one of everything."""
    with Broker(settings=AUTHORIZED) as broker:
        with Admin(**broker.client_settings()) as admin:
            admin.create_topics([r.NewTopic("orders", 2, configs={"retention.ms": 1000}), r.NewTopic("empty", 1)])
            admin.incremental_alter_config(r.Resource.broker(None), {"log.retention.ms": 5000})
            admin.incremental_alter_config(r.Resource.broker(1), {"log.cleaner.threads": 2})
            admin.incremental_alter_config(r.Resource.group("readers"), {"consumer.session.timeout.ms": 50000})
            admin.incremental_alter_config(r.Resource.client_metrics("slow"), {"interval.ms": 1000})
            admin.create_acls([ALLOW, DENY])
            admin.alter_client_quotas({ALICE: {"producer_byte_rate": 1000.0}})
            admin.set_scram_credential("alice", ScramMechanism.SHA_512, "s3cret")
            with Producer(**broker.client_settings()) as producer:
                for _ in range(5):
                    producer.send("orders", b"v", partition=0)
            admin.alter_consumer_group_offsets("readers", {("orders", 0): 3, ("empty", 0): 0})
        yield broker


@pytest.fixture(scope="module")
def saved(source: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from click.testing import CliRunner

    from ottla.cli.main import main

    path = tmp_path_factory.mktemp("backup") / "cluster.json"
    done = CliRunner().invoke(main, ["backup", str(path), "-b", source.bootstrap_servers, "-o", "json"])
    assert {one["part"]: one["number"] for one in documents(done, "backup")["parts"]} == COUNTS, done.output
    return path


def test_a_backup_is_one_private_file_without_secrets(saved: Path) -> None:
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert [path.name for path in saved.parent.iterdir()] == ["cluster.json"]
    text = saved.read_text()
    assert "s3cret" not in text
    content = json.loads(text)
    assert content["users"] == [{"name": "alice", "mechanisms": {"SCRAM-SHA-512": 4096}}]
    assert content["groups"] == [
        {"name": "readers", "offsets": {"empty": {"0": {"offset": 0}}, "orders": {"0": {"offset": 3}}}, "has_members": False}
    ]
    assert content["brokers"][0]["static_settings"]["offsets.topic.num.partitions"] == "1"


def test_an_existing_file_is_replaced_only_on_request(source: Broker, saved: Path, ottla: Ottla, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text("mine")
    assert "exists; choose another name, or replace it with --overwrite" in refused(
        ottla("backup", str(path), "-b", source.bootstrap_servers)
    )
    assert path.read_text() == "mine"
    good(ottla("backup", str(path), "-b", source.bootstrap_servers, "--overwrite", "--without", "acls"))
    assert json.loads(path.read_text())["acls"] is None


def test_a_restore_makes_an_empty_cluster_equal_and_repeating_it_changes_nothing(saved: Path, ottla: Ottla) -> None:
    with Broker(settings=AUTHORIZED) as target, Admin(**target.client_settings()) as admin:

        def restore(*options: str) -> Any:
            return documents(ottla("restore", str(saved), "-b", target.bootstrap_servers, "-o", "json", *options), "restore")

        preview = restore("--dry-run")
        assert not preview["executed"] and {one["outcome"] for one in preview["changes"]} == {"would be done"}
        assert admin.list_topics() == []
        assert "Confirm with --yes" in refused(ottla("restore", str(saved), "-b", target.bootstrap_servers), 2)
        assert admin.list_topics() == []

        done = restore("--yes")
        assert [(one["part"], one["name"]) for one in done["changes"]] == [
            ("acls", "User:*"), ("acls", "User:alice"), ("quotas", "user alice"), ("topics", "empty"), ("topics", "orders"),
            ("settings", "broker (default for all)"), ("settings", "broker 1"), ("settings", "client metrics slow"),
            ("settings", "group readers"), ("groups", "readers"),
        ]  # fmt: skip
        assert set(admin.describe_acls()) == {ALLOW, DENY}
        assert admin.describe_client_quotas() == {ALICE: {"producer_byte_rate": 1000.0}}
        assert [(topic.name, topic.partition_count) for topic in admin.list_topics()] == [("empty", 1), ("orders", 2)]
        assert admin.describe_config(r.Resource.topic("orders"))["retention.ms"].value == "1000"
        assert admin.describe_config(r.Resource.client_metrics("slow"))["interval.ms"].value == "1000"
        # The records are not there, so an offset behind the end of the log would lose nothing and skip everything that comes.
        assert set(good_outcome(admin.list_consumer_group_offsets(["readers"])["readers"])) == {TopicPartition("empty", 0)}
        assert done["remarks"] == [
            "user alice: set a password, which no backup has, with: ottla user add alice -m SCRAM-SHA-512",
            "group readers: offsets of orders are outside of its log: restore the records, then use --only groups (1 partitions)",
        ]
        assert restore("--yes")["changes"] == []


def test_what_brokers_refuse_is_named_and_the_rest_is_restored(source: Broker, saved: Path, ottla: Ottla) -> None:
    with Broker(settings=AUTHORIZED) as target, Admin(**target.client_settings()) as admin:
        failed = ottla(
            "restore", str(saved), "-b", target.bootstrap_servers, "--yes", "--replicas", "3", "--only", "topics", "--only", "quotas"
        )
        assert "Error: topics orders: " in refused(failed) and "1 are alive" in failed.stderr
        assert admin.list_topics() == [] and admin.describe_client_quotas() and not admin.describe_acls()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not a backup by ottla backup, or is damaged"),
        ('{"format": "other"}', 'its "format" is not "ottla-backup"'),
        ('{"format": "ottla-backup", "version": 2}', "has version 2 of the format, and this Ottla reads up to 1; upgrade Ottla"),
        ('{"format": "ottla-backup", "version": 1}', "missing required field"),
    ],
)
def test_a_file_that_is_no_backup_is_refused(source: Broker, ottla: Ottla, tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    assert problem in refused(ottla("restore", str(path), "-b", source.bootstrap_servers))


# Plans


def state(*topics: SavedTopic, groups: list[SavedGroup] | None = None, brokers: int = 1) -> Backup:
    found = [SavedBroker(number, "h", 9092) for number in range(1, brokers + 1)]
    return Backup("ottla-backup", 1, 0, "0", "id", found, topics=list(topics), settings=[], groups=groups)


def topic(partitions: int = 1, replicas: int = 1, **settings: str) -> SavedTopic:
    return SavedTopic("t", partitions, replicas, [list(range(1, replicas + 1))] * partitions, settings)


def test_topics_grow_and_never_shrink() -> None:
    grown = plan(state(topic(4)), state(topic(2)), {}, Choices())
    assert [(one.before, one.after) for one in grown.partitions] == [(2, 4)]
    kept = plan(state(topic(2)), state(topic(4)), {}, Choices())
    assert not kept.changes and kept.remarks == ["topic t keeps its 4 partitions; the backup has 2"]


def test_settings_that_only_the_cluster_has_stay() -> None:
    made = plan(state(topic(a="1", b="2")), state(topic(a="1", b="3", c="4")), {}, Choices())
    assert [(one.key, one.before, one.after) for one in made.settings] == [("b", "3", "2")]


def test_topics_return_to_their_brokers_if_all_are_there() -> None:
    same = Choices(same_brokers=True)
    assert plan(state(topic(1, 3)), state(brokers=3), {}, same).topics[0].replicas == [[1, 2, 3]]
    elsewhere = plan(state(topic(1, 3)), state(brokers=2), {}, same)
    assert elsewhere.topics[0].replicas == ()
    assert elsewhere.remarks == ["topic t: the cluster chooses its brokers, because broker 3 is not there"]


def test_fewer_replicas_than_must_be_in_sync_are_pointed_out() -> None:
    made = plan(state(topic(1, 3, **{"min.insync.replicas": "2"})), state(), {}, Choices(replicas=1))
    assert made.topics[0].replication_factor == 1
    assert made.remarks == ["topic t will refuse acks=all, because min.insync.replicas=2 is more than its 1 replicas: lower the setting"]


@pytest.mark.parametrize(
    ("present", "members", "reset", "committed", "remark"),
    [
        (None, False, False, True, ""),
        (5, False, False, False, ""),
        (9, False, False, False, "because they differ"),
        (9, False, True, True, ""),
        (None, True, False, False, "has members"),
    ],
)
def test_offsets_of_groups_are_committed_where_none_is(
    present: int | None, members: bool, reset: bool, committed: bool, remark: str
) -> None:
    saved = state(topic(), groups=[SavedGroup("g", {"t": {0: SavedOffset(5)}})])
    offsets = {} if present is None else {"t": {0: SavedOffset(present)}}
    now = state(topic(), groups=[SavedGroup("g", offsets, has_members=members)])
    made = plan(saved, now, {TopicPartition("t", 0): (0, 10)}, Choices(reset_offsets=reset))
    assert bool(made.offsets) == committed and bool(made.remarks) == bool(remark) and remark in "".join(made.remarks)
