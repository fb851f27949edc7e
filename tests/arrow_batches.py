"""Batches of Arrow columns, built as the producer does."""

from collections.abc import Iterator
from typing import Any

from ottla.records.build import BinaryColumn, column_encoder, seal_encoded
from ottla.records.compression import Codec


def build_columns(
    value: BinaryColumn, *, size_max: int = 16 * 1024, codec: Codec = Codec.NONE, leader_epoch: int = -1, **columns: Any
) -> Iterator[bytearray]:
    """All batches of the rows; ``columns`` are arguments of ``column_encoder``."""
    encoder = column_encoder(value, **columns)
    while (builder := encoder.encode(size_max)) is not None:
        yield seal_encoded(builder, size_max=size_max, codec=codec, leader_epoch=leader_epoch)
