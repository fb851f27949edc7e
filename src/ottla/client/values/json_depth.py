"""How deeply JSON texts are nested.

Arrow's parser recurses per level, and so does what looks at its types: 100 KB of brackets end the process.

Most texts have few brackets. Of others all but the brackets is removed, and then pairs of brackets, level by level. Only a text whose
brackets do not cancel out, for instance because some are in strings, is read piece by piece.
"""

from __future__ import annotations

import re

DEPTH_MAX = 100
TOO_DEEP = f"the JSON is nested more than {DEPTH_MAX} levels deep"
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[][{}]', re.DOTALL)


def is_deep(text: bytes) -> bool:
    """Whether brackets are nested more than ``DEPTH_MAX`` deep, also in a text that is not valid."""
    if text.count(b"[") + text.count(b"{") <= DEPTH_MAX:
        return False
    brackets = text.translate(None, _OTHERS)
    for _ in range(DEPTH_MAX):
        fewer = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not fewer:
            return False
        if len(fewer) == len(brackets):
            break
        brackets = fewer
    depth = 0
    for part in _PARTS.finditer(text):
        if part[0] in (b"[", b"{"):
            depth += 1
            if depth > DEPTH_MAX:
                return True
        elif part[0] in (b"]", b"}"):
            depth = max(depth - 1, 0)
    return False
