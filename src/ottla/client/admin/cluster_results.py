"""What an admin client answers about the cluster as a whole and its brokers: plain structures, each with the names Kafka's users know."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class VersionRange(NamedTuple):
    """Levels of a feature or versions of an API, both ends included."""

    first: int
    last: int


class Features(msgspec.Struct, frozen=True):
    """What a cluster could do, and what it has agreed on; empty where there is nothing to agree on. Source: KIP-584."""

    #: Levels by name that the broker asked knows.
    supported: dict[str, VersionRange]
    #: Levels by name that all brokers keep to.
    finalized: dict[str, VersionRange]
    #: Grows with each change of what is finalized; None where nothing is.
    finalized_epoch: int | None


class ApiSupport(msgspec.Struct, frozen=True):
    """A kind of request that a broker takes."""

    key: int
    #: Kafka's name of it; empty for one that this client does not know.
    name: str
    broker: VersionRange
    #: The versions of this client; None if it has none.
    client: VersionRange | None

    @property
    def used(self) -> int | None:
        """The version in which they would speak; None: in none."""
        if self.client is None:
            return None
        version = min(self.broker.last, self.client.last)
        return version if version >= max(self.broker.first, self.client.first) else None


class QuorumReplica(msgspec.Struct, frozen=True):
    """A voter or observer of the metadata log. Times are the leader's, in milliseconds since 1970, None where they are not known."""

    replica_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


class QuorumListener(msgspec.Struct, frozen=True):
    """Where a node of the quorum listens."""

    name: str
    host: str
    port: int


class Quorum(msgspec.Struct, frozen=True):
    """The nodes that keep a KRaft cluster's metadata. Source: KIP-595, KIP-836."""

    leader: int
    leader_epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]
    #: By node id; empty from brokers before Kafka 3.9.
    listeners: dict[int, list[QuorumListener]]


class Replica(NamedTuple):
    """A partition's replica on one broker."""

    topic: str
    partition: int
    broker: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on broker {self.broker}"


class ReplicaPlace(msgspec.Struct, frozen=True):
    """In which directory of its broker a replica is, and to which it is moving. Paths are None where there is no such replica."""

    path: str | None
    offset_lag: int = -1
    future_path: str | None = None
    future_offset_lag: int = -1


__all__ = ["ApiSupport", "Features", "Quorum", "QuorumListener", "QuorumReplica", "Replica", "ReplicaPlace", "VersionRange"]
