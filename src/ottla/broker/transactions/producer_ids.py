"""Producer ids, from blocks of 1000 that the store hands out once in the life of a cluster. Source: KIP-730.

A block is claimed by compare and set on ``/latest_producer_id_block``; whoever loses the race tries again with what the winner wrote. Ids
of a block that was not used up before a restart are never used. Requests that find none wait in the purgatory under ``WAITING``.
"""

from typing import TYPE_CHECKING

from ottla.base.ids import ProducerId
from ottla.base.ports import Op, StoreResult
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node

BLOCK = 1000
#: What requests that need an id wait for.
WAITING = ("producer_ids",)


class ProducerIds:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._next = 0
        #: Exclusive; equal to ``_next`` when the block is used up.
        self._end = 0
        self._claiming = False

    @property
    def ready(self) -> bool:
        """Whether ``take`` gives an id."""
        return self._next < self._end

    def take(self) -> ProducerId | None:
        """A new id; None when there is none yet. A block is then being claimed, and ``WAITING`` poked when it is there."""
        if not self.ready:
            self._claim()
            return None
        self._next += 1
        return ProducerId(self._next - 1)

    def _claim(self) -> None:
        if self._claiming:
            return
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
                self._node.purgatory.poke(WAITING)
            elif result.error in ("version", "exists"):
                # Another broker was faster; the image shows its block by now.
                self._claim()

        self._node.submit((op,), answered)
