"""Paths of the nodes with client quotas in the coordination store, as in ZooKeeper under Kafka 3.x.

::

    /config/users/USER                      quotas and SCRAM credentials of a user
    /config/users/USER/clients/CLIENT       quotas of a client id of a user
    /config/clients/CLIENT                  quotas of a client id
    /config/ips/ADDRESS                     quotas of an address

Names are percent-encoded; <default> stands for all others. Their contents are those of other settings, see ``layout.py``.
"""

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from ottla.store.layout import CONFIG, DEFAULT_ENTITY


class QuotaEntity(NamedTuple):
    """What has client quotas. None: it does not matter; empty: the default of all others."""

    user: str | None = None
    client: str | None = None
    ip: str | None = None


def _quota_element(name: str) -> str:
    return quote(name, safe="._-").replace("~", "%7E") if name else DEFAULT_ENTITY


def _quota_name(element: str) -> str:
    return "" if element == DEFAULT_ENTITY else unquote(element)


def quota_config(entity: QuotaEntity) -> str:
    """Node of the quotas of an entity; that of a user has its credentials, too. Source: Kafka's ConfigEntityZNode."""
    if entity.ip is not None:
        return f"{CONFIG}/ips/{_quota_element(entity.ip)}"
    if entity.user is None:
        assert entity.client is not None, "an entity has a user, a client id or an address"
        return f"{CONFIG}/clients/{_quota_element(entity.client)}"
    user = f"{CONFIG}/users/{_quota_element(entity.user)}"
    return user if entity.client is None else f"{quota_clients(user)}/{_quota_element(entity.client)}"


def quota_clients(user_path: str) -> str:
    """The parent of the client ids of a user, below the user's node."""
    return f"{user_path}/clients"


def is_parent_of_quotas(path: str) -> bool:
    """Whether it is the parent of the client ids of a user."""
    return re.fullmatch(r"/config/users/[^/]+/clients", path) is not None


def quota_entity_of(path: str) -> QuotaEntity | None:
    """The entity whose quotas live at this path; None for another kind of path."""
    found = re.fullmatch(r"/config/(users|clients|ips)/([^/]+)(?:/clients/([^/]+))?", path)
    if found is None:
        return None
    kind, name, client = found[1], _quota_name(found[2]), found[3]
    if client is not None:
        return QuotaEntity(user=name, client=_quota_name(client)) if kind == "users" else None
    return {"users": QuotaEntity(user=name), "clients": QuotaEntity(client=name), "ips": QuotaEntity(ip=name)}[kind]
