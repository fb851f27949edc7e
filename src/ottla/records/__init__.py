"""Record batch v2: the same bytes on the wire and on disk. Knows nothing of brokers, logs or sockets.

``batch`` headers · ``check`` what a client may write · ``build`` and ``read`` records · ``compression`` the codecs, bounded.
"""

from ottla.records.checksum import Buffer
from ottla.records.codec import NATIVE, murmur2

__all__ = ["NATIVE", "murmur2", "partition_for_key"]


def partition_for_key(key: Buffer, count: int) -> int:
    """The partition of ``count`` to which Java's default partitioner sends a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % count
