"""Subscriptions by regular expression, evaluated by the broker.

The syntax is RE2's, as in Kafka, and the whole topic name must match. RE2 takes time linear in the length of a name for every expression,
so no client can keep the broker busy with ``(a+)+$``. Length, memory and the size of the compiled expression are limited, and groups are
not captured, so that RE2 uses its automaton: a name of 30 characters takes at most 0.2 ms, usually a microsecond. Internal topics match
like others, as in Kafka. (A client that evaluates expressions itself excludes them with ``exclude.internal.topics``.)

Source: KIP-848, RE2's syntax page.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import re2

from ottla.wire.errors import InvalidRegularExpression

#: Maximum length of an expression in characters.
PATTERN_CHARACTERS_MAX = 4096
#: Memory of one compiled expression with its state cache: an eighth of RE2's default.
PATTERN_MEMORY_BYTES = 1 << 20
#: Instructions of one compiled expression; a list of a hundred topics has some two thousand.
PATTERN_PROGRAM_MAX = 5_000


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """The compiled expression. Raises: InvalidRegularExpression if it is invalid or too long."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidRegularExpression(f"the regular expression has {len(pattern)} characters; {PATTERN_CHARACTERS_MAX} are allowed")
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        found = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpression(f"{pattern!r} is no regular expression of RE2: {text}") from None
    if found.programsize > PATTERN_PROGRAM_MAX:
        raise InvalidRegularExpression(f"{pattern!r} is too complex: {found.programsize} instructions, {PATTERN_PROGRAM_MAX} are allowed")
    return found


def matching(pattern: str, topics: Iterable[str]) -> frozenset[str]:
    """Matching topics. Raises: InvalidRegularExpression."""
    matches = compiled(pattern).fullmatch
    return frozenset(topic for topic in topics if matches(topic))
