"""The console in a real Chromium against a real broker: no errors, no violation of WCAG AA, and the work of a user."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from flight_records import flight_record
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ottla.aio import Admin, Consumer, Producer
from ottla.client.admin.results import NewTopic
from serving import Elsewhere, Serving

WHY_NOT = chromium.missing()
pytestmark = [pytest.mark.server, pytest.mark.xdist_group("browser"), pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "not skipped")]
NAME = f"browser-{uuid.uuid4().hex[:8]}"
#: Paths; TOPIC stands for the topic and the group of the tests, whose name is another in each process.
PAGES = (
    "/", "/topics", "/topics/TOPIC", "/topics/TOPIC/messages", "/topics/TOPIC/records/0/0", "/topics/TOPIC/settings?q=retention",
    "/topics/TOPIC/settings/edit", "/topics/TOPIC/manage?until=end", "/topics/TOPIC/produce", "/new/topic?clone=TOPIC", "/groups",
    "/group?id=TOPIC", "/group/reset?id=TOPIC&target=earliest", "/cluster", "/cluster/brokers/1?q=retention", "/transactions",
    "/access", "/access/users", "/access/quotas", "/topics/TOPIC/partitions/0", "/flight", "/pipelines",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(ottla_server: Serving | Elsewhere) -> Iterator[chromium.Page]:
    """A browser at a console; a topic with 20 records, and a group that has read half of them."""

    async def prepare() -> None:
        async with Admin(bootstrap_servers=ottla_server.bootstrap) as admin:
            await admin.create_topic(NewTopic(NAME, 2, 1))
            async with Producer(bootstrap_servers=ottla_server.bootstrap) as producer:
                for number in range(20):
                    value = {"id": number, "customer": {"country": "SI"}, "items": [1, 2], "paid": True, "note": None}
                    await producer.send(NAME, json.dumps(value).encode(), b"key", [("trace", b"1")], number % 2)
            await admin.alter_consumer_group_offsets(NAME, {(NAME, 0): 5, (NAME, 1): 5})

    asyncio.run(prepare())
    with chromium.console(ottla_server.bootstrap) as url, chromium.chromium(url) as made:
        made.size(1280, 900)
        yield made


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_errors_and_no_violation_of_wcag_aa(page: chromium.Page, path: str) -> None:
    if not chromium.AXE.exists():
        pytest.skip("axe-core is not installed: make browser")
    path = path.replace("TOPIC", NAME)
    for width, dark in ((1280, False), (390, True)):
        page.size(width, 900, dark=dark)
        page.open(path)
        if "/messages" in path:
            page.until(lambda: "Done" in page.text, "the end of the search")
        assert page.errors() == [], f"{path} at {width} pixels"
        assert page.violations() == [], f"{path} at {width} pixels, {'dark' if dark else 'light'}"
        assert page.overflow <= 0, f"{path} is wider than {width} pixels"
    page.size(1280, 900)


def test_timelines_segments_and_flight_records_have_no_errors_and_no_violation(page: chromium.Page, tmp_path: Path) -> None:
    """At a broker with an HTTP listener, whose group and topic have a history."""
    if not chromium.AXE.exists():
        pytest.skip("axe-core is not installed: make browser")
    record = flight_record(tmp_path)
    with Serving(tmp_path / "data", arguments=["--http", "127.0.0.1:0"], settings={"group.initial.rebalance.delay.ms": "0"}) as server:
        line = next(line for line in server.logs().splitlines() if "/health/ready on http://" in line)
        asyncio.run(group_and_transaction(server.bootstrap))
        options = ["--http", line.rpartition("http://")[2].split()[0], "--flight-records", str(record)]
        with chromium.console(server.bootstrap, *options) as url:
            where, page.url = page.url, url
            try:
                for path in (
                    "/timelines/groups", "/timelines/transactions", "/timelines/partitions?name=seen", "/timelines/controller",
                    "/topics/seen/partitions/0", f"/flight/{record.name}", f"/flight/{record.name}/3",
                ):  # fmt: skip
                    for width, dark in ((1280, False), (390, True)):
                        page.size(width, 900, dark=dark)
                        page.open(path)
                        assert (page.errors(), page.violations()) == ([], []), f"{path} at {width} pixels"
                        assert page.overflow <= 0, f"{path} is wider than {width} pixels"
            finally:
                page.url = where
                page.size(1280, 900)


async def group_and_transaction(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topic(NewTopic("seen", 2, 1))
    async with Producer(bootstrap_servers=bootstrap, transactional_id="seen-1") as producer, producer.transaction():
        await producer.send("seen", b"v")
    async with Consumer("seen", bootstrap_servers=bootstrap, group_id="seen", auto_offset_reset="earliest") as consumer:
        await consumer.poll(10_000)


def test_a_user_creates_a_topic_produces_and_finds_a_record(page: chromium.Page) -> None:
    name = f"{NAME}-made"
    page.open("/topics")
    page.press("New topic")
    page.write("name", name)
    page.write("partitions", "2")
    page.press("Create the topic")
    page.until(lambda: f"Topic {name} was created" in page.text, "the topic")
    page.press("Produce")
    page.write("key", "K-17")
    page.write("value", '{"order": 17, "note": "find me"}')
    page.find("button.primary").click()
    page.until(lambda: "The record has offset 0" in page.text, "the record")
    assert "order" in page.text and "find me" in page.text
    page.open(f"/topics/{name}/messages")
    page.write("value", "find me")
    page.press("Search")
    page.until(lambda: len(page.all("[data-rows] tr")) == 1, "the row")
    assert "value=find+me" in page.driver.current_url, "the search is in the address"
    page.until(lambda: "Done: 1 record" in page.text, "the end of the search")
    page.driver.refresh()
    page.until(lambda: len(page.all("[data-rows] tr")) == 1, "the row after a reload")
    page.find("[data-rows] a").click()
    page.until(lambda: "Partition" in page.find("h1").text, "the page of the record")
    assert page.errors() == []


def test_a_live_tail_shows_what_is_produced(page: chromium.Page, ottla_server: Serving | Elsewhere) -> None:
    page.open(f"/topics/{NAME}/messages?show=live&key=fresh")
    page.until(lambda: "Live" in page.find("[data-summary]").text, "the tail")

    async def produce() -> None:
        async with Producer(bootstrap_servers=ottla_server.bootstrap) as producer:
            await (await producer.send(NAME, b"news", b"fresh"))
            await (await producer.send(NAME, b"hidden", b"other"))

    asyncio.run(produce())
    page.until(lambda: "news" in page.find("[data-rows]").text, "the record")
    assert "hidden" not in page.find("[data-rows]").text
    page.find("[data-stop]").click()
    page.until(lambda: "Stopped" in page.find("[data-summary]").text, "the stop")


def test_a_user_resets_a_group_after_a_preview(page: chromium.Page) -> None:
    page.open(f"/group?id={NAME}")
    page.press("Reset offsets")
    page.press("Preview")
    page.until(lambda: "offsets change" in page.text, "the preview")
    assert "records are read again" in page.text
    page.press("Commit these offsets")
    page.until(lambda: f"offsets of {NAME} were committed" in page.text, "the reset")


def test_a_deletion_needs_the_name(page: chromium.Page) -> None:
    name = f"{NAME}-made"
    page.open(f"/topics/{name}/manage")
    button = page.find("form[action$='/delete'] button.danger")
    field = page.find("form[action$='/delete'] input[name=confirm]")
    field.send_keys(name[:-1])
    assert not button.is_enabled()
    field.send_keys(name[-1])
    assert button.is_enabled()
    button.click()
    page.until(lambda: f"Topic {name} was deleted" in page.text, "the deletion")


def test_the_theme_is_switched_and_remembered(page: chromium.Page) -> None:
    def background() -> str:
        return str(page.driver.execute_script("return getComputedStyle(document.body).backgroundColor"))

    page.open("/topics")
    before = background()
    page.find("[data-theme-switch]").click()
    assert background() != before
    page.open("/groups")
    assert background() != before
    page.find("[data-theme-switch]").click()
    assert background() == before


def test_keys_reach_the_search_field_and_other_pages(page: chromium.Page) -> None:
    page.open("/topics")
    page.driver.find_element(By.TAG_NAME, "body").send_keys("/")
    focused = page.driver.switch_to.active_element
    assert focused.get_attribute("type") == "search"
    focused.send_keys("nothing-has-this-name", Keys.ENTER)
    page.until(lambda: "No topic matches" in page.text, "the result")
    page.driver.find_element(By.TAG_NAME, "body").send_keys("gc")
    page.until(lambda: page.driver.current_url.endswith("/cluster"), "the page of the cluster")
