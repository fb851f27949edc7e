"""Record batch v2: the same bytes on the wire and on disk. Independent of brokers, logs and sockets.

``batch`` headers · ``check`` validation · ``build`` and ``read`` records · ``compression`` codecs with bounded output.
"""

from ottla.records.checksum import Buffer
from ottla.records.codec import NATIVE, murmur2

__all__ = ["NATIVE", "murmur2", "partition_for_key"]


def partition_for_key(key: Buffer, count: int) -> int:
    """The partition that Java's default partitioner chooses for this key, out of ``count``."""
    return (murmur2(key) & 0x7FFFFFFF) % count
