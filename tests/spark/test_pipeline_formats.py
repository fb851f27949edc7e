"""Pipelines over framed Avro and over Protobuf: typed columns, and dead letters of malformed values."""

import json
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ottla.client.schema_registry import RegistryBusy, RegistryFailed
from ottla.client.serializers import Avro
from ottla.client.values.framed import json_schema, protobuf_framed
from ottla.spark.pipeline import plan as plans
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.retryable_errors import is_retryable
from ottla.spark.values.avro import schema_of
from ottla.testing.registry import SchemaRegistry

from .conftest import Topic
from .pipelines import table
from .schemas import AT, ONE, ORDER, ORDER_2, OTHER_ORDER, TWO, serving_registry

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]
AVRO = """
[decode]
format = "avro"
registry = "${registry}"
subject = "orders-value"
bad_records = "dead_letter"
[dead_letters]
path = "${dir}/dead"
[[sink]]
type = "delta"
path = "${dir}/table"
"""
PROTOBUF = """
[decode]
format = "protobuf"
descriptor = "orders.desc"
message = "shop.Order"
bad_records = "dead_letter"
[dead_letters]
topic = "${dead}"
[[step]]
name = "by_kind"
sql = "SELECT kind, count(*) AS orders, sum(counts['x']) AS x, max(at) AS newest FROM records WHERE kind IS NOT NULL GROUP BY kind"
[[sink]]
type = "delta"
path = "${dir}/table"
mode = "merge"
keys = ["kind"]
"""
REGISTERED = """
[decode]
format = "${format}"
registry = "${registry}"
bad_records = "dead_letter"
[dead_letters]
path = "${dir}/dead"
[[sink]]
type = "delta"
path = "${dir}/table"
"""
WRITTEN_MS = 1_700_000_000_123
WRITTEN = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
UNBOUNDED_STATE = {"retention.ms": "-1"}


def test_framed_avro_becomes_columns_or_dead_letters_if_the_registry_lacks_its_schema(
    run: Any, a_topic: Topics, registry: str, tmp_path: Path
) -> None:
    topic = a_topic(**UNBOUNDED_STATE)
    old, new = Avro(ORDER, schema_id=1).encode(ONE), Avro(ORDER_2, schema_id=2).encode(TWO)
    foreign = Avro(OTHER_ORDER, schema_id=3).encode({"id": "three", "at": AT, "attributes": {}})
    bad = {2: b"\0\0\0\0\x63" + new[5:], 3: b'{"id": 3}', 4: new[:7], 5: foreign}
    topic.add(old, new, *bad.values(), None, old, key=b"k\xff", timestamp_ms=WRITTEN_MS)
    (report,) = [report for report in run(topic, AVRO, registry=registry) if report.rows_in]
    assert (report.rows_in, report.rows_out, report.dead_letters) == (8, 4, 4)
    rows = sorted(table(tmp_path / "table"), key=lambda row: int(row["_offset"]))
    assert [(row["_offset"], row["id"], row["at"], row["attributes"], row["more"]) for row in rows] == [
        (0, 1, AT, [("a", 1)], None),
        (1, 2, AT, [], "m"),
        (6, None, None, None, None),
        (7, 1, AT, [("a", 1)], None),
    ]
    letters = sorted(table(tmp_path / "dead"), key=lambda row: int(row["offset"]))
    assert {row["offset"]: row["value"] for row in letters} == bad
    for row in letters:
        assert row["reason"] == f"the value is not avro of this schema; it begins with {row['value'][:16].hex().upper()}"
    assert {(row["view"], row["topic"], row["partition"], row["key"], row["timestamp"]) for row in letters} == {
        ("records", topic.name, 0, b"k\xff", WRITTEN)
    }
    assert all(row["at"] > WRITTEN for row in letters), "when it was found"


def test_protobuf_is_aggregated_and_malformed_messages_go_to_a_topic(
    run: Any, spark: Any, a_topic: Topics, descriptors: Path, tmp_path: Path
) -> None:
    from ottla.spark.values.protobuf import message_class

    topic, dead = a_topic(**UNBOUNDED_STATE), a_topic()
    order = message_class(descriptors.read_bytes(), "shop.Order")
    dated = order(id=7, kind=1, counts={"x": 2})
    dated.at.FromDatetime(AT)
    values = [dated, order(id=8, kind=1, counts={"x": 5}), order(id=9, tags=["t"])]
    # An empty value is a message whose fields have their defaults.
    topic.add(*[value.SerializeToString() for value in values], b"", b"\xff\xff", None, b'{"id": 1}', timestamp_ms=WRITTEN_MS)
    reports = run(topic, PROTOBUF, dead=dead.name)
    assert sum(report.dead_letters for report in reports) == 2
    rows = {row["kind"]: (row["orders"], row["x"], row["newest"]) for row in table(tmp_path / "table")}
    assert rows == {"OLD": (2, 7, AT), "NEW": (2, None, None)}
    letters = dead.source(spark.read, includeHeaders="true").load().collect()
    reported = {bytes(row.value): {header.key: header.value and bytes(header.value).decode() for header in row.headers} for row in letters}
    assert {value: one["ottla.offset"] for value, one in reported.items()} == {b"\xff\xff": "4", b'{"id": 1}': "6"}
    for one in reported.values():
        assert (one["ottla.reason"] or "").startswith("the value is not protobuf of this schema; it begins with ")
        assert (one["ottla.topic"], one["ottla.partition"], one["ottla.view"]) == (topic.name, "0", "records")
        assert datetime.fromisoformat(one["ottla.timestamp"] or "") == WRITTEN
        assert json.loads(one["ottla.row"] or "{}").get("id") is None


