"""Where to go instead: the structures with which Produce and Fetch name a partition's new leader. Source: KIP-951."""

from ottla.wire.declare import Int32, SharedStruct, Struct


class LeaderIdAndEpoch(SharedStruct, frozen=True):
    """The leader of a partition as this broker knows it; -1 if unknown."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class NodeEndpoint(Struct):
    """Where one of the leaders named in the same response listens."""

    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
