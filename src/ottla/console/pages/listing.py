"""Lists: a part of the items by the page in the address, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request

T = TypeVar("T")
#: Items of a page.
ITEMS = 100
TEXT_MAX = 500


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """One page of items; pages count from 1."""

    items: list[T]
    page: int
    pages: int
    count: int
    sort: str


def listed(request: Request, found: Sequence[T], keys: Mapping[str, Callable[[T], Any]], *, default: str, items: int = ITEMS) -> Listing[T]:
    """The page of the address. `keys` are sort keys by name; -NAME is descending, and items without a value come last."""
    sort = request.query_params.get("sort", default)
    if sort.removeprefix("-") not in keys:
        sort = default
    key = keys[sort.removeprefix("-")]
    known = sorted((one for one in found if key(one) is not None), key=key, reverse=sort.startswith("-"))
    ordered = [*known, *(one for one in found if key(one) is None)]
    pages = max(-(-len(ordered) // items), 1)
    page = min(max(number(request, "page", 1), 1), pages)
    return Listing(ordered[(page - 1) * items : page * items], page, pages, len(ordered), sort)


def text(request: Request, name: str, default: str = "") -> str:
    """A parameter of the address."""
    return request.query_params.get(name, default).strip()[:TEXT_MAX]


def number(request: Request, name: str, default: int) -> int:
    """A parameter that is a whole number; the default if it is not."""
    value = request.query_params.get(name, "")
    return int(value) if value.removeprefix("-").isdecimal() and len(value) < 19 else default


def matching(names: Iterable[T], wanted: str, name: Callable[[T], str]) -> list[T]:
    """The items whose name contains all words of a search, in any case."""
    words = wanted.lower().split()
    return [one for one in names if all(word in name(one).lower() for word in words)]
