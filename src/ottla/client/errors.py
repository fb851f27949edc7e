"""What can go wrong on the way to a broker and back; each error says which address, what was being done, and what to do about it.

A broker's own answers are the classes of `ottla.wire.errors`. Those here are finer kinds of them, for the cases that only a client meets,
so that `except KafkaError` catches all.
"""

from __future__ import annotations

from ottla.wire.errors import KafkaError, NetworkError, OffsetOutOfRange, RequestTimedOut, UnsupportedVersion


class ConnectionFailed(NetworkError):
    """No connection to a broker could be made, or the one there was broke: refused, not found, cut, or not a Kafka broker."""


class MetadataTimedOut(RequestTimedOut):
    """The cluster did not say in time what has to be known first: the brokers, a topic's partitions, a leader."""


class BufferExhausted(RequestTimedOut):
    """`buffer_memory` stayed full for `max_block_ms`: records come faster than the brokers take them."""


class DeliveryTimedOut(RequestTimedOut):
    """A record was not acknowledged within `delivery_timeout_ms`. It may or may not have been written."""


class BrokerIncompatible(UnsupportedVersion):
    """The broker has no version of a request that this client can send, or none that offers what was asked for."""


class LogTruncated(OffsetOutOfRange):
    """Records that were consumed are no longer in the log: a new leader has another history from `offset` on."""


class NoOffsetToStart(OffsetOutOfRange):
    """The position is outside the log, or none was given, and `auto_offset_reset` is none."""


class CommitFailed(KafkaError):
    """The offsets were not committed: the group goes on without this member, or gave the partitions to others."""

    sentence = "the group gave the partitions to others"


class WokenUp(KafkaError):
    """Somebody called `wakeup()` on the consumer, to end what it waited for. Nothing is lost: go on, or close it."""

    sentence = "wakeup() was called on the consumer"


class AlreadyClosed(KafkaError):
    """The client was closed; it cannot be used again."""

    sentence = "the client is closed"


#: Errors that tell that the cluster looks different from what we know: leaders, topic ids, controllers. Asking again needs new metadata
#: first.
METADATA_IS_STALE = frozenset({3, 5, 6, 9, 13, 41, 56, 72, 74, 75, 78, 100, 103})
