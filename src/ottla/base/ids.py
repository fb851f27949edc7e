"""Types of ids and offsets; at run time they are plain ints, strs and bytes.

Offsets are dense per partition and start at 0. An end offset is exclusive: the offset the next record will get.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
ConnectionId = NewType("ConnectionId", int)
#: 16 raw bytes; ``topic_id_text`` gives Kafka's printed form.
TopicId = NewType("TopicId", bytes)

NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER = ProducerId(-1)
NO_TOPIC_ID = TopicId(bytes(16))


class TopicPartition(NamedTuple):
    """A partition of a topic; prints like the name of its directory: ``orders-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


TOPIC_NAME_LENGTH_MAX = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str:
    """Why this cannot be the name of a topic; empty if it can. Source: Kafka's Topic.validate."""
    if not name:
        return "a topic name has at least one character"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters; this one has {len(name)}"
    if not _TOPIC_NAME.fullmatch(name):
        return f"{name!r}: a topic name holds ASCII letters, digits, '.', '_' and '-' only"
    return ""


def as_partition(named: "TopicPartition | tuple[str, int]") -> TopicPartition:
    """Converts a user's (topic, number) pair. Raises: TypeError for anything else."""
    try:
        topic, partition = named
    except (TypeError, ValueError):
        topic = partition = None  # type: ignore[assignment]
    if not isinstance(topic, str) or not isinstance(partition, int):
        raise TypeError(f"a partition is named by its topic and number, such as ('orders', 0), not by {named!r}")
    return named if isinstance(named, TopicPartition) else TopicPartition(topic, partition)


def topic_id_text(topic_id: bytes) -> str:
    """A topic id as Kafka prints it: 22 characters of URL-safe base64 without padding."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def topic_id_from_text(text: str) -> TopicId:
    """The 16 bytes of a printed topic id.

    Raises: ValueError when the text is not 16 bytes of base64.
    """
    raw = urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"a topic id has 16 bytes; {text!r} has {len(raw)}")
    return TopicId(raw)


def partition_for(key: str, partitions: int) -> int:
    """Partition of a group or a transactional id in the internal topic of its coordinators: Java's string hash, absolute value, modulo.

    Source: Kafka's Utils.abs, java.lang.String.
    """
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    if value >= 1 << 31:
        value -= 1 << 32
    return 0 if value == -(1 << 31) else abs(value) % partitions
