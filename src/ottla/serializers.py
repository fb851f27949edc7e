"""Formats for keys and values, to be given to producers and consumers: `Str`, `Int`, `Float`, `Json`, `Avro`, `Protobuf` ..."""

from ottla.client.serializers import *  # noqa: F403
from ottla.client.serializers import __all__ as __all__
