"""`ottla top`, driven by the pilot of textual, against a real broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner
from textual.widgets import Input, Static

from ottla.aio import Admin, Producer
from ottla.base.ids import TopicPartition
from ottla.cli.top import figures
from ottla.cli.top.command import command
from ottla.cli.top.view import Top
from ottla.client.admin.group_results import GroupState
from ottla.client.admin.results import NewTopic
from ottla.console.watch.groups import GroupRow
from ottla.console.watch.moves import MoveRow
from ottla.testing import broker

NOWHERE = "127.0.0.1:9"


def cells(app: Top, table: str) -> list[list[str]]:
    found = app._table(table)
    return [[str(cell) for cell in found.get_row_at(row)] for row in range(found.row_count)]


async def measured(app: Top, pilot: Any, count: int = 1) -> None:
    for _ in range(count):
        app.measured.clear()
        await asyncio.wait_for(app.measured.wait(), 20)
    await pilot.pause()


async def prepare(bootstrap: str) -> None:
    """A busy and a quiet topic, and a group that is 30 records behind."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic("busy", 2, 1), NewTopic("quiet", 1, 1)])
        await admin.alter_consumer_group_offsets("billing", {("busy", 0): 0, ("busy", 1): 0})
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(30):
            await producer.send("busy", b"v" * 100, partition=number % 2)
        await producer.flush()


@pytest.mark.server
def test_the_view_shows_brokers_topics_and_groups_and_its_keys_work() -> None:
    async def run(bootstrap: str) -> None:
        await prepare(bootstrap)
        app = Top(bootstrap, {}, interval_s=0.1)
        async with app.run_test(size=(140, 45)) as pilot:
            await measured(app, pilot, 2)
            assert "1 broker " in str(app.query_one("#head", Static).render()) and "all in sync" in str(
                app.query_one("#head", Static).render()
            )
            assert cells(app, "brokers")[0][0] == "1"
            assert {row[0] for row in cells(app, "topics")} >= {"busy", "quiet"}
            (billing,) = [row for row in cells(app, "groups") if row[0] == "billing"]
            assert billing[1:4] == ["Empty", "0", "30"]
            assert not app._table("moves").display
            await pilot.press("t", "t", "t")
            assert [row[0] for row in cells(app, "topics")] == sorted(row[0] for row in cells(app, "topics"))
            await pilot.press("slash")
            await pilot.press(*"quie")
            assert [row[0] for row in cells(app, "topics")] == ["quiet"] and cells(app, "groups") == []
            await pilot.press("enter")
            assert not app.query_one("#search", Input).display
            await pilot.press("escape")
            assert {row[0] for row in cells(app, "topics")} >= {"busy", "quiet"}
            await pilot.press("p")
            assert "paused" in str(app.query_one("#head", Static).render())
            await pilot.press("q")

    with broker() as started:
        asyncio.run(run(started.bootstrap_servers))


def test_a_cluster_that_does_not_answer_is_a_line_and_the_view_goes_on() -> None:
    async def run() -> None:
        settings = {"default_api_timeout_ms": 300, "socket_connection_setup_timeout_ms": 200}
        app = Top(NOWHERE, settings, interval_s=0.1)
        async with app.run_test() as pilot:
            await measured(app, pilot)
            problem = app.query_one("#problem", Static)
            assert problem.display and f"{NOWHERE} does not answer, trying again" in str(problem.render())
            await measured(app, pilot)

    asyncio.run(run())


def test_a_terminal_is_needed() -> None:
    result = CliRunner().invoke(command, ["-b", NOWHERE])
    assert result.exit_code == 2 and "the view needs a terminal" in result.output


def test_moves_have_their_progress_and_unknown_figures_a_dash() -> None:
    move = MoveRow(partition=TopicPartition("t", 0), target=[2, 3], adding=[3], removing=[1], copied=250, wanted=1000)
    assert figures.moving_rows([move]) == [("t-0", "2, 3", "3", "1", "250 B of 1.0 KiB, 25 %")]
    rows = [
        GroupRow(id="a", state=GroupState.EMPTY, type="classic"),
        GroupRow(id="b", state=GroupState.STABLE, type="classic", members=2, lag=7, time_lag_ms=61_000),
    ]
    assert [row[0] for row in figures.group_rows(rows, "lag", "")] == ["b", "a"]
    assert figures.group_rows(rows, "name", "")[0] == ("a", "Empty", "-", "-", "-")
    assert figures.group_rows(rows, "lag", "B")[0][3] == "7"