@pytest.mark.server
@pytest.mark.parametrize("form", ["protobuf", "json-schema"])
def test_framed_protobuf_and_json_become_columns_or_dead_letters(
    run: Any, a_topic: Topics, ottla_registry: SchemaRegistry, descriptors: Path, tmp_path: Path, form: str
) -> None:
    topic = a_topic(**UNBOUNDED_STATE)
    subject = f"{topic.name}-value"
    if form == "protobuf":
        writer = protobuf_framed(ottla_registry.url, subject, descriptors, "shop.Order")
    else:
        (tmp_path / "order.json").write_text(json.dumps({"properties": {"id": {"type": "integer"}, "kind": {"type": "string"}}}))
        writer = json_schema(str(tmp_path / "order.json"), ottla_registry.url, subject)
    topic.add(writer.read({"id": 7, "kind": "OLD"}), b"{}", None, writer.read({"id": 8}))
    (report,) = [report for report in run(topic, REGISTERED, registry=ottla_registry.url, format=form) if report.rows_in]
    assert (report.rows_in, report.rows_out, report.dead_letters) == (4, 3, 1)
    rows = sorted(table(tmp_path / "table"), key=lambda row: int(row["_offset"]))
    unset = "NEW" if form == "protobuf" else None
    assert [(row["_offset"], row["id"], row["kind"]) for row in rows] == [(0, 7, "OLD"), (2, None, None), (3, 8, unset)]
    (letter,) = table(tmp_path / "dead")
    assert letter["reason"] == f"the value is not {form} of this schema; it begins with 7B7D"


@pytest.mark.parametrize(
    ("decode", "line", "key", "sentence"),
    [
        ("format = 'avro'\nregistry = '${url}'", 5, "decode.registry", "has no subject t-value; name another with subject, or set schema"),
        (
            "format = 'avro'\nregistry = '${url}'\nsubject = 'json-value'",
            5,
            "decode.registry",
            "subject json-value of the registry is JSON",
        ),
        ("format = 'avro'\nregistry = 'localhost:1'", 5, "decode.registry", "registry must start with http:// or https://"),
        ("format = 'avro'\nregistry = 'http://127.0.0.1:1'", 5, "decode.registry", "the request to the schema registry for"),
        ("format = 'avro'\nschema = '\"string\"'", 5, "decode.schema", "the schema of a value must be a record"),
        (
            "format = 'protobuf'\ndescriptor = 'orders.desc'\nmessage = 'shop.Ordr'",
            6,
            "decode.message",
            "the descriptors have no message shop.Ordr",
        ),
    ],
)
def test_an_unavailable_schema_is_reported_with_the_files_key(
    spark: Any, registry: str, descriptors: Path, tmp_path: Path, decode: str, line: int, key: str, sentence: str
) -> None:
    text = f"[source]\ntopic = 't'\n[decode]\n{decode}\n[[sink]]\ntype = 'console'\n"
    with pytest.raises(PipelineError) as refused:
        plans.plan(parse(text, tmp_path / "p.toml", {"url": registry}), spark)
    assert (refused.value.key, refused.value.where.rpartition(":")[2]) == (key, str(line))
    assert sentence in refused.value.problem
    assert "value" not in refused.value.problem.replace("-value", "").replace("a value", ""), "only names of the file"


def test_an_unreachable_registry_is_a_retryable_error() -> None:
    with pytest.raises(RegistryFailed, match="the request to the schema registry for /schemas/ids/4 failed") as away:
        schema_of("http://127.0.0.1:1", 4)
    assert is_retryable("".join(traceback.format_exception(away.value)))


def test_a_busy_registry_is_retryable_and_a_refusal_is_not() -> None:
    with serving_registry() as url:
        with pytest.raises(RegistryBusy) as busy:
            schema_of(url, 503)
        assert schema_of(url, 404) is None
    assert is_retryable("".join(traceback.format_exception(busy.value)))
    assert not is_retryable("\nottla.spark.value_avro.RegistryFailed: the schema registry rejected /schemas/ids/1: 401 Unauthorized\n")
