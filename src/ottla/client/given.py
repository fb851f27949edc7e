"""What users give to the clients' calls, looked at before anything is done with it: what cannot be is a TypeError or a ValueError that
says what to give, and not what some code deep below makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ottla.base.ids import TopicPartition, as_partition

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
INT64_MAX = 2**63 - 1


def named(what: str, value: str) -> str:
    """A name. Raises: TypeError, ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is named by a str, not by {value!r}")
    if not value:
        raise ValueError(f"{what} has a name: the empty str is none")
    return value


def topic_name(value: str) -> str:
    """A topic's name. Raises: TypeError for what is no text. What text cannot be a name is for brokers to say."""
    if not isinstance(value, str):
        raise TypeError(f"a topic is named by a str, not by {value!r}")
    return value


def whole_number(what: str, value: int, *, at_least: int = 0, at_most: int = INT64_MAX) -> int:
    """A number without a fraction. Raises: TypeError, ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is a whole number, not {value!r}")
    if not at_least <= value <= at_most:
        raise ValueError(f"{what} is {f'{at_least} or more' if value < at_least else f'{at_most} at most'}, not {value}")
    return value


def milliseconds(timeout_ms: float) -> float:
    """How long something may take. Raises: TypeError, ValueError."""
    if not isinstance(timeout_ms, int | float) or isinstance(timeout_ms, bool):
        raise TypeError(f"timeout_ms is a number of milliseconds, not {timeout_ms!r}")
    if not timeout_ms >= 0:
        raise ValueError(f"timeout_ms is 0 or more, not {timeout_ms}")
    return timeout_ms


def mapping(what: str, value: Mapping[K, V], example: str) -> Mapping[K, V]:
    """Something by something. Raises: TypeError."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} are given in a dict, such as {example}, not as {value!r}")
    return value


def several(what: str, value: Iterable[T], example: str) -> list[T]:
    """Things of one kind. Raises: TypeError for what is not iterable, and for text, whose letters would be taken for them."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{what} are given in a list, such as {example}, not as {value!r}")
    return list(value)


def partitions_given(value: Iterable[TopicPartition | tuple[str, int]]) -> list[TopicPartition]:
    """Partitions. Raises: TypeError, ValueError."""
    if isinstance(value, TopicPartition):
        raise TypeError(f"partitions are given in a list, such as [{tuple(value)!r}]")
    return [as_partition(one) for one in several("partitions", value, "[('orders', 0), ('orders', 1)]")]


def by_partition(what: str, value: Mapping[Any, V], example: str, look: Callable[[str, V], T]) -> dict[TopicPartition, T]:
    """Something of each partition, looked at one by one. Raises: TypeError, ValueError."""
    given = mapping(what, value, f"{{('orders', 0): {example}}}")
    return {(tp := as_partition(one)): look(f"{what} of {tp}", each) for one, each in given.items()}
