"""Reassignments with their progress, by the sizes of logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import PartitionReassignment
from ottla.console.watch.snapshot import Snapshot

MOVES_MAX = 500


class MoveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A reassignment. `copied`: bytes of the replicas that are added, `wanted`: of what they will have; None: unknown."""

    partition: TopicPartition
    target: list[int]
    adding: list[int]
    removing: list[int]
    copied: int | None
    wanted: int | None


def move_rows(moves: Mapping[TopicPartition, PartitionReassignment], snapshot: Snapshot | None) -> list[MoveRow]:
    """Reassignments with their progress by the sizes of logs, in the order of partitions."""
    sizes: dict[tuple[TopicPartition, int], int] = {}
    if snapshot is not None:
        for broker, directories in snapshot.measured.directories.items():
            for directory in directories:
                for one in directory.replicas:
                    tp = TopicPartition(one.topic, one.partition)
                    if tp in moves and not one.is_future:
                        sizes[tp, broker] = one.size_bytes
    rows = []
    for tp, move in sorted(moves.items())[:MOVES_MAX]:
        leader = None if snapshot is None else snapshot.sizes.get(tp)
        copied = sum(min(sizes.get((tp, broker), 0), leader or 0) for broker in move.adding)
        is_known = leader is not None and bool(move.adding)
        rows.append(
            MoveRow(
                partition=tp, target=move.target, adding=move.adding, removing=move.removing,
                copied=copied if is_known else None, wanted=(leader or 0) * len(move.adding) if is_known else None,
            )
        )  # fmt: skip
    return rows
