"""Filters of the console: as in `ottla consume --filter`, but with RE2.

A user of the console gives the expression, and it runs in a thread that nothing can stop. RE2 needs time in proportion to the text,
whatever the expression; Python's `re` can be kept busy for hours by forty characters.
"""

from __future__ import annotations

import re
from typing import Any

from ottla.client.values.record_filter import Filter, parse_filter


def parsed(text: str) -> Filter:
    """Raises: FilterError."""
    return parse_filter(text, _linear)


def _linear(expression: bytes) -> Any:
    import re2

    try:
        return re2.compile(expression)
    except re2.error as error:
        raise re.error(str(error)) from None
