"""Producer ids, from blocks of 1,000 that the store allocates once in the life of a cluster. Source: KIP-730.

A block is allocated with compare-and-set on ``/latest_producer_id_block``; a broker that loses the race retries with the new value. Unused
ids of a block are lost at a restart. Requests without an id wait as delayed operations under ``WAITING``.
"""

from ottla.base.ids import ProducerId
from ottla.base.ports import Op, StoreResult
from ottla.broker.context import BrokerContext
from ottla.store import layout

BLOCK = 1000
#: Key of requests that wait for an id.
WAITING = ("producer_ids",)


class ProducerIds:
    """Allocates producer ids."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._next = 0
        #: Exclusive; equal to ``_next`` when the block is used up.
        self._end = 0
        self._claiming = False

    @property
    def ready(self) -> bool:
        """Whether ``take`` returns an id."""
        return self._next < self._end

    def take(self) -> ProducerId | None:
        """A new id; None if there is none yet. A block is then being allocated, and ``WAITING`` is poked when it arrives."""
        if not self.ready:
            self.claim()
            return None
        self._next += 1
        return ProducerId(self._next - 1)

    def claim(self) -> None:
        """Allocates the next block, unless that is in progress or there are ids."""
        if self._claiming or self.ready:
            return
        latest = self._context.image.producer_block
        start = ProducerId(latest.end + 1 if latest else 0)
        block = layout.ProducerIdBlock(self._context.broker_id, start, ProducerId(start + BLOCK - 1))
        version = self._context.image.versions.get(layout.PRODUCER_ID_BLOCK)
        data = layout.encode_producer_id_block(block)
        op = Op("create", layout.PRODUCER_ID_BLOCK, data) if version is None else Op("set", layout.PRODUCER_ID_BLOCK, data, version=version)
        self._claiming = True

        def answered(result: StoreResult) -> None:
            self._claiming = False
            if result.error is None:
                self._next, self._end = block.start, block.end + 1
                self._context.delayed.poke(WAITING)
            elif result.error in ("version", "exists"):
                # Another broker was faster; the image has its block by now.
                self.claim()

        self._context.submit((op,), answered)
