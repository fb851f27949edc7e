"""Search, previews, downloads and new records."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pytest
from browsing import Browser, seen

from ottla.aio import Admin, Producer
from ottla.client.admin.results import NewTopic
from ottla.client.fetch.ranges import Bound, BoundKind, Range
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.console.messages import preview
from ottla.console.messages.matching import DECOMPRESSED_MAX, Matcher
from ottla.console.messages.preview import Formats, guess, hex_lines, tree
from ottla.console.messages.query import BadQuery, Query, Window, parse, rounds
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from serving import Elsewhere, Serving

NOW_MS = 1_793_500_000_000


# Queries


def test_a_search_is_parsed_from_the_address() -> None:
    found = parse("t", {"show": "range", "from": "-1h", "to": "end", "partitions": "0,2-3", "value": "x", "limit": "7"}, NOW_MS)
    assert found.range == Range(Bound(BoundKind.TIME, NOW_MS - 3_600_000), Bound(BoundKind.END))
    assert (found.partitions, found.value, found.limit, found.has_conditions) == ((0, 2, 3), "x", 7, True)
    assert not parse("t", {}, NOW_MS).has_conditions


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"show": "sideways"}, "show"),
        ({"show": "range", "from": "nonsense"}, "from"),
        ({"show": "range", "from": "1:2"}, "from"),
        ({"partitions": "x"}, "partitions"),
        ({"filter": ".a >"}, "filter"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1000000"}, "limit"),
        ({"vf": "protobuf:/etc/passwd:X"}, "vf"),
        ({"value": "x" * 5000}, "value"),
    ],
)
def test_an_invalid_field_is_named(given: dict[str, str], field: str) -> None:
    with pytest.raises(BadQuery) as caught:
        parse("t", given, NOW_MS)
    assert caught.value.field == field


@pytest.mark.parametrize("query", [Query(topic="t"), Query(topic="t", value="x"), Query(topic="t", show="oldest", limit=3)])
def test_every_offset_is_in_exactly_one_window(query: Query) -> None:
    spans = {0: (10, 70_000), 1: (5, 5), 2: (0, 7)}
    seen: list[tuple[int, int]] = []
    for windows in rounds(spans, query):
        seen += [(window.partition, offset) for window in windows for offset in range(window.first, window.last)]
    assert len(seen) == len(set(seen))
    assert set(seen) == {(0, offset) for offset in range(10, 70_000)} | {(2, offset) for offset in range(7)}


def test_the_newest_offsets_of_all_partitions_come_first() -> None:
    first = next(rounds({0: (0, 1000), 1: (0, 20)}, Query(topic="t", limit=50)))
    assert first == [Window(0, 950, 1000), Window(1, 0, 20)]


# Matching


def a_batch(base: int, *values: bytes | None, codec: Codec = Codec.NONE, key: bytes | None = b"k") -> bytes:
    return bytes(build_batch([(1000, key, value, [("source", b"shop")]) for value in values], codec=codec, base_offset=base))


def raw(*batches: bytes) -> RawFetch:
    return RawFetch(memoryview(b"".join(batches)), 1000, 0, 1000)


@pytest.mark.parametrize(
    ("conditions", "offsets"),
    [
        ({}, [0, 1, 2, 3]),
        ({"value": "two"}, [1]),
        ({"key": "k"}, [0, 1, 2, 3]),
        ({"key": "other"}, []),
        ({"header": "source"}, [0, 1, 2, 3]),
        ({"header": "source=shop", "value": "a"}, [3]),
        ({"header": "source=web"}, []),
        ({"filter": ".a > 1"}, [3]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_all_conditions_hold_for_what_is_found(conditions: dict[str, str], offsets: list[int], codec: Codec) -> None:
    matcher = Matcher(Query(topic="t", **conditions))  # type: ignore[arg-type]
    found = matcher.match(raw(a_batch(0, b"one", b"two", codec=codec), a_batch(2, None, b'{"a": 2}', codec=codec)), 0, 0, 4)
    assert [one.offset for one in found.records] == offsets
    assert found.next_offset == 4


def test_no_regular_expression_keeps_a_search_busy() -> None:
    query = Query(topic="t", filter='value ~ "(x+x+)+y"')
    found = Matcher(query).match(raw(a_batch(0, b"x" * 40, b"xxy")), 0, 0, 2)
    assert [one.offset for one in found.records] == [1]
    with pytest.raises(BadQuery, match="not a regular expression"):
        parse("t", {"filter": 'value ~ "(?=lookahead)"'}, NOW_MS)


def test_a_window_ends_within_a_batch() -> None:
    found = Matcher(Query(topic="t")).match(raw(a_batch(0, b"a", b"b", b"c")), 0, 1, 2)
    assert [one.offset for one in found.records] == [1]
    assert found.next_offset == 2


def test_a_decompression_bomb_is_reported_and_costs_no_memory() -> None:
    bomb = a_batch(1, bytes(DECOMPRESSED_MAX + 1), codec=Codec.ZSTD)
    assert len(bomb) < 100_000
    tracemalloc.start()
    found = Matcher(Query(topic="t")).match(raw(a_batch(0, b"a"), bomb, a_batch(2, b"b")), 0, 0, 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.offset for one in found.records] == [0, 2]
    assert [(one.first, one.last) for one in found.unreadable] == [(1, 1)]
    assert peak < 2 * DECOMPRESSED_MAX


def test_a_damaged_batch_does_not_hide_the_others() -> None:
    damaged = bytearray(a_batch(1, b"x" * 100, codec=Codec.ZSTD))
    damaged[-20:] = bytes(20)
    found = Matcher(Query(topic="t")).match(raw(a_batch(0, b"a"), bytes(damaged), a_batch(2, b"b")), 0, 0, 3)
    assert [one.offset for one in found.records] == [0, 2] and len(found.unreadable) == 1


# Previews


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"plain", "text", "plain"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b"{no json", "text", "{no json"),
        (b"\xff\x00", "hex", "ff 00"),
        (b"a\x00b", "hex", "61 00 62"),
        ("žš".encode(), "text", "žš"),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes | None, kind: str, text: str) -> None:
    shown = Formats("", None).show(data)
    assert (shown.kind, shown.text, shown.is_cut) == (kind, text, False)


def test_ten_megabytes_are_cut_and_not_decoded() -> None:
    value = b'{"a": "' + b"x" * 10_000_000 + b'"}'
    shown = Formats("", None).show(value)
    assert shown.is_cut and len(shown.text) == preview.LIST_CHARACTERS and shown.size == len(value)
    assert tree(value, json.loads) is None
    assert len(Formats("", None).show(value, "json", 1000).text) == 1000
    assert len(hex_lines(value)) == preview.HEX_BYTES_MAX // 16


def test_a_character_that_is_cut_in_two_is_dropped() -> None:
    assert guess("č".encode() * 1000, 7).kind == "text"


def test_a_value_that_is_not_in_its_format_is_shown_with_the_reason() -> None:
    shown = Formats("int64", None).show(b"abc")
    assert shown.kind == "text" and "expected 8 bytes" in shown.problem
    assert Formats("int64", None).show((7).to_bytes(8, "big")).text == "7"


def test_a_tree_is_bounded_in_nodes_and_depth() -> None:
    wide = tree(json.dumps(list(range(10_000))).encode(), json.loads)
    assert wide is not None and len(wide.children) + wide.omitted == 10_000 and wide.omitted > 7_000
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    node, depth = tree(json.dumps(deep).encode(), json.loads), 0
    while node is not None and node.children:
        node, depth = node.children[0], depth + 1
    assert depth <= preview.DEPTH_MAX and node is not None and node.omitted == 1


# Against a broker


@pytest.fixture(scope="module")
def orders(ottla_server: Serving | Elsewhere) -> str:
    """A topic with 60 records in 3 partitions; one value in ten has `rare`."""
    name = f"console-orders-{uuid.uuid4().hex[:8]}"

    async def run() -> None:
        async with Admin(bootstrap_servers=ottla_server.bootstrap) as admin:
            await admin.create_topic(NewTopic(name, 3, 1))
        async with Producer(bootstrap_servers=ottla_server.bootstrap) as producer:
            for number in range(60):
                value = {"id": number, "kind": "rare" if number % 10 == 0 else "usual", "script": "<script>alert(1)</script>"}
                place = number % 3
                await producer.send(name, json.dumps(value).encode(), b"key-%d" % number, [("n", b"%d" % number)], place, 1000 + number)

    asyncio.run(run())
    return name


def events(browser: Browser, path: str) -> list[tuple[str, str]]:
    """The events of a stream that ends."""
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    found = []
    for block in filter(None, answer.text.split("\n\n")):
        kind, *data = block.split("\n")
        found.append((kind.removeprefix("event: "), "\n".join(line.removeprefix("data: ") for line in data)))
    return found


def places(browser: Browser, path: str) -> list[tuple[int, int]]:
    """(partition, offset) of the rows of a stream."""
    html = "".join(data for kind, data in events(browser, path) if kind == "rows")
    return [(int(partition), int(offset)) for partition, offset in re.findall(r"/records/(\d+)/(\d+)", html)]


@pytest.mark.server
def test_the_newest_records_come_first_over_all_partitions(browser: Browser, orders: str) -> None:
    assert places(browser, f"/topics/{orders}/stream?limit=4") == [(2, 19), (1, 19), (0, 19), (2, 18)]
    assert places(browser, f"/topics/{orders}/stream?show=oldest&limit=2") == [(0, 0), (1, 0)]


@pytest.mark.server
@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("value=rare", [50, 40, 30, 20, 10, 0]),
        ("show=oldest&value=rare&limit=2", [0, 10]),
        ("key=key-7", [7]),
        ("header=n=8", [8]),
        ("filter=.id+%3E+57", [59, 58]),
        ("show=range&from=18&to=%2B1&partitions=1", [55]),
        ("show=range&from=@000001058", [58, 59]),
        ("value=nothing-has-this", []),
    ],
)
def test_records_are_found_by_key_value_header_path_time_and_offset(browser: Browser, orders: str, query: str, numbers: list[int]) -> None:
    query = query.replace("@000001058", "1970-01-01T00:00:01.058Z")
    assert places(browser, f"/topics/{orders}/stream?{query}") == [(number % 3, number // 3) for number in numbers]
    kind, data = events(browser, f"/topics/{orders}/stream?{query}")[-1]
    progress = json.loads(data)
    assert kind == "end" and progress["is_complete"] and progress["found"] == len(numbers)


@pytest.mark.server
def test_values_are_escaped(browser: Browser, orders: str) -> None:
    html = "".join(data for _, data in events(browser, f"/topics/{orders}/stream?limit=1"))
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "<script>alert" not in browser.get(f"/topics/{orders}/records/0/0").text


@pytest.mark.server
def test_a_search_that_is_not_valid_says_which_field_and_searches_nothing(browser: Browser, orders: str) -> None:
    answer = browser.get(f"/topics/{orders}/messages?partitions=x")
    assert answer.status_code == 400 and "partitions" in seen(answer.text) and 'data-stream=""' in answer.text
    assert browser.get(f"/topics/{orders}/stream?partitions=x").status_code == 400
    (problem,) = events(browser, f"/topics/{orders}/stream?partitions=7")
    assert problem[0] == "problem" and "partition 7 does not exist" in problem[1]


@pytest.mark.server
def test_the_page_keeps_the_search_in_its_links(browser: Browser, orders: str) -> None:
    html = browser.get(f"/topics/{orders}/messages?value=rare&partitions=1").text
    assert f"/topics/{orders}/stream?partitions=1&amp;value=rare" in html
    assert f"/topics/{orders}/download?partitions=1&amp;value=rare&amp;as=csv" in html


@pytest.mark.server
def test_a_record_has_a_page_with_a_tree_and_its_bytes(browser: Browser, orders: str) -> None:
    text = browser.text(f"/topics/{orders}/records/1/0")
    assert "kind : usual" in text and "key-1" in text and "n 1" in text
    answer = browser.get(f"/topics/{orders}/records/1/0/value")
    assert json.loads(answer.content)["id"] == 1
    assert answer.headers["content-disposition"].startswith("attachment")
    missing = browser.get(f"/topics/{orders}/records/1/999")
    assert missing.status_code == 404 and "no record at offset 999" in missing.text


@pytest.mark.server
def test_matches_are_downloaded_as_json_lines_csv_and_parquet(browser: Browser, orders: str) -> None:
    lines = [json.loads(line) for line in browser.get(f"/topics/{orders}/download?value=rare").text.splitlines()]
    assert [(one["partition"], one["offset"]) for one in lines] == [(0, 0), (0, 10), (1, 3), (1, 13), (2, 6), (2, 16)]
    assert lines[0]["headers"] == [["n", "0"]] and json.loads(lines[0]["value"])["kind"] == "rare"
    rows = list(csv.DictReader(io.StringIO(browser.get(f"/topics/{orders}/download?as=csv&key=key-5").text)))
    assert [(row["key"], row["offset"], row["headers"]) for row in rows] == [("key-5", "1", '[["n","5"]]')]
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(io.BytesIO(browser.get(f"/topics/{orders}/download?as=parquet").content))
    assert table.num_rows == 60 and table.column("key")[0].as_py() == b"key-0"


@pytest.mark.parametrize("form", ["avro:FILE", "json-schema:FILE", "protobuf:FILE:M", "pack:>q", "nonsense"])
def test_a_record_is_written_in_no_format_that_reads_a_file(offline: Browser, tmp_path: Path, form: str) -> None:
    """The file would be one of the console's machine, and with a registry its schema would be registered there."""
    file = tmp_path / "schema"
    file.write_text('"int"')
    written = {"topic": "t", "key": "", "key_format": "text", "value": "1", "value_format": form.replace("FILE", str(file)), "headers": ""}
    for fields in (written, {**written, "key": "1", "key_format": written["value_format"], "value_format": "text"}):
        answer = offline.post("/topics/t/produce", fields)
        assert answer.status_code == 400 and "is none of text, json" in seen(answer.text)


@pytest.mark.server
def test_a_record_is_produced_and_produced_again(browser: Browser, ottla_server: Serving | Elsewhere) -> None:
    name = f"console-produce-{uuid.uuid4().hex[:8]}"
    browser.post("/new/topic", {"name": name, "partitions": "1"})
    form = {"topic": name, "key": "k", "key_format": "text", "value": '{"a":\n1}', "value_format": "text", "headers": "x=1"}
    answer = browser.post(f"/topics/{name}/produce", form)
    assert "offset 0 in partition 0" in seen(answer.text)
    again = browser.get(f"/topics/{name}/produce?from=0:0").text
    assert "{&#34;a&#34;:\n1}</textarea>" in again and "x=1</textarea>" in again
    binary = browser.post(f"/topics/{name}/produce", {**form, "value": "00ff", "value_format": "hex"})
    assert "00 ff" in seen(binary.text)
    tombstone = browser.post(f"/topics/{name}/produce", {**form, "value_format": "null"})
    assert "null" in seen(tombstone.text)
    wrong = browser.post(f"/topics/{name}/produce", {**form, "value": "zz", "value_format": "hex"})
    assert wrong.status_code == 400 and "zz" in wrong.text
