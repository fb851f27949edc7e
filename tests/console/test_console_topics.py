"""Pages of topics, against a real broker; and what they compute."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Browser, browsing, measured, seen
from starlette.requests import Request

from ottla.aio import Admin, Producer
from ottla.base.ids import TopicPartition
from ottla.base.passwords import hashed
from ottla.client.admin.results import ConfigEntry, ConfigSource, ConfigSynonym, NewTopic, Resource
from ottla.console.options import Login, User
from ottla.console.pages.listing import listed, matching
from ottla.console.pages.topic_settings import changes_of, given_settings
from ottla.console.web.errors import Refused
from ottla.console.web.roles import Role
from serving import Elsewhere, Serving


def a_request(query: str = "") -> Request:
    return Request({"type": "http", "query_string": query.encode(), "path": "/topics", "headers": [], "method": "GET"})


@pytest.fixture
def name() -> str:
    return f"console-{uuid.uuid4().hex[:8]}"


def make(bootstrap: str, name: str, partitions: int = 3, records: int = 0, **settings: str) -> None:
    """A topic with records."""

    async def run() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            configs: dict[str, Any] = {key.replace("_", "."): value for key, value in settings.items()}
            await admin.create_topic(NewTopic(name, partitions, 1, configs))
        async with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(records):
                await producer.send(name, b"value %d" % number, b"key", partition=number % partitions)

    asyncio.run(run())


# Lists


def test_a_list_is_sorted_and_cut_into_pages_by_the_address() -> None:
    keys = {"name": lambda one: one, "size": lambda one: len(one) or None}
    found = listed(a_request("sort=-size&page=2"), ["a", "ccc", "", "bb"], keys, default="name", items=2)
    assert (found.items, found.page, found.pages, found.count, found.sort) == (["a", ""], 2, 2, 4, "-size")


@pytest.mark.parametrize("query", ["sort=nonsense&page=99999", "page=x", "page=-3", "sort="])
def test_an_invalid_address_shows_the_nearest_page(query: str) -> None:
    found = listed(a_request(query), ["b", "a"], {"name": lambda one: one}, default="name")
    assert (found.items, found.page, found.sort) == (["a", "b"], 1, "name")


def test_a_search_finds_names_that_contain_all_words() -> None:
    assert matching(["Orders.EU", "orders.us", "eu.users"], "eu ord", lambda one: one) == ["Orders.EU"]


# Settings


def an_entry(name: str, value: str, source: ConfigSource, inherited: str | None = None, **more: bool) -> ConfigEntry:
    synonyms = [ConfigSynonym(name, value, source)]
    if inherited is not None:
        synonyms.append(ConfigSynonym(name, inherited, ConfigSource.DEFAULT))
    return ConfigEntry(name, value, source, more.get("is_sensitive", False), more.get("is_read_only", False), synonyms=synonyms)


ENTRIES = {
    "retention.ms": an_entry("retention.ms", "1000", ConfigSource.TOPIC, "604800000"),
    "segment.bytes": an_entry("segment.bytes", "100", ConfigSource.DEFAULT, "100"),
    "locked": an_entry("locked", "1", ConfigSource.DEFAULT, is_read_only=True),
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"retention.ms": "1000", "segment.bytes": "100"}, []),
        ({"segment.bytes": "200"}, [("segment.bytes", "100", "200", "200")]),
        ({"retention.ms": ""}, [("retention.ms", "1000", None, "604800000")]),
        ({"segment.bytes": ""}, []),
        ({"locked": "2", "unknown": "3"}, []),
    ],
    ids=["unchanged", "set", "reset", "reset of a default", "what cannot change"],
)
def test_a_form_of_settings_is_a_list_of_changes(given: dict[str, str], expected: list[tuple[str, str, str | None, str]]) -> None:
    assert [(one.name, one.old, one.new, one.becomes) for one in changes_of(ENTRIES, given)] == expected


def test_settings_are_lines() -> None:
    assert given_settings("a = 1\n\n b=2=3 \n") == {"a": "1", "b": "2=3"}
    with pytest.raises(Refused, match="NAME=VALUE"):
        given_settings("nonsense")


# Pages


@pytest.mark.server
def test_a_topic_is_created_grown_and_deleted(browser: Browser, name: str) -> None:
    answer = browser.post("/new/topic", {"name": name, "partitions": "3", "replicas": "1", "settings": "retention.ms=1000"})
    assert f"Topic {name} was created." in seen(answer.text)
    assert browser.text(f"/topics/{name}").count("all in sync") == 1
    browser.post(f"/topics/{name}/partitions", {"count": "5"})
    assert "now has 5 partitions" not in browser.text(f"/topics/{name}"), "a message is shown once"
    assert "5 × 1 replicas" in browser.text(f"/topics/{name}")
    refused = browser.post(f"/topics/{name}/delete", {"confirm": "another"})
    assert refused.status_code == 400 and "Nothing was changed" in refused.text
    assert f"Topic {name} was deleted." in seen(browser.post(f"/topics/{name}/delete", {"confirm": name}).text)
    missing = browser.get(f"/topics/{name}")
    assert missing.status_code == 404 and "Topic not found" in missing.text


@pytest.mark.server
def test_a_topic_that_exists_is_not_created_again(browser: Browser, name: str) -> None:
    browser.post("/new/topic", {"name": name})
    answer = browser.post("/new/topic", {"name": name, "settings": "retention.ms=1"})
    assert answer.status_code == 400
    assert "already exists" in answer.text and "retention.ms=1" in answer.text, "the form keeps what was typed"


@pytest.mark.server
def test_the_list_has_rates_records_and_sizes(browser: Browser, name: str, ottla_server: Serving | Elsewhere) -> None:
    make(ottla_server.bootstrap, name, partitions=2, records=20)
    asyncio.run(measured(browser))
    text = browser.text(f"/topics?q={name}")
    assert re.search(rf"{name} 2 × 1 \S+ 20 ", text), text
    assert "No topic matches" in browser.text("/topics?q=nothing-has-this-name")
    assert "__consumer_offsets" not in browser.text("/topics")


@pytest.mark.server
def test_a_setting_changes_after_a_review_of_the_difference(browser: Browser, name: str, ottla_server: Serving | Elsewhere) -> None:
    make(ottla_server.bootstrap, name, retention_ms="1000")
    html = browser.get(f"/topics/{name}/settings?changed=1").text
    assert ">retention.ms</span>" in html and ">topic</span>" in html and ">segment.bytes</span>" not in html
    review = browser.post(f"/topics/{name}/settings/review", {"setting:retention.ms": "86400000", "setting:cleanup.policy": "compact"})
    assert "Review of 2 changes" in review.text and "<del>1000</del>" in review.text and "<ins>86400000</ins>" in review.text
    assert entry(ottla_server.bootstrap, name, "retention.ms") == "1000", "a review changes nothing"
    form = {"name": ["retention.ms"], "old:retention.ms": "1000", "new:retention.ms": "86400000"}
    assert "1 settings" in seen(browser.post(f"/topics/{name}/settings", form).text)
    assert entry(ottla_server.bootstrap, name, "retention.ms") == "86400000"
    stale = browser.post(f"/topics/{name}/settings", form)
    assert stale.status_code == 400 and "changed since the review" in stale.text


@pytest.mark.server
def test_a_review_says_what_the_brokers_refuse(browser: Browser, name: str) -> None:
    browser.post("/new/topic", {"name": name})
    answer = browser.post(f"/topics/{name}/settings/review", {"setting:retention.ms": "nonsense"})
    assert answer.status_code == 400 and "The brokers refuse this" in answer.text and "Apply" not in seen(answer.text)


def entry(bootstrap: str, topic: str, name: str) -> str | None:
    async def run() -> str | None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            return (await admin.describe_config(Resource.topic(topic)))[name].value

    return asyncio.run(run())


@pytest.mark.server
def test_records_are_deleted_up_to_the_offsets_of_the_preview(browser: Browser, name: str, ottla_server: Serving | Elsewhere) -> None:
    make(ottla_server.bootstrap, name, partitions=2, records=20)
    page = browser.get(f"/topics/{name}/manage?until=4&partitions=1").text
    assert re.findall(r'name="before" value="([^"]+)"', page) == ["1:4"]
    assert "not a range" in browser.text(f"/topics/{name}/manage?until=1:2")
    answer = browser.post(f"/topics/{name}/purge", {"confirm": name, "before": ["1:4"]})
    assert "were deleted in 1 partitions" in seen(answer.text)

    async def start() -> int:
        async with Admin(bootstrap_servers=ottla_server.bootstrap) as admin:
            outcome = (await admin.list_offsets({(name, 1): -2}))[TopicPartition(name, 1)]
            return outcome.offset  # type: ignore[union-attr]

    assert asyncio.run(start()) == 4


@pytest.mark.server
def test_a_clone_has_partitions_and_settings_of_the_topic(browser: Browser, name: str, ottla_server: Serving | Elsewhere) -> None:
    make(ottla_server.bootstrap, name, partitions=4, retention_ms="12345")
    page = browser.get(f"/new/topic?clone={name}").text
    assert f'value="{name}-copy"' in page and "retention.ms=12345" in page and 'name="partitions" type="number" value="4"' in page


# Roles


@pytest.fixture
def as_viewer(ottla_server: Serving | Elsewhere, tmp_path: Path) -> Iterator[Browser]:
    login = Login(users={"v": User("v", Role.VIEWER, hashed("v", b"salt"))})
    with browsing(ottla_server.bootstrap, login=login, audit=tmp_path / "audit") as browser:
        browser.post("/login", {"name": "v", "password": "v"})
        yield browser


@pytest.mark.server
def test_a_viewer_changes_nothing_and_sees_no_forms(as_viewer: Browser, name: str, tmp_path: Path) -> None:
    token = re.search(r'name="csrf" content="([^"]+)"', as_viewer.get("/").text)
    assert token is not None
    answer = as_viewer.client.post("/new/topic", data={"csrf": token[1], "name": name})
    assert answer.status_code == 403 and "role viewer" in answer.text
    assert "New topic" not in as_viewer.text("/topics")
    line = json.loads((tmp_path / "audit").read_text().splitlines()[-1])
    assert (line["action"], line["outcome"], line["user"]) == ("topic.create", "refused", "v")


@pytest.mark.server
def test_a_read_only_console_refuses_changes(ottla_server: Serving | Elsewhere, name: str) -> None:
    with browsing(ottla_server.bootstrap, is_read_only=True) as browser:
        answer = browser.post("/new/topic", {"name": name})
        assert answer.status_code == 403 and "read-only" in answer.text
        assert "New topic" not in browser.text("/topics")


@pytest.mark.server
def test_a_change_is_one_line_of_the_audit_log(ottla_server: Serving | Elsewhere, name: str, tmp_path: Path) -> None:
    with browsing(ottla_server.bootstrap, audit=tmp_path / "audit") as browser:
        browser.post("/new/topic", {"name": name, "partitions": "2"})
        browser.post("/new/topic", {"name": name})
    done, failed = (json.loads(line) for line in (tmp_path / "audit").read_text().splitlines())
    assert (done["action"], done["outcome"], done["topic"], done["partitions"]) == ("topic.create", "done", name, 2)
    assert (failed["outcome"], failed["user"]) == ("failed", "anonymous") and "already exists" in failed["error"]
