"""Client errors; each has the address, the operation and a remedy.

Brokers' errors are classes of `ottla.wire.errors`. Those here are subclasses for cases that only a client detects, so `except KafkaError`
catches all.
"""

from __future__ import annotations

from ottla.wire.errors import ErrorKind, KafkaError, NetworkError, OffsetOutOfRange, RequestTimedOut, UnsupportedVersion


class ConnectionFailed(NetworkError):
    """No connection to a broker: refused, unknown host, broken, or not a Kafka broker."""


class SslAuthenticationFailed(KafkaError, kind=ErrorKind.INVALID_CONFIGURATION):
    """The TLS handshake failed for a reason that lasts: a certificate, a trust store, or a setting is wrong. It is not retried.

    Kafka's SslAuthenticationException.
    """

    sentence = "the TLS handshake failed"


class MetadataTimedOut(RequestTimedOut):
    """Metadata did not arrive in time: brokers, partitions of a topic, or a leader."""


class BufferExhausted(RequestTimedOut):
    """`buffer_memory` was full for `max_block_ms`: records are sent faster than brokers accept them."""


class DeliveryTimedOut(RequestTimedOut, kind=ErrorKind.ABORTABLE):
    """A record was not acknowledged within `delivery_timeout_ms`. It may or may not have been written."""


class BrokerIncompatible(UnsupportedVersion):
    """The broker has no version of a request that this client supports, or none with the requested feature."""


class LogTruncated(OffsetOutOfRange):
    """Consumed records are no longer in the log: a new leader has another log from `offset` on."""


class NoOffsetToStart(OffsetOutOfRange):
    """The position is outside the log or missing, and `auto_offset_reset` is none."""


class CommitFailed(KafkaError, kind=ErrorKind.APPLICATION_RECOVERABLE):
    """Offsets were not committed: the group removed this member, or assigned the partitions to others, or a topic was deleted."""

    sentence = "the group gave the partitions to others"


class TransactionAborted(KafkaError):
    """A record was not sent, because its transaction was aborted first."""

    sentence = "the transaction was aborted before the record was sent"


class WokenUp(KafkaError):
    """`wakeup()` was called. No records are lost: poll again, or close the consumer."""

    sentence = "wakeup() was called on the consumer"


class AlreadyClosed(KafkaError):
    """The client was closed and cannot be used again."""

    sentence = "the client is closed"


#: Errors that mean that metadata is stale: leaders, topic ids, controllers. Metadata is refreshed before a
#: retry.
METADATA_IS_STALE = frozenset({3, 5, 6, 9, 13, 41, 56, 72, 74, 75, 78, 100, 103})
