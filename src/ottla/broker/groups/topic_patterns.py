"""Subscriptions by regular expression, which the broker matches for its clients.

The syntax is RE2's, as in Kafka, and a topic matches if its whole name does. RE2 takes time linear in the length of a name, whatever the
expression: no client can keep the broker busy with ``(a+)+$``. Its memory and length are bounded, too. Internal topics are matched by none:
nobody who subscribes to ``.*`` means the groups' own offsets, and clients of the classic protocol leave them out themselves.
Source: KIP-848, RE2's syntax page.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import re2

from ottla.wire.errors import InvalidRegularExpression

#: Longest expression, in characters.
PATTERN_CHARACTERS_MAX = 4096
#: Memory of one compiled expression, its cache of states included: an eighth of what RE2 takes by default.
PATTERN_MEMORY_BYTES = 1 << 20
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """The pattern, ready to match. Raises InvalidRegularExpression when RE2 cannot read it or it is too long."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidRegularExpression(f"the regular expression has {len(pattern)} characters; {PATTERN_CHARACTERS_MAX} are allowed")
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpression(f"{pattern!r} is no regular expression of RE2: {text}") from None


def matching(pattern: str, topics: Iterable[str]) -> frozenset[str]:
    """The topics that the pattern stands for. Raises InvalidRegularExpression."""
    matches = compiled(pattern).fullmatch
    return frozenset(topic for topic in topics if topic not in INTERNAL_TOPICS and matches(topic))
