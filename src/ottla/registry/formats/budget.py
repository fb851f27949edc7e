"""A limit of the work of one comparison of schemas.

Schemas of 1 KB can be compared in 2^30 steps, or give as many differences: records with two fields of one type that has two fields of one
type, and so on. Results of pairs are remembered, and what is still too much is refused.
"""

from __future__ import annotations

from ottla.registry.errors import InvalidSchema

#: Pairs of types that are compared, with the differences that are reported for them. A schema with 10,000 fields needs some 10,000; this
#: number takes 1 to 5 s of a thread.
STEPS_MAX = 200_000


class Budget:
    """Steps that a comparison may still take."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEPS_MAX

    def spend(self, steps: int = 1) -> None:
        """Raises: InvalidSchema."""
        self._left -= steps
        if self._left < 0:
            raise InvalidSchema(f"the schemas are too complex: a comparison takes more than {STEPS_MAX} steps")
