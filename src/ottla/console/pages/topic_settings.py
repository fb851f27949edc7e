"""Settings of a topic with their sources; changes are shown as a diff, checked by the brokers, and then applied.

edit      a form with all settings that can change
review    old and new values, and what the brokers say (validate_only); nothing is changed
apply     the changes of the review, unless a value changed meanwhile
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.base.readable import readable_setting
from ottla.client.admin.admin import Admin
from ottla.client.admin.results import ConfigEntry, ConfigSource, Resource
from ottla.client.errors import BrokerIncompatible
from ottla.console.pages.listing import matching, number, text
from ottla.console.web.changes import change, field, fields, noted, review, then
from ottla.console.web.errors import explain, invalid
from ottla.console.web.page import page, segment
from ottla.console.web.roles import Role
from ottla.wire.errors import KafkaError

SOURCES = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.GROUP: "group",
    ConfigSource.DYNAMIC_BROKER: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "cluster",
    ConfigSource.STATIC_BROKER: "broker's file",
    ConfigSource.DEFAULT: "default",
}
SETTINGS_MAX = 200
_TAG = re.compile(r"</?[a-z][^<>]*>")
#: The field of a setting in the form.
FIELD = "setting:"


class SettingChange(msgspec.Struct, frozen=True):
    """A change: `new` None resets the setting; `becomes` is the value then, None if it is not known."""

    name: str
    old: str
    new: str | None
    becomes: str | None


def overrides(entries: Mapping[str, ConfigEntry]) -> list[ConfigEntry]:
    """The settings that the topic itself has."""
    return [entry for _, entry in sorted(entries.items()) if entry.source is ConfigSource.TOPIC and not entry.is_sensitive]


def given_settings(lines: str) -> dict[str, str]:
    """Settings of NAME=VALUE lines. Raises: Refused."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise invalid(f"Settings expect a line NAME=VALUE each, not {line[:100]!r}.")
        found[name.strip()] = value.strip()
        if len(found) > SETTINGS_MAX:
            raise invalid(f"A topic has at most {SETTINGS_MAX} settings.")
    return found


def changes_of(entries: Mapping[str, ConfigEntry], given: Mapping[str, str]) -> list[SettingChange]:
    """The changes that a form asks for. An empty field resets a setting of the topic, and leaves others alone."""
    found = []
    for name, value in sorted(given.items()):
        entry = entries.get(name)
        if entry is None or entry.is_read_only or entry.is_sensitive:
            continue
        old, is_override = entry.value or "", entry.source in (ConfigSource.TOPIC, ConfigSource.GROUP)
        if value == old or (not value and not is_override):
            continue
        inherited = next((one.value for one in entry.synonyms if one.source not in (ConfigSource.TOPIC, ConfigSource.GROUP)), None)
        found.append(SettingChange(name, old, value or None, value or inherited))
    return found


async def described(admin: Admin, resource: Resource) -> dict[str, ConfigEntry]:
    """Settings with synonyms, and documentation where the brokers have it."""
    try:
        return await admin.describe_config(resource, synonyms=True, documentation=True)
    except BrokerIncompatible:
        return await admin.describe_config(resource, synonyms=True)


def shown(entries: Iterable[ConfigEntry]) -> list[dict[str, Any]]:
    """Settings for a table."""
    return [
        {
            "name": entry.name,
            "value": "(hidden)" if entry.is_sensitive else readable_setting(entry.name, entry.value),
            "raw": entry.value or "",
            "source": SOURCES.get(entry.source, "unknown"),
            "is_override": not entry.is_default,
            "is_read_only": entry.is_read_only or entry.is_sensitive,
            # Kafka's texts are HTML.
            "doc": _TAG.sub("", entry.documentation or ""),
            "synonyms": [(one.name, one.value, SOURCES.get(one.source, "unknown")) for one in entry.synonyms],
        }
        for entry in entries
    ]


async def show(request: Request) -> Response:
    """The settings."""
    name = request.path_params["topic"]
    entries = await described(request.app.state.admin, Resource.topic(name))
    wanted, only = text(request, "q"), number(request, "changed", 0) == 1
    found = matching([entries[one] for one in sorted(entries)], wanted, lambda one: f"{one.name} {one.documentation or ''}")
    found = [one for one in found if not only or not one.is_default]
    return page(
        request, "topic_settings.html", title=name, tab="settings", name=name, settings=shown(found), q=wanted, only=only,
        count=len(entries), changed=sum(not one.is_default for one in entries.values()),
    )  # fmt: skip


async def edit(request: Request) -> Response:
    """The form."""
    name = request.path_params["topic"]
    entries = await described(request.app.state.admin, Resource.topic(name))
    settings = [one for one in shown(entries[each] for each in sorted(entries)) if not one["is_read_only"]]
    return page(request, "topic_settings_edit.html", title=name, tab="settings", name=name, settings=settings, prefix=FIELD)


@review(Role.EDITOR)
async def reviewed(request: Request) -> Response:
    """The diff of a form; changes nothing."""
    name, admin = request.path_params["topic"], request.app.state.admin
    entries = await described(admin, Resource.topic(name))
    given = {key.removeprefix(FIELD): str(value).strip() for key, value in request.state.form.items() if key.startswith(FIELD)}
    changes = changes_of(entries, given)
    problem = None
    if changes:
        try:
            await admin.incremental_alter_config(Resource.topic(name), {one.name: one.new for one in changes}, validate_only=True)
        except KafkaError as error:
            problem = explain(error)
    return page(
        request, "topic_settings_review.html", title=name, tab="settings", name=name, changes=changes, problem=problem,
        status=200 if problem is None else 400,
    )  # fmt: skip


@change("topic.settings", Role.EDITOR)
async def apply(request: Request) -> Response:
    """Applies the changes of a review."""
    name, admin = request.path_params["topic"], request.app.state.admin
    entries = await admin.describe_config(Resource.topic(name))
    wanted: dict[str, str | None] = {}
    for setting in fields(request, "name"):
        if setting not in entries or field(request, f"old:{setting}") != (entries[setting].value or ""):
            raise invalid(f"{setting} changed since the review.", "Go back to the settings, and review the change again.")
        is_reset = request.state.form.get(f"new:{setting}") is None
        wanted[setting] = None if is_reset else field(request, f"new:{setting}")
    if not wanted:
        raise invalid("There is nothing to change.")
    noted(request, topic=name, settings=wanted)
    await admin.incremental_alter_config(Resource.topic(name), wanted)
    return then(request, f"/topics/{segment(name)}/settings?changed=1", f"{len(wanted)} settings of {name} were changed.")


routes = [
    Route("/topics/{topic}/settings", show, methods=["GET"]),
    Route("/topics/{topic}/settings", apply, methods=["POST"]),
    Route("/topics/{topic}/settings/edit", edit, methods=["GET"]),
    Route("/topics/{topic}/settings/review", reviewed, methods=["POST"]),
]
