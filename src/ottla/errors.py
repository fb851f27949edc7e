"""Everything that can go wrong in a client: the brokers' own errors, one class per code, and those of the way to a broker and back."""

from ottla.client.consumer.record import RecordDeserializationFailed
from ottla.client.errors import *  # noqa: F403
from ottla.client.serializers import SerializationFailed
from ottla.wire.errors import *  # noqa: F403
from ottla.wire.errors import BY_CODE, KafkaError, error_for

__all__ = ["BY_CODE", "KafkaError", "RecordDeserializationFailed", "SerializationFailed", "error_for"]
