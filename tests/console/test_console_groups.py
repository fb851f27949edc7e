"""Groups: lag, the matrix of the assignment, resets with a preview."""

from __future__ import annotations

import asyncio
import re
import uuid

import pytest
from browsing import Browser, seen
from starlette.requests import Request

from ottla.aio import Admin, Consumer, Producer
from ottla.base.ids import TopicPartition
from ottla.client.admin.group_lag import PartitionLag
from ottla.client.admin.group_results import GroupDescription, GroupMember, GroupState, GroupType
from ottla.client.admin.results import NewTopic, Node
from ottla.console.pages.group_reset import Reset, parse
from ottla.console.pages.groups import matrix
from serving import Elsewhere, Serving


def a_member(name: str, owned: list[tuple[str, int]], target: list[tuple[str, int]] | None = None) -> GroupMember:
    tps = [TopicPartition(*one) for one in owned]
    return GroupMember(
        f"{name}-id", None, name, "/h", tps, target_assignment=None if target is None else [TopicPartition(*t) for t in target]
    )


def a_group(*members: GroupMember) -> GroupDescription:
    return GroupDescription("g", GroupType.CONSUMER, GroupState.STABLE, "consumer", "uniform", Node(1, "h", 1), list(members))


def test_the_matrix_has_a_cell_for_each_partition_of_each_member() -> None:
    group = a_group(a_member("b", [("t", 1)], [("t", 1), ("u", 0)]), a_member("a", [("t", 0)]))
    topics, rows = matrix(group, [PartitionLag("t", 2, 5)])
    assert [(one.name, one.partitions) for one in topics] == [("t", [0, 1, 2]), ("u", [0])]
    assert [(row.label, row.cells) for row in rows] == [("a", ["owned", "", "", ""]), ("b", ["", "owned", "", "target"])]


def parsed(query: str) -> Reset | None:
    return parse(Request({"type": "http", "query_string": query.encode(), "path": "/group/reset", "headers": [], "method": "GET"}))


def test_a_reset_is_parsed_from_the_address() -> None:
    assert parsed("id=g") is None
    assert parsed("target=shift&value=-5&topic=t&partitions=0,2") == Reset("shift", "-5", "t", (0, 2))


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("target=sideways", "target expects"),
        ("target=offset", "value is missing"),
        ("target=offset&value=-1", "0 or more"),
        ("target=shift&value=x", "expected a number"),
        ("target=earliest&partitions=1", "belong to a topic"),
        ("target=earliest&topic=t&partitions=x", "partitions"),
    ],
)
def test_an_invalid_reset_says_why(query: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parsed(query)


@pytest.fixture
def group(ottla_server: Serving | Elsewhere) -> str:
    """A group without members that has read 5 of 10 records in each of 2 partitions of the topic of its name."""
    name = f"console-group-{uuid.uuid4().hex[:8]}"

    async def run() -> None:
        async with Admin(bootstrap_servers=ottla_server.bootstrap) as admin:
            await admin.create_topic(NewTopic(name, 2, 1))
            async with Producer(bootstrap_servers=ottla_server.bootstrap) as producer:
                for number in range(20):
                    await producer.send(name, b"x", None, None, number % 2, 1000 + number)
            await admin.alter_consumer_group_offsets(name, {(name, 0): 5, (name, 1): 5})

    asyncio.run(run())
    return name


def committed(bootstrap: str, group: str) -> dict[int, int]:
    async def run() -> dict[int, int]:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            offsets = (await admin.list_consumer_group_offsets([group]))[group]
            return {tp.partition: one.offset for tp, one in offsets.items()}  # type: ignore[union-attr]

    return asyncio.run(run())


@pytest.mark.server
def test_the_list_has_states_and_lag(browser: Browser, group: str) -> None:
    assert re.search(rf"{group} Empty \S+ 0 1 10 ", browser.text(f"/groups?q={group}"))
    assert "No group matches" in browser.text("/groups?q=nothing-has-this-name")
    assert group not in browser.text("/groups?state=Stable")


@pytest.mark.server
def test_a_group_shows_the_lag_of_its_partitions(browser: Browser, group: str) -> None:
    text = browser.text(f"/group?id={group}")
    assert f"{group} / 0 5 10 5" in text and "no members" in text
    missing = browser.get("/group?id=nobody")
    assert missing.status_code == 404 and "Group not found" in missing.text


@pytest.mark.server
@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ("target=earliest", {0: 0, 1: 0}),
        ("target=latest", {0: 10, 1: 10}),
        ("target=offset&value=7", {0: 7, 1: 7}),
        ("target=shift&value=-2", {0: 3, 1: 3}),
        ("target=time&value=1970-01-01T00:00:01.016Z", {0: 8, 1: 8}),
        ("target=earliest&topic=TOPIC&partitions=1", {0: 5, 1: 0}),
    ],
)
def test_a_reset_commits_exactly_the_offsets_of_its_preview(
    browser: Browser, group: str, ottla_server: Serving | Elsewhere, query: str, offsets: dict[int, int]
) -> None:
    html = browser.get(f"/group/reset?id={group}&{query.replace('TOPIC', group)}").text
    to = re.findall(r'name="to" value="([^"]+)"', html)
    assert committed(ottla_server.bootstrap, group) == {0: 5, 1: 5}, "a preview changes nothing"
    answer = browser.post("/group/reset", {"id": group, "to": to})
    assert f"{len(to)} offsets of {group} were committed" in seen(answer.text)
    assert committed(ottla_server.bootstrap, group) == offsets


@pytest.mark.server
def test_offsets_of_a_group_with_members_are_not_reset(browser: Browser, group: str, ottla_server: Serving | Elsewhere) -> None:
    async def run() -> tuple[str, str, str]:
        async with Consumer(group, group_id=group, bootstrap_servers=ottla_server.bootstrap, client_id="reader-1") as consumer:
            while not consumer.assignment():
                await consumer.poll(100)
            loop = asyncio.get_running_loop()
            detail = await loop.run_in_executor(None, browser.text, f"/group?id={group}")
            preview = await loop.run_in_executor(None, lambda: browser.get(f"/group/reset?id={group}&target=earliest").text)
            answer = await loop.run_in_executor(None, lambda: browser.post("/group/reset", {"id": group, "to": [f"{group}:0:1"]}).text)
            return detail, preview, seen(answer)

    detail, preview, answer = asyncio.run(run())
    assert "reader-1 reads it reads it" in detail
    assert "disabled>Commit these offsets" in preview
    assert "not committed" in answer


@pytest.mark.server
def test_a_group_without_members_is_deleted_after_its_name_was_typed(browser: Browser, group: str) -> None:
    assert browser.post("/group/delete", {"id": group, "confirm": "x"}).status_code == 400
    assert f"Group {group} was deleted" in seen(browser.post("/group/delete", {"id": group, "confirm": group}).text)
