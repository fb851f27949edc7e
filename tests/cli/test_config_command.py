"""`ottla config`, and `ottla broker config`."""

from __future__ import annotations

import pytest
from fake_admin import FakeAdmin

from commands import Ottla, documents, good, refused, rows
from ottla.cli.config.alter import synonym_text
from ottla.client.admin.results import ConfigSource, ConfigSynonym, Resource

ORDERS, CLUSTER = Resource.topic("orders"), Resource.broker(None)


def test_overrides_are_shown_with_source_and_default(cluster: FakeAdmin, ottla: Ottla) -> None:
    result = ottla("config", "describe", "topic", "orders")
    assert good(result) == ""
    assert "no overrides" in result.stderr
    cluster.set[ORDERS] = {"retention.ms": "5"}
    assert rows(ottla("config", "describe", "topic", "orders")) == "orders\tretention.ms\t5\ttopic\t604800000\n"
    (report,) = documents(ottla("config", "describe", "topic", "orders", "-o", "json"), "config", "describe")
    assert report["documentation"] == "What retention.ms is for."
    assert report["synonyms"][1] == {"name": "retention.ms", "value": "604800000", "source": "default"}


def test_a_pattern_selects_settings_of_every_source(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert rows(ottla("config", "describe", "topic", "orders", "payments", "-s", "seg*")).splitlines() == [
        "orders\tsegment.bytes\t1073741824\tdefault\t1073741824",
        "payments\tsegment.bytes\t1073741824\tdefault\t1073741824",
    ]
    assert len(rows(ottla("config", "describe", "topic", "orders", "--all")).splitlines()) == 4
    assert "did you mean segment.bytes?" in refused(ottla("config", "describe", "topic", "orders", "-s", "segments.bytes"))


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_large_numbers_in_larger_units_too(cluster: FakeAdmin, ottla: Ottla) -> None:
    output = good(ottla("config", "describe", "topic", "orders", "--all"))
    assert "604800000 (7d)" in output
    assert "1073741824 (1.0 GiB)" in output
    assert "604800000 (7d)" in good(ottla("config", "set", "topic", "orders", "retention.ms=1", "--dry-run"))


def test_secrets_are_hidden(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert "ssl.key.password\t(hidden)" in good(ottla("config", "describe", "broker", "1", "--all"))
    report = documents(ottla("broker", "config", "1", "-s", "ssl.key.password", "-o", "json"), "broker", "config")
    assert (report[0]["sensitive"], report[0]["value"]) == (True, None)


def test_the_cluster_lists_settings_of_all_brokers(cluster: FakeAdmin, ottla: Ottla) -> None:
    rows(ottla("config", "set", "cluster", "num.io.threads=16"))
    assert rows(ottla("config", "describe", "cluster")) == "cluster\tnum.io.threads\t16\tdynamic_default_broker\t8\n"
    assert rows(ottla("broker", "config", "2")) == "2\tnum.io.threads\t16\tdynamic_default_broker\t8\n"


def test_changes_are_reported_with_the_old_and_new_value(cluster: FakeAdmin, ottla: Ottla) -> None:
    report = documents(ottla("config", "set", "topic", "orders", "payments", "retention.ms=1h", "-o", "json"), "config", "set")
    assert [(one["name"], one["before"], one["after"], one["outcome"]) for one in report] == [
        ("orders", "604800000", "3600000", "set"), ("payments", "604800000", "3600000", "set"),
    ]  # fmt: skip
    assert rows(ottla("config", "delete", "topic", "orders", "retention.ms")) == "orders\tretention.ms\t3600000\t604800000\tdeleted\n"
    assert cluster.set[ORDERS] == {}


def test_after_a_deletion_the_next_source_applies(cluster: FakeAdmin, ottla: Ottla) -> None:
    rows(ottla("config", "set", "cluster", "num.io.threads=16"))
    rows(ottla("config", "set", "broker", "1", "num.io.threads=32"))
    assert rows(ottla("config", "delete", "broker", "1", "num.io.threads", "--dry-run")) == "1\tnum.io.threads\t32\t16\twould be deleted\n"
    assert cluster.set[Resource.broker(1)] == {"num.io.threads": "32"}


@pytest.mark.parametrize(
    ("name", "synonym", "expected"),
    [
        ("retention.ms", ("log.retention.hours", "168"), "log.retention.hours=168"),
        ("log.retention.ms", ("log.retention.hours", "168"), "log.retention.hours=168"),
        ("retention.ms", ("log.retention.ms", "5"), "5"),
        ("max.message.bytes", ("message.max.bytes", "5"), "5"),
        ("retention.ms", ("log.retention.hours", None), None),
    ],
)
def test_a_synonym_in_another_unit_is_reported_with_its_name(name: str, synonym: tuple[str, str | None], expected: str | None) -> None:
    # Kafka reports 168 hours as the source of a value in milliseconds.
    assert synonym_text(name, ConfigSynonym(*synonym, ConfigSource.DEFAULT)) == expected


def test_lists_are_appended_to_and_subtracted_from(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert rows(ottla("config", "set", "topic", "orders", "cleanup.policy+=compact", "--dry-run")).split("\t")[2:4] == [
        "delete",
        "delete,compact",
    ]
    assert rows(ottla("config", "set", "topic", "orders", "cleanup.policy-=delete", "--dry-run")).split("\t")[2:4] == ["delete", ""]


def test_a_refused_change_is_reported_completely_and_sets_the_exit_code(cluster: FakeAdmin, ottla: Ottla) -> None:
    result = ottla("config", "set", "topic", "orders", "retention.ms=bad", "-o", "json")
    (report,) = documents(result, "config", "set", code=1)
    assert (report["outcome"], report["after"]) == (None, None)
    assert "something better" in report["error"]["message"]
    assert "Error: topic orders: retention.ms: expected something better" in refused(
        ottla("config", "set", "topic", "orders", "retention.ms=bad")
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["set", "topic", "orders", "retention.m=1"], 1, "unknown setting; did you mean retention.ms?"),
        (["delete", "topic", "orders", "retention.m"], 1, "unknown setting; did you mean retention.ms?"),
        (["set", "cluster", "log.retention.m=1"], 1, "did you mean log.retention.ms?"),
        (["set", "topic", "orders"], 2, "KEY=VALUE"),
        (["set", "topic", "retention.ms=1"], 2, "missing the name of a topic"),
        (["set", "cluster", "orders", "retention.ms=1"], 2, "cluster takes no name"),
        (["set", "broker", "one", "num.io.threads=1"], 2, "expected a broker id"),
        (["delete", "topic", "orders"], 2, "missing the names of settings"),
        (["delete", "topic", "orders", "retention.ms=1"], 2, "expected the name of a setting"),
        (["describe", "topic"], 2, "missing the name of a topic"),
        (["describe", "topic", "order"], 1, "did you mean orders?"),
        (["describe", "broker", "3"], 1, "broker 3 does not exist or is down; brokers are 1, 2"),
    ],
)
def test_an_invalid_change_is_reported(cluster: FakeAdmin, ottla: Ottla, arguments: list[str], code: int, message: str) -> None:
    assert message in refused(ottla("config", *arguments), code)


def test_resources_are_listed_by_type(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert rows(ottla("config", "list", "broker")) == "broker\t1\nbroker\t2\n"
    report = documents(ottla("config", "list", "-o", "json"), "config", "list")
    assert {"resource": "topic", "name": "orders"} in report


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "1h30m", "5400000"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "soon", "soon"),
        ("segment.bytes", "1GiB", "1073741824"),
        ("segment.bytes", "5 MB", "5000000"),
        ("segment.bytes", "1G", "1G"),
        ("cleanup.policy", "7d", "7d"),
        ("log.retention.hours", "7d", "7d"),
    ],
)
def test_durations_and_sizes_can_have_units(name: str, value: str, expected: str) -> None:
    from ottla.cli.common.arguments import setting_value

    assert setting_value(name, value) == expected
