"""Producer ids, from blocks of 1000 that the store hands out once in the life of a cluster. Source: KIP-730.

A block is claimed by compare and set on ``/latest_producer_id_block``; whoever loses the race tries again with what the winner wrote. Ids
of a block that was not used up before a restart are never used. Requests wait until a block is there.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.base.ids import ProducerId
from ottla.base.ports import Op, StoreResult
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node

BLOCK = 1000


class ProducerIds:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._next = 0
        #: Exclusive; equal to ``_next`` when the block is used up.
        self._end = 0
        self._claiming = False
        self._waiting: deque[Callable[[ProducerId], None]] = deque()

    def take(self, use: Callable[[ProducerId], None]) -> None:
        """Give a new id to ``use``, now or in the step in which the next block arrives."""
        self._waiting.append(use)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._next < self._end:
            use = self._waiting.popleft()
            self._next += 1
            use(ProducerId(self._next - 1))
        if self._waiting and not self._claiming:
            self._claim()

    def _claim(self) -> None:
        latest = self._node.image.producer_block
        start = ProducerId(latest.end + 1 if latest else 0)
        block = layout.ProducerIdBlock(self._node.broker_id, start, ProducerId(start + BLOCK - 1))
        version = self._node.image.versions.get(layout.PRODUCER_ID_BLOCK)
        data = layout.encode_producer_id_block(block)
        op = Op("create", layout.PRODUCER_ID_BLOCK, data) if version is None else Op("set", layout.PRODUCER_ID_BLOCK, data, version=version)
        self._claiming = True

        def answered(result: StoreResult) -> None:
            self._claiming = False
            if result.error is None:
                self._next, self._end = block.start, block.end + 1
                self._serve()
            elif result.error in ("version", "exists"):
                # Another broker was faster; the image shows its block by now.
                self._serve()

        self._node.submit((op,), answered)
