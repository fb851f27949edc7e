"""Validates arguments of the clients' methods. A wrong one is a TypeError or ValueError that says what to pass.

The annotations of a method define what it accepts; `checked` adds the validation to methods.

    str bytes int float None classes       as in Python, but True is not an int, and an int is accepted for a float
    TopicPartition, tuple[str, int]        any pair of a topic and a number
    Iterable[X], Sequence[X]               anything but a single str; an iterator becomes a list
    Mapping[K, V], X | Y                   each part
    a Struct of Ottla                      each field
    *_ms: float                            0 or more
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from ottla.base.ids import TopicPartition

C = TypeVar("C", bound=type[Any])
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
#: Parameters with 64 bits: offsets, times and producer ids.
LONG = (
    "before",
    "times",
    "offset",
    "offsets",
    "start_offset",
    "producer_id",
    "producer_ids",
    "longer_than_ms",
    "max_transaction_timeout_ms",
)
#: Example values by parameter.
EXAMPLES = {
    "group": "billing",
    "groups": "billing",
    "members": "worker-1",
    "transactional_id": "billing-1",
    "transactional_ids": "billing-1",
    "states": "Stable",
    "names": "retention.ms",
    "values": "retention.ms",
}
#: Kind of a name by parameter.
CALLED = {"topic": "topic", "topics": "topic", "group": "group", "groups": "group"}
WORDS = {str: "a str", bytes: "bytes", int: "a whole number", float: "a number", bool: "True or False", types.NoneType: "None"}
MADE = {
    "Resource": "Resource.topic('orders')",
    "NewTopic": "NewTopic('orders', partitions=3)",
    "NewPartitions": "NewPartitions(6)",
    "ConfigChange": "ConfigChange('retention.ms', '1000')",
    "OffsetAndMetadata": "OffsetAndMetadata(42)",
    "ElectionType": "ElectionType.PREFERRED",
    "ResourceType": "ResourceType.TOPIC",
    "GroupMetadata": "consumer.group_metadata()",
    "PreparedTransaction": "PreparedTransaction.parse('4000:7')",
}
PARTITION = "a partition is named by its topic and number, such as ('orders', 0), not by"


def topic_name(value: str) -> str:
    """A topic's name. Raises: TypeError if it is not text. Brokers validate the name itself."""
    if not isinstance(value, str):
        raise TypeError(f"a topic is named by a str, not by {value!r}")
    return value


def whole_number(what: str, value: int, *, at_least: int = 0, at_most: int = INT32_MAX) -> int:
    """An integer. Raises: TypeError, ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is a whole number, not {value!r}")
    if not at_least <= value <= at_most:
        raise ValueError(f"{what} is {f'{at_least} or more' if value < at_least else f'{at_most} at most'}, not {value}")
    return value


def milliseconds(what: str, value: float) -> float:
    """A duration. Raises: TypeError, ValueError."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{what} is a number of milliseconds, not {value!r}")
    if not value >= 0:
        raise ValueError(f"{what} is 0 or more, not {value}")
    return value


def patience(timeout_ms: float | None) -> float | None:
    """A timeout; None for no limit. Raises: TypeError, ValueError."""
    return None if timeout_ms is None else milliseconds("timeout_ms", timeout_ms)


