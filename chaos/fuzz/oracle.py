"""Checks of every response: it decodes at its version, in order, without an internal error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from crc32c import crc32c

from ottla.wire import framing
from ottla.wire.declare import Array, fields_of
from ottla.wire.messages import API

PRODUCE = 0
UNKNOWN_SERVER_ERROR = -1
#: The response has version 0 when the requested version is above the supported ones. Source: KIP-511.
API_VERSIONS = 18
Test = Callable[[Any], bool]
#: Bytes of a batch before its length, the checksum, and what it covers. Source: record batch format 2.
BATCH_START_BYTES, CHECKSUM, COVERED_AT = 12, slice(17, 21), 21
PRODUCER_ID, NO_PRODUCER_ID = slice(43, 51), b"\xff" * 8


class Finding(AssertionError):
    """Behaviour that no request may cause. Findings with the same cause have the same ``signature``."""

    def __init__(self, signature: str, description: str) -> None:
        super().__init__(f"{signature}\n{description}")
        self.signature = signature


@dataclass(slots=True)
class Expected:
    """A complete request, and the expected properties of its response."""

    key: int
    version: int
    correlation_id: int
    #: The encoded request; None for mutated bytes, which may be answered or refused.
    request: Any

    @property
    def name(self) -> str:
        """Without the version: one cause affects many of them."""
        api = API.get(self.key)
        return api.name if api is not None else f"API {self.key}"

    @property
    def description(self) -> str:
        """The request, shortened for people."""
        return f"{self.name} v{self.version}: {str(self.request)[:3000]}"

    @property
    def silent(self) -> bool:
        """Whether success has no response and failure closes the connection: acks=0."""
        return self.key == PRODUCE and (self.request is None or self.request.acks == 0)

    @property
    def damaged(self) -> bool:
        """Whether a batch of an idempotent producer has a wrong checksum: the broker closes the connection (decision 70)."""
        if self.key != PRODUCE or self.request is None:
            return False
        batches = [bytes(data.records) for topic in self.request.topic_data for data in topic.partition_data if data.records]
        idempotent = self.request.transactional_id is not None
        return any(wrong_checksum(batch) for batch in batches if idempotent or batch[PRODUCER_ID] not in (b"", NO_PRODUCER_ID))


def wrong_checksum(batch: bytes) -> bool:
    end = BATCH_START_BYTES + int.from_bytes(batch[8:BATCH_START_BYTES], signed=True)
    return len(batch) < end or crc32c(batch[COVERED_AT:end]) != int.from_bytes(batch[CHECKSUM])


def check_answer(expected: Expected, frame: bytes | bytearray | memoryview) -> Any:
    """Decode and check the response; ``frame`` has no size prefix. Raises: Finding."""
    api = API[expected.key]
    try:
        correlation_id, answer = framing.decode_response(api.response, frame, expected.version)
    except ValueError as error:
        raise Finding(
            f"{expected.name}: the answer does not decode", f"{error}\n{bytes(frame[:200]).hex()}\n{expected.description}"
        ) from error
    if expected.request is not None and expected.silent:
        raise Finding(f"{expected.name}: an answer in spite of acks=0", f"{str(answer)[:1000]}\n{expected.description}")
    if correlation_id != expected.correlation_id:
        raise Finding(f"{expected.name}: answers are out of order", f"{correlation_id} instead of {expected.correlation_id}")
    if internal_error(api.response)(answer):
        raise Finding(f"{expected.name}: UNKNOWN_SERVER_ERROR", f"{str(answer)[:3000]}\n{expected.description}")
    return answer


@cache
def internal_error(cls: type[msgspec.Struct]) -> Test:
    """Return a test for UNKNOWN_SERVER_ERROR in any error code of a message of this class."""
    tests: list[Test] = []
    for field in fields_of(cls):
        kind, name = field.type, field.name
        if name.endswith("error_code"):
            tests.append(lambda message, name=name: getattr(message, name) == UNKNOWN_SERVER_ERROR)  # type: ignore[misc]
        elif isinstance(kind, Array) and isinstance(kind.element, type) and (inner := internal_error(kind.element)) is not _never:
            tests.append(lambda message, name=name, inner=inner: any(map(inner, getattr(message, name) or ())))  # type: ignore[misc]
    if not tests:
        return _never
    if len(tests) == 1:
        return tests[0]
    return lambda message: any(test(message) for test in tests)


def _never(message: Any) -> bool:
    return False
