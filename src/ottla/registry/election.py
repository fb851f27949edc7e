"""The election of the instance that writes, as Confluent's registries hold it. Pure.

Instances are members of a group (`schema-registry` by default) with the protocol type `sr` and the protocol `v0`. A member's metadata is
its identity as JSON. The group's leader computes the same assignment for all: the identity of the elected instance.

    the eligible member that says it is elected now, if it is the only one
    else the eligible member with the smallest URL

Two members with the same URL could not forward to each other; the assignment carries an error then.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

PROTOCOL_TYPE, PROTOCOL = "sr", "v0"
DEFAULT_GROUP = "schema-registry"
VERSION = 1
NO_ERROR, DUPLICATE_URLS = 0, 1


class InstanceIdentity(msgspec.Struct, frozen=True):
    """An instance. `leader`: it was elected before this rebalance."""

    host: str
    port: int
    master_eligibility: bool = True
    scheme: str = "http"
    leader: bool = False
    version: int = VERSION

    @property
    def url(self) -> str:
        """Where other instances reach it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class ElectionResult(msgspec.Struct, frozen=True):
    """The result of an election. `master` is the member's id in the group."""

    error: int = NO_ERROR
    master: str | None = None
    master_identity: InstanceIdentity | None = None
    version: int = VERSION


_identity = msgspec.json.Decoder(InstanceIdentity)
_assignment = msgspec.json.Decoder(ElectionResult)


def encode(part: InstanceIdentity | ElectionResult) -> bytes:
    return msgspec.json.encode(part)


def decode_identity(data: bytes) -> InstanceIdentity:
    """Raises: MsgspecError."""
    return _identity.decode(data)


def decode_assignment(data: bytes) -> ElectionResult:
    """Raises: MsgspecError."""
    return _assignment.decode(data)


def elect(members: Mapping[str, InstanceIdentity]) -> ElectionResult:
    """The assignment for these members, by their ids in the group."""
    eligible = sorted((one.url, member) for member, one in members.items() if one.master_eligibility)
    elected = [member for _, member in eligible if members[member].leader]
    chosen = elected[0] if len(elected) == 1 else eligible[0][1] if eligible else None
    doubled = len({one.url for one in members.values()}) < len(members)
    error = DUPLICATE_URLS if doubled else NO_ERROR
    return ElectionResult(error, chosen, None if chosen is None else members[chosen])