def mapping(what: str, value: Any, example: str) -> Mapping[Any, Any]:
    """A mapping. Raises: TypeError."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} are given in a dict, such as {example}, not as {value!r}")
    return value


# By annotations.


def checked(*names: str) -> Callable[[C], C]:
    """Adds validation to these methods of a class; without names, to all public ones."""

    def decorate(made: C) -> C:
        for name in names or [name for name in dir(made) if not name.startswith("_") and name != "close"]:
            method = getattr(made, name)
            if inspect.isfunction(method):
                setattr(made, name, _looking(method))
        return made

    return decorate


def _looking(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    def look(arguments: tuple[Any, ...], named: dict[str, Any]) -> inspect.BoundArguments:
        given = signature.bind(*arguments, **named)
        for name, kind in _kinds(method).items():
            if name in given.arguments:
                given.arguments[name] = fitting(name, given.arguments[name], kind, name)
        return given

    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def looking_async(*arguments: Any, **named: Any) -> Any:
            given = look(arguments, named)
            return await method(*given.args, **given.kwargs)

        return looking_async

    @wraps(method)
    def looking(*arguments: Any, **named: Any) -> Any:
        given = look(arguments, named)
        return method(*given.args, **given.kwargs)

    return looking


@cache
def _kinds(method: Callable[..., Any]) -> dict[str, Any]:
    """Accepted types of the parameters that can be validated."""
    # The type of the result may be imported for type checking only.
    written = {name: annotation for name, annotation in method.__annotations__.items() if name not in ("self", "return")}
    # A method that forwards has the annotations of another module.
    hints = typing.get_type_hints(types.SimpleNamespace(__annotations__=written), inspect.unwrap(method).__globals__)
    parameters = {name: one.kind for name, one in inspect.signature(method).parameters.items() if name in hints}
    return {
        name: Iterable[hints[name]] if kind is inspect.Parameter.VAR_POSITIONAL else hints[name]  # type: ignore[valid-type]
        for name, kind in parameters.items()
        if kind is not inspect.Parameter.VAR_KEYWORD
    }


@cache
def _fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def fitting(where: str, value: Any, kind: Any, about: str = "") -> Any:
    """The value if it has this type; `where` describes it, `about` is the parameter. Raises: TypeError, ValueError."""
    if isinstance(kind, TypeVar):
        kind = kind.__bound__ or Any
    if kind is Any:
        return value
    arms = _arms(kind)
    fits = next((arm for arm in arms if _outer(value, arm)), None)
    if fits is None:
        raise TypeError(_refusal(where, value, arms, about))
    return _inner(where, value, fits, about)


def _arms(kind: Any) -> list[Any]:
    """The alternatives of a union, the most specific first."""
    arms = list(get_args(kind)) if get_origin(kind) in (Union, types.UnionType) else [kind]
    arms = [inner for arm in arms for inner in (_arms(arm.__bound__) if isinstance(arm, TypeVar) else [arm])]
    return sorted(arms, key=lambda arm: get_origin(arm) is not None and not _is_of(arm, Mapping))


def _is_of(kind: Any, general: type) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, general)


def _outer(value: Any, kind: Any) -> bool:
    """Whether a value has this type, without its parts."""
    origin = get_origin(kind)
    if kind is TopicPartition or origin is tuple:
        return isinstance(value, tuple | list) and len(value) == (2 if origin is None else len(get_args(kind)))
    if _is_of(kind, Mapping):
        return isinstance(value, Mapping)
    if origin is not None:
        return isinstance(value, origin) and not isinstance(value, str | bytes)
    if kind is None or kind is types.NoneType:
        return value is None
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(kind, type) or isinstance(value, kind)


def _inner(where: str, value: Any, kind: Any, about: str) -> Any:
    """The value after validation of its parts."""
    arguments = get_args(kind)
    if kind is TopicPartition:
        arguments = (str, int)
    if kind is TopicPartition or get_origin(kind) is tuple:
        for part, inner in zip(value, arguments, strict=True):
            if not _outer(part, inner):
                raise TypeError(_refusal(where, value, [kind], about))
            _inner(where, part, inner, "partition")
    elif _is_of(kind, Mapping):
        # 20,000 partitions are usual. Texts are made for what the quick test does not accept.
        is_key, is_value = _quick(arguments[0], about), _quick(arguments[1], about)
        for key, each in value.items():
            if not is_key(key):
                fitting(f"a key of {where}", key, arguments[0], about)
            if not is_value(each):
                fitting(f"{where} of {_called(key)}", each, arguments[1], about)
    elif arguments and _is_of(kind, Iterable):
        value = list(value) if isinstance(value, Iterator) else value
        is_one = _quick(arguments[0], about)
        for each in value:
            if not is_one(each):
                fitting(f"one of {where}", each, arguments[0], about)
    elif kind is int:
        whole_number(where, value, at_least=-INT64_MAX, at_most=INT64_MAX if about in LONG else INT32_MAX)
    elif kind is float and about.endswith("_ms"):
        milliseconds(where, value)
    elif isinstance(value, msgspec.Struct):
        for name, inner in _fields(type(value)).items():
            fitting(f"{name} of {value!r}", getattr(value, name), inner, name)
    return value


@cache
def _quick(kind: Any, about: str) -> Callable[[Any], bool]:
    """A quick test: if it is true, `fitting` accepts the value as it is. If it is false, `fitting` decides."""
    kinds = set(_arms(kind))
    # A topic and a number are one of several arms only where a name is, too.
    pairs = {TopicPartition, tuple[str, int]}
    most = INT64_MAX if about in LONG else INT32_MAX

    def is_pair(value: Any) -> bool:
        return isinstance(value, tuple) and len(value) == 2 and type(value[0]) is str and type(value[1]) is int and _fits32(value[1])

    if kinds <= pairs:
        return is_pair
    if kinds == {int}:
        return lambda value: type(value) is int and -INT64_MAX <= value <= most
    if kinds <= {str, bytes}:
        return lambda value: type(value) in kinds
    return lambda value: False


def _fits32(number: int) -> bool:
    return -INT64_MAX <= number <= INT32_MAX


def _called(key: Any) -> str:
    return str(TopicPartition(*key)) if isinstance(key, tuple) and len(key) == 2 else str(key)


def _refusal(where: str, value: Any, arms: list[Any], about: str) -> str:
    if TopicPartition in arms:
        return f"{PARTITION} {value!r}"
    if isinstance(value, str | bytes) and any(_is_of(arm, Iterable) and not _is_of(arm, Mapping) for arm in arms):
        return f"{where}: several are given in a list, such as [{value!r}]; calls in the singular are about one"
    if value is not None and types.NoneType in arms:
        arms = [arm for arm in arms if arm is not types.NoneType]
    said = " or ".join(dict.fromkeys(_words(arm, about) for arm in arms))
    if about in CALLED and str in arms:
        return f"a {CALLED[about]} is named by {said}, not by {value!r}"
    if about.endswith("_ms"):
        said += " of milliseconds"
    return f"{where} is {said}, not {value!r}"


def _words(kind: Any, about: str) -> str:
    """Description of an accepted value."""
    if kind in WORDS:
        return WORDS[kind]
    if get_origin(kind) is None and kind is not TopicPartition:
        name = kind.__name__ if isinstance(kind, type) else str(kind)
        return f"{'an' if name[0] in 'AEIO' else 'a'} {name}" + (f" such as {MADE[name]}" if name in MADE else "")
    outside = "a dict" if _is_of(kind, Mapping) else "a tuple" if get_origin(kind) is tuple else "a list"
    return f"{outside} such as {_example(kind, about)}"


def _example(kind: Any, about: str) -> str:
    if isinstance(kind, TypeVar):
        kind = kind.__bound__
    arms = _arms(kind)
    kind = int if int in arms else arms[0]
    arguments = get_args(kind)
    if kind is TopicPartition:
        arguments = (str, int)
    if kind is TopicPartition or get_origin(kind) is tuple:
        return f"({', '.join(_example(one, '') for one in arguments)})"
    if _is_of(kind, Mapping):
        return f"{{{_example(arguments[0], about)}: {_example(arguments[1], about)}}}"
    if arguments:
        return f"[{_example(arguments[0], about)}]"
    if kind is str:
        return repr(EXAMPLES.get(about, "orders"))
    name = getattr(kind, "__name__", str(kind))
    return {int: "0", float: "0.5", bool: "True"}.get(kind) or MADE.get(name, f"{name}(...)")
