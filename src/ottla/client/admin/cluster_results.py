"""Results of admin requests about the cluster and its brokers, with Kafka's names."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class VersionRange(NamedTuple):
    """Levels of a feature or versions of an API, inclusive."""

    first: int
    last: int


class Features(msgspec.Struct, frozen=True):
    """Supported and finalized features; empty in a cluster without features. Source: KIP-584."""

    #: Levels by name that this broker supports.
    supported: dict[str, VersionRange]
    #: Levels by name that all brokers use.
    finalized: dict[str, VersionRange]
    #: Increases with each change of the finalized features; None without any.
    finalized_epoch: int | None


class ApiSupport(msgspec.Struct, frozen=True):
    """An API of a broker."""

    key: int
    #: Kafka's name; empty if this client does not know the API.
    name: str
    broker: VersionRange
    #: This client's versions; None if it does not know the API.
    client: VersionRange | None

    @property
    def used(self) -> int | None:
        """The version that both would use; None without a common one."""
        if self.client is None:
            return None
        version = min(self.broker.last, self.client.last)
        return version if version >= max(self.broker.first, self.client.first) else None


class QuorumReplica(msgspec.Struct, frozen=True):
    """A voter or observer of the metadata log. Times are the leader's, in milliseconds since 1970, None if unknown."""

    replica_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


class QuorumListener(msgspec.Struct, frozen=True):
    """Listener of a quorum node."""

    name: str
    host: str
    port: int


class Quorum(msgspec.Struct, frozen=True):
    """The metadata quorum of a KRaft cluster. Source: KIP-595, KIP-836."""

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
    """The log directory of a replica, and the one to which it is moving. Paths are None if there is no such replica."""

    path: str | None
    offset_lag: int = -1
    future_path: str | None = None
    future_offset_lag: int = -1
