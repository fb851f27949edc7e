"""Members of a group over several processes, and a group with its members."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.client.options import ConsumerOptions, from_keywords
from ottla.sim.member_clients import Member

if TYPE_CHECKING:
    from ottla.sim.group_history import GroupHistory

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky", "range,cooperative-sticky")
MEMBERS_MAX = 5


class Seat:
    """A member over its lives, one process after the other. A former process may not know that it was replaced."""

    def __init__(self, story: "GroupHistory", group: "SimGroup", number: int, *, static: bool) -> None:
        self._story = story
        self._group = group
        self._name = f"{group.name}.{number}"
        self._instance = f"{group.name}-{number}" if static else ""
        self.lives: list[Member] = []

    @property
    def living(self) -> list[Member]:
        return [life for life in self.lives if not life.dead]

    def begin(self) -> None:
        """Starts a process, beside the former one if that still runs."""
        story, number = self._story, len(self.lives)
        name = f"{self._name}.{number}"
        rng = story.world.rng(name)
        options = self._group.options(rng.choice(self._group.protocols), self._instance)
        life = Member(story.world, story.network, story.stage, story, options, name=name, rng=rng)
        story.members[name] = life
        story.seats[name] = self
        self.lives.append(life)

    def begin_unless_alive(self) -> None:
        if not self.living:
            self.begin()


class SimGroup:
    """A group with its members."""

    def __init__(self, story: "GroupHistory", name: str, *, protocols: Sequence[str]) -> None:
        rng = story.world.rng("profile")
        self.name = name
        self.protocols = protocols
        self._strategy = rng.choice(STRATEGIES)
        self._session_ms = rng.choice((600, 1_000, 2_000))
        self._rebalance_ms = rng.choice((1_000, 3_000))
        self._story = story
        self.static = rng.random() < 0.4
        self.seats: list[Seat] = []
        for _ in range(rng.randint(1, 4)):
            self.grow()

    def grow(self) -> None:
        """Adds a member."""
        if len(self.seats) < MEMBERS_MAX:
            self.seats.append(Seat(self._story, self, len(self.seats), static=self.static))
            self.seats[-1].begin()

    @property
    def living(self) -> list[Member]:
        return [life for seat in self.seats for life in seat.living]

    def options(self, protocol: str, instance: str) -> ConsumerOptions:
        own: dict[str, Any] = {}
        if protocol == "classic":
            own = {
                "session_timeout_ms": self._session_ms,
                "heartbeat_interval_ms": self._session_ms // 4,
                "partition_assignment_strategy": self._strategy,
            }
        return from_keywords(
            ConsumerOptions,
            {
                "group_id": self.name,
                "group_instance_id": instance,
                "group_protocol": protocol,
                "max_poll_interval_ms": self._rebalance_ms,
                "request_timeout_ms": 1_500,
                "retry_backoff_ms": 20,
                "retry_backoff_max_ms": 200,
                **own,
            },
        )

    def settled(self, ends: dict[int, int]) -> bool:
        """Whether each partition has one reader that has read all of it."""
        living = self.living
        owned = sorted(partition for member in living for partition in member.owned)
        return (
            owned == sorted(ends)
            and all(member.machine.settled for member in living)
            and all(member.positions.get(partition) == ends[partition] for member in living for partition in member.owned)
        )
