"""Frees messages with very many elements in steps: to free 20,000 elements at once takes milliseconds, like to decode them."""

from collections.abc import Generator
from functools import cache
from typing import Any

from ottla.wire.declare import Array, Struct, fields_of

#: Elements that are freed in a step: about 0.1 ms.
TURN_OBJECTS = 500
#: Lists with more elements are freed element by element.
LIST_MAX = 100


def freed_in_turns(objects: list[Any]) -> Generator[None, None, None]:
    """Lets go of messages and lists, with their elements, in steps of about 0.1 ms; each ``yield`` ends a step.

    Nothing is changed: an element that something else uses, stays. The caller must not keep the objects themselves.
    """
    stack, left = [objects], TURN_OBJECTS
    del objects
    while stack:
        some = stack[-1]
        if not some:
            stack.pop()
            continue
        one: Any = some.pop()
        left -= 1
        cls: type = type(one)
        if cls is list:
            stack.append(one.copy())
        else:
            for name in _lists_of(cls):
                inner = getattr(one, name)
                if inner and len(inner) > LIST_MAX:
                    stack.append(inner.copy())
                elif inner:
                    some += inner
        if left <= 0:
            one = inner = None
            yield
            left = TURN_OBJECTS


@cache
def _lists_of(cls: type) -> tuple[str, ...]:
    """Fields of a message or of a part of one that are lists."""
    return tuple(field.name for field in fields_of(cls) if isinstance(field.type, Array)) if issubclass(cls, Struct) else ()
