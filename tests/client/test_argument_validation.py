"""Every invalid argument of every client call, in both APIs, raises a TypeError or ValueError that explains it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow
import pytest
from memory_cluster import MemoryCluster

import ottla
from ottla import Resource, aio
from ottla.base.ids import TopicPartition
from ottla.client.admin.results import ConfigChange, ConfigOperation
from ottla.client.argument_validation import _quick, fitting
from ottla.client.fetch.offsets import Partition
from ottla.client.producer.transaction_requests import PreparedTransaction

CLIENTS = [ottla.Producer, aio.Producer, ottla.Consumer, aio.Consumer, ottla.Admin, aio.Admin]
#: A valid value for each required parameter.
RIGHT: dict[str, Any] = {
    "topic": "t", "topics": [], "partition": ("t", 0), "partitions": [], "offset": 0, "offsets": {}, "times": {}, "ranges": {},
    "batch": b"", "table": pyarrow.table({"a": [1]}), "group": "g", "groups": [], "resource": Resource.topic("t"), "resources": [],
    "values": {}, "changes": {}, "configs": {}, "before": {}, "brokers": [], "broker": 1, "replicas": [], "places": {}, "reassignments": {},
    "levels": {}, "group_metadata": ottla.GroupMetadata("g", -1, "", None), "prepared": PreparedTransaction(1, 0),
    "transactional_id": "x", "transactional_ids": [], "user": "u", "mechanism": ottla.results.ScramMechanism.SHA_256, "password": "p",
    "acls": [], "filters": [], "hmac": b"",
}  # fmt: skip
#: Methods for internal use.
OWN = {"forked", "close_at_exit", "wait_for", "turn", "partitions_to_read", "seek_each", "has_passed", "invoke", "adopt"}
OTHERWISE = {"create_topic": {"topic": ottla.NewTopic("t")}, "send_batch": {"partition": 0}, "create_partitions": {"partitions": {}}}
#: Parameters that accept any value, or that are validated on use.
ANYTHING = {"listener", "callback", "take"}


class Wrong:
    def __repr__(self) -> str:
        return "what is wrong"


def parameters() -> Iterator[Any]:
    for kind in CLIENTS:
        for name, method in inspect.getmembers(kind, callable):
            if name.startswith("_") or name in (
                "forked",
                "close_at_exit",
                "wait_for",
                "turn",
                "partitions_to_read",
                "seek_each",
                "has_passed",
                "invoke",
                "adopt",
            ):
                continue
            for one in list(inspect.signature(method).parameters.values())[1:]:
                if one.kind is not one.VAR_KEYWORD and one.name not in ANYTHING:
                    yield pytest.param(kind, name, one.name, id=f"{kind.__module__}.{kind.__name__}.{name}-{one.name}")


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {"bootstrap_servers": "boot:1", "retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


@pytest.mark.parametrize(("kind", "name", "wrong"), list(parameters()))
async def test_none_and_foreign_objects_are_refused_by_every_call(
    cluster: MemoryCluster, settings: dict[str, Any], kind: Any, name: str, wrong: str
) -> None:
    more = {"group_id": "g"} if kind in (ottla.Consumer, aio.Consumer) else {}
    client = kind(**settings, **more)
    method = getattr(client, name)
    positional, named = [], {}
    for one in inspect.signature(method).parameters.values():
        value = Wrong() if one.name == wrong else OTHERWISE.get(name, {}).get(one.name, RIGHT.get(one.name))  # type: ignore[attr-defined]
        if one.name != wrong and one.default is not one.empty:
            continue
        if one.kind is one.VAR_POSITIONAL or (one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty):
            positional.append(value)
        elif one.name == wrong:
            named[one.name] = value
    try:
        with pytest.raises(TypeError, match=r"what is wrong|Wrong"):
            answer = method(*positional, **named)
            if inspect.isawaitable(answer):
                await answer
    finally:
        closed = client.close()
        if inspect.isawaitable(closed):
            await closed


TABLE: list[tuple[Any, str, tuple[Any, ...], type[Exception], str]] = [
    (ottla.Admin, "describe_topic", (None,), TypeError, "a topic is named by a str or bytes, not by None"),
    (ottla.Admin, "describe_topics", ("orders",), TypeError, r"several are given in a list, such as \['orders'\]"),
    (ottla.Admin, "create_topics", (["t"],), TypeError, r"one of topics is a NewTopic such as NewTopic\('orders', partitions=3\), not"),
    (ottla.Admin, "create_partitions", ({"orders": "6"},), TypeError, r"partitions of orders is a NewPartitions .* or a whole number"),
    (ottla.Admin, "create_partitions", ([("orders", 6)],), TypeError, r"partitions is a dict such as \{'orders': 0\}, not"),
    (ottla.Admin, "delete_records", ({("orders", 0): "5"},), TypeError, "before of orders-0 is a whole number, not '5'"),
    (ottla.Admin, "list_offsets", ({("orders", 0): 1 << 64},), ValueError, "times of orders-0 is 9223372036854775807 at most"),
    (ottla.Admin, "list_offsets", ({"orders": 0},), TypeError, r"a partition is named by its topic and number, such as \('orders', 0\)"),
    (ottla.Admin, "describe_config", ("orders",), TypeError, r"resource is a Resource such as Resource.topic\('orders'\), not 'orders'"),
    (ottla.Admin, "describe_config", (Resource.broker("one"),), ValueError, r"is its id, as in Resource.broker\(1\); 'one' is not an id"),  # type: ignore[arg-type]
    (ottla.Admin, "incremental_alter_config", (Resource.topic("t"), ["x"]), TypeError, r"values is a dict such as \{'retention.ms': 0\}"),
    (ottla.Admin, "alter_consumer_group_offsets", ("g", {("t", 0): "1"}), TypeError, "offsets of t-0 is a whole number or an Off"),
    (ottla.Admin, "alter_consumer_group_offsets", ("g", {("t", 0): -1}), ValueError, "offsets are 0 or more"),
    (ottla.Admin, "alter_consumer_group_offsets", (None, {("t", 0): 1}), TypeError, "a group is named by a str, not by None"),
    (ottla.Admin, "describe_consumer_groups", ("billing",), TypeError, r"several are given in a list, such as \['billing'\]"),
    (ottla.Admin, "describe_log_dirs", (["1"],), TypeError, "one of brokers is a whole number, not '1'"),
    (ottla.Admin, "describe_replica_log_dirs", ([("t", 0)],), TypeError, r"one of replicas is a Replica or a tuple such as \('orders', 0"),
    (ottla.Admin, "elect_leaders", ([("t", 0.5)],), TypeError, "a partition is named by its topic and number"),
    (ottla.Consumer, "offsets_for_times", ({("t", 0): "yesterday"},), TypeError, "times of t-0 is a whole number, not 'yesterday'"),
    (ottla.Consumer, "offsets_for_times", ([("t", 0)],), TypeError, r"times is a dict such as \{\('orders', 0\): 0\}"),
    (ottla.Consumer, "seek", (("t", 0), 1.5), TypeError, "offset is a whole number or an OffsetAndMetadata.*, not 1.5"),
    (ottla.Consumer, "commit", ({("t", 0): None},), TypeError, "offsets of t-0 is a whole number or an OffsetAndMetadata"),
    (ottla.Consumer, "poll", (-1,), ValueError, "timeout_ms is 0 or more, not -1"),
    (ottla.Consumer, "poll", (0, 0), ValueError, "max_records is 1 or more, not 0"),
    (ottla.Consumer, "end_offsets", ([("t", 0)], "5"), TypeError, "timeout_ms is a number of milliseconds, not '5'"),
    (ottla.Consumer, "subscribe", (), ValueError, "subscribe to names or to a pattern"),
    (ottla.Consumer, "assign", (("t", 0),), TypeError, r"such as \('orders', 0\), not by 't'"),
    (ottla.Producer, "send", ("t", b"", None, None, "0"), TypeError, "partition is a whole number, not '0'"),
    (ottla.Producer, "send", ("t", b"", None, None, 0, "now"), TypeError, r"timestamp_ms is a number of .*, such as time.time\(\) \* 1000"),
    (ottla.Producer, "send", ("t", b"", None, [b"h"]), TypeError, r"headers are pairs of name and value, such as \[\('trace', b'7'\)\]"),
    (ottla.Producer, "flush", (-1,), ValueError, "timeout_ms is 0 or more, not -1"),
    (ottla.Producer, "partitions_for", (b"t",), TypeError, "a topic is named by a str, not by b't'"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "arguments", "error", "message"), TABLE)
def test_an_invalid_argument_is_an_error_with_the_right_form(
    cluster: MemoryCluster, settings: dict[str, Any], kind: Any, name: str, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    more = {"group_id": "g"} if kind is ottla.Consumer and name in ("commit", "subscribe") else {}
    with kind(**settings, **more) as client, pytest.raises(error, match=message):
        getattr(client, name)(*arguments)


@pytest.mark.parametrize("about", ["start_offset", "producer_id", "longer_than_ms"])
def test_offsets_producer_ids_and_durations_have_64_bits(about: str) -> None:
    assert fitting(about, 2**40, int | None, about) == 2**40
    with pytest.raises(ValueError, match="at most"):
        fitting(about, 2**63, int | None, about)


def test_elements_of_arguments_are_validated() -> None:
    wrong = ConfigChange(5, "x", ConfigOperation.SET)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"name of ConfigChange.* is a str, not 5"):
        fitting("changes", [wrong], list[ConfigChange], "changes")


def test_an_iterator_is_validated_without_consuming_it(cluster: MemoryCluster, settings: dict[str, Any]) -> None:
    with ottla.Admin(**settings) as admin:
        assert set(admin.describe_topics(name for name in ("t", "many"))) == {"t", "many"}
    with ottla.Consumer(**settings) as consumer:
        consumer.assign(("many", number) for number in range(3))
        assert len(consumer.assignment()) == 3
        consumer.pause(*consumer.assignment())
        assert len(consumer.paused()) == 3


@pytest.mark.parametrize("kind", [int, str, bytes, str | bytes, TopicPartition, tuple[str, int], Partition, float, Resource, str | None])
@pytest.mark.parametrize("about", ["times", "timeout_ms", "partitions"])
def test_the_quick_test_accepts_only_what_the_full_validation_accepts(kind: Any, about: str) -> None:
    numbers: list[Any] = [0, -1, 2**31, 2**63, -(2**63) - 1, True, 1.5]
    pairs: list[Any] = [("t", one) for one in numbers] + [(b"t", 0), ("t", 0, 0), ["t", 0], TopicPartition("t", 0)]
    for value in [*numbers, *pairs, "t", b"t", None]:
        if _quick(kind, about)(value):
            assert fitting("one of them", value, kind, about) == value


def test_a_wrong_entry_among_right_ones_is_named() -> None:
    with pytest.raises(ValueError, match="times of t-1 is 9223372036854775807 at most"):
        fitting("times", {("t", 0): 5, ("t", 1): 2**63}, Mapping[TopicPartition, int], "times")
    with pytest.raises(TypeError, match="a partition is named by its topic and number"):
        fitting("partitions", [("t", 0), ("t", "1")], Iterable[Partition], "partitions")
