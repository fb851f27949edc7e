"""Clients of groups that are not members: an auditor fetches committed offsets; a bookkeeper commits and deletes offsets."""

from random import Random
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.group import commits
from ottla.client.group.commits import OffsetAndMetadata
from ottla.client.group.coordinator_search import COORDINATOR_MOVED
from ottla.client.options import ConsumerOptions, from_keywords
from ottla.client.transport.cluster import Cluster
from ottla.sim.client_connection import RETRY_MS, VERSIONS, Caller
from ottla.sim.group_environment import Callers, GroupBrokers
from ottla.sim.member_clients import UNCLEAR, GroupListener
from ottla.sim.network import Network
from ottla.sim.world import World
from ottla.wire import errors
from ottla.wire.messages import DeleteGroupsRequest, FindCoordinatorRequest, OffsetFetchRequest

NO_MEMBER = ("", -1)


class GroupAuditor:
    """A connection to a group's coordinator, sometimes to a broker that is not."""

    def __init__(self, world: World, network: Network, stage: GroupBrokers, history: GroupListener, name: str) -> None:
        self._world = world
        self._history = history
        self._rng: Random = world.rng(name)
        self._stage = stage
        self._callers = Callers(world, network, stage, name)
        self._cluster = Cluster(max_age_ms=60_000)
        self._partitions = [TopicPartition(history.topic, partition) for partition in range(history.partitions)]

    def _to(self, group: str) -> Caller:
        return self._callers.to(self._stage.coordinator_of(group))

    def _look_for(self, group: str, code: int) -> None:
        if code in COORDINATOR_MOVED:
            self._to(group).call(FindCoordinatorRequest(coordinator_keys=[group]), lambda response: None)


class Auditor(GroupAuditor):
    """Fetches the offsets of all groups in turn, for ever."""

    def __init__(self, world: World, network: Network, stage: GroupBrokers, history: GroupListener, groups: list[str]) -> None:
        super().__init__(world, network, stage, history, "auditor")
        self._options = [from_keywords(ConsumerOptions, {"group_id": group}) for group in groups]
        #: Groups that answered since this was last emptied.
        self.answered_groups: set[str] = set()
        world.after(500, lambda: self._ask(0))

    def _ask(self, place: int) -> None:
        options = self._options[place % len(self._options)]
        request = commits.fetch_request(options, self._cluster, self._partitions, NO_MEMBER, VERSIONS[OffsetFetchRequest])
        ticket = self._history.fetch_sent(options.group_id)

        def answered(response: Any) -> None:
            code, found = commits.fetched(response, options, {})
            self._look_for(options.group_id, code)
            if not code:
                self.answered_groups.add(options.group_id)
                told = {tp.partition: kept.offset if isinstance(kept, OffsetAndMetadata) else -1 for tp, kept in found.items()}
                self._history.fetch_answered(ticket, told)
            self._world.after(self._world.unhurried(self._rng.choice((10, 100, 400))), lambda: self._ask(place + 1))

        def lost() -> None:
            self._world.after(RETRY_MS, lambda: self._ask(place))

        if not self._to(options.group_id).call(request, answered, lost=lost):
            lost()


class Bookkeeper(GroupAuditor):
    """Commits offsets for a group without members. Sometimes it deletes offsets or the group."""

    def __init__(self, world: World, network: Network, stage: GroupBrokers, history: GroupListener, group: str) -> None:
        super().__init__(world, network, stage, history, "bookkeeper")
        self._options = from_keywords(ConsumerOptions, {"group_id": group})
        self._entries = 0
        self.closed = False
        world.after(self._rng.randint(0, 500), self._go_on)

    def _go_on(self) -> None:
        if self.closed:
            return
        if self._rng.random() < 0.15:
            self._delete()
        else:
            self._commit()

    def _again(self) -> None:
        self._world.after(self._world.unhurried(self._rng.choice((5, 50, 200))), self._go_on)

    def _commit(self) -> None:
        self._entries += 1
        chosen = self._rng.sample(self._partitions, self._rng.randint(1, len(self._partitions)))
        offsets = {tp: OffsetAndMetadata(self._entries) for tp in chosen}
        request = commits.commit_request(self._options, self._cluster, offsets, NO_MEMBER)
        ticket = self._history.commit_sent(self._options.group_id, None, {tp.partition: self._entries for tp in chosen})

        def answered(response: Any) -> None:
            refused = {tp.partition: code for tp, code in commits.commit_errors(response, {}).items()}
            for tp in chosen:
                code = refused.get(tp.partition, 0)
                outcome = "acknowledged" if not code else "unclear" if code in UNCLEAR else "refused"
                self._history.commit_answered(ticket, tp.partition, outcome)
            self._look_for(self._options.group_id, next(iter(refused.values()), 0))
            self._again()

        self._send(request, ticket, [tp.partition for tp in chosen], answered)

    def _delete(self) -> None:
        group = self._options.group_id
        everywhere = [tp.partition for tp in self._partitions]
        ticket = self._history.commit_sent(group, None, dict.fromkeys(everywhere, -1))

        def answered(response: Any) -> None:
            code = response.results[0].error_code
            for partition in everywhere:
                outcome = "acknowledged" if code == errors.NONE else "unclear" if code in UNCLEAR else "refused"
                self._history.commit_answered(ticket, partition, outcome)
            self._look_for(group, code)
            self._again()

        self._send(DeleteGroupsRequest(groups_names=[group]), ticket, everywhere, answered)

    def _send(self, request: Any, ticket: Any, partitions: list[int], answered: Any) -> None:
        def lost() -> None:
            for partition in partitions:
                self._history.commit_answered(ticket, partition, "unclear")
            self._again()

        if not self._to(self._options.group_id).call(request, answered, lost=lost):
            for partition in partitions:
                self._history.commit_answered(ticket, partition, "refused")
            self._again()
