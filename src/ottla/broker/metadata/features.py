"""Features with levels: which protocol and formats the brokers of a cluster use.

Each broker registers the levels that it supports. The store's ``/feature`` node has the finalized levels, by which every broker works.
UpdateFeatures changes them while the cluster runs, so that brokers can be upgraded one by one and go back until a level is raised.

=================================  =======  ==================================================================================
feature                            levels   what depends on it
=================================  =======  ==================================================================================
metadata.version                   7 to 33  nothing here; tools read Kafka's version from it: 33 is 4.4-IV2
group.version                      0, 1     1: the consumer protocol (KIP-848)
eligible.leader.replicas.version   1        eligible replicas are always tracked (KIP-966)
transaction.version                0 to 2   2: an epoch per transaction, for clients that support it (KIP-890); 1: flexible records
ottla.version                      1, 2     formats of Ottla. 2: the embedded store has checksums, which 0.1.0 cannot open
=================================  =======  ==================================================================================

A new cluster begins with the highest levels. The cluster of a version without levels has an empty node: then Kafka's features have their
highest levels, and ottla.version is 1. A level that formats on disk depend on can only be raised.

Source: KIP-584, KIP-1022.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.store.layout import OTTLA_VERSION
from ottla.wire import errors

GROUP_VERSION = "group.version"
TRANSACTION_VERSION = "transaction.version"


@dataclass(frozen=True, slots=True)
class Levels:
    """Supported levels of a feature, both included."""

    lowest: int
    highest: int
    #: Level in a cluster that has finalized none.
    unset: int
    #: Why the level cannot be lowered; empty if it can.
    fixed: str = ""

    @property
    def range(self) -> tuple[int, int]:
        return self.lowest, self.highest


SUPPORTED = {
    "eligible.leader.replicas.version": Levels(1, 1, 1),
    GROUP_VERSION: Levels(0, 1, 1),
    "metadata.version": Levels(7, 33, 33),
    TRANSACTION_VERSION: Levels(0, 2, 2),
    OTTLA_VERSION: Levels(1, 2, 1, fixed="the formats of this level cannot be read by brokers of a lower one"),
}
#: Of a new cluster.
NEWEST = {name: levels.highest for name, levels in SUPPORTED.items()}
#: What a broker without features in its registration supports: Ottla 0.1.0.
WITHOUT_FEATURES = {OTTLA_VERSION: (1, 1)}


def finalized(stored: Mapping[str, int]) -> dict[str, int]:
    """Finalized levels by feature, of the levels in the store; level 0 is left out."""
    levels = dict(stored) or {name: levels.unset for name, levels in SUPPORTED.items()}
    return {name: level for name, level in sorted(levels.items()) if level > 0}


def registered_levels(features: Mapping[str, tuple[int, int]]) -> Mapping[str, tuple[int, int]]:
    """Levels that a registered broker supports."""
    return features or WITHOUT_FEATURES


def is_outdated(features: Mapping[str, tuple[int, int]], levels_of_cluster: Mapping[str, int]) -> bool:
    """Whether a broker with these registered features does not support the finalized level of ottla.version."""
    lowest, highest = registered_levels(features).get(OTTLA_VERSION, (1, 1))
    return not lowest <= levels_of_cluster.get(OTTLA_VERSION, 1) <= highest


def why_not_supported(levels_of_cluster: Mapping[str, int]) -> str:
    """Why this version cannot work in a cluster with these finalized levels; empty if it can."""
    for name, level in levels_of_cluster.items():
        levels = SUPPORTED.get(name)
        if levels is None:
            return f"the cluster has finalized {name} at level {level}, which this version does not know; start the version that raised it"
        if not levels.lowest <= level <= levels.highest:
            return (
                f"the cluster has finalized {name} at level {level}; this version supports levels {levels.lowest} to {levels.highest}. "
                "Start the version that raised it, or a later one"
            )
    return ""


def check_update(
    name: str, level: int, *, now: Mapping[str, int], downgrade: bool, brokers: Iterable[tuple[int, Mapping[str, tuple[int, int]]]]
) -> None:
    """Checks a new finalized level; ``now`` has the present ones, ``brokers`` each registered broker with the levels it supports.

    Raises: InvalidUpdateVersion.
    """
    levels, present = SUPPORTED.get(name), now.get(name, 0)
    if levels is None:
        raise errors.InvalidUpdateVersion(f"invalid update version {level} for feature {name}: this feature is unknown")
    if not levels.lowest <= level <= levels.highest:
        raise errors.InvalidUpdateVersion(
            f"invalid update version {level} for feature {name}: the controller supports levels {levels.lowest} to {levels.highest}"
        )
    for broker, supported in brokers:
        lowest, highest = supported.get(name, (0, 0))
        if not lowest <= level <= highest:
            raise errors.InvalidUpdateVersion(
                f"invalid update version {level} for feature {name}: broker {broker} supports {lowest} to {highest}; upgrade it first"
            )
    if level < present and not downgrade:
        raise errors.InvalidUpdateVersion(
            f"invalid update version {level} for feature {name}: the finalized level is {present}; to lower it, ask for a downgrade"
        )
    if level < present and levels.fixed:
        raise errors.InvalidUpdateVersion(f"feature {name} cannot be lowered from {present} to {level}: {levels.fixed}")
    if level > present and downgrade:
        raise errors.InvalidUpdateVersion(
            f"invalid update version {level} for feature {name}: the finalized level is {present}, so this is not a downgrade"
        )
