"""`ottla cluster elect`: have partitions led by their preferred replica, or by whatever replica is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import click

from ottla.cli.render import admin as connected
from ottla.cli.render import bootstrap_option, output_option, report, told
from ottla.cli.words import scope

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.sync_admin import Admin


@click.command(name="elect")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:0,2-5]", help="These partitions; may be repeated.")
@click.option(
    "--file", "listed", type=click.File("r"), metavar="FILE", help='Partitions as JSON: {"partitions":[{"topic":"t","partition":0}]}.'
)
@click.option("--all-topics", is_flag=True, help="All partitions.")
@click.option("--unclean", is_flag=True, help="Where no replica in sync is left, let any lead that is alive: records are lost then.")
@click.option("-y", "--yes", is_flag=True, help="With --unclean: do it.")
@output_option
@bootstrap_option
def command(
    topics: tuple[str, ...], listed: TextIO | None, all_topics: bool, unclean: bool, yes: bool, output: str, bootstrap: str
) -> None:
    """Have partitions led by their preferred replica, the first one, if it is in sync."""
    from ottla.client.results import ElectionType
    from ottla.wire.errors import ElectionNotNeeded, KafkaError

    if sum((bool(topics), listed is not None, all_topics)) != 1:
        raise click.UsageError("say which partitions: --topic TOPIC[:0,1], --file FILE or --all-topics")
    if unclean and not yes:
        raise click.UsageError("an unclean election loses what the replicas in sync had and the new leader has not; say --yes to do it")
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    with told(), connected(bootstrap) as admin:
        wanted = _read(listed) if listed is not None else None if all_topics else _chosen(admin, topics)
        outcomes = admin.elect_leaders(wanted, election_type=kind)
    idle = {str(tp): "not needed" for tp, outcome in outcomes.items() if isinstance(outcome, ElectionNotNeeded)}
    failed = {str(tp): outcome for tp, outcome in outcomes.items() if isinstance(outcome, KafkaError) and str(tp) not in idle}
    report([str(tp) for tp in sorted(outcomes)], failed, "elected", idle, output)


def _chosen(admin: Admin, topics: tuple[str, ...]) -> list[TopicPartition]:
    """Raises: KafkaError, UsageError."""
    from ottla.base.ids import TopicPartition
    from ottla.wire.errors import KafkaError

    wanted = scope(topics, "--topic")
    chosen: list[TopicPartition] = []
    for name, topic in admin.describe_topics(wanted).items():
        if isinstance(topic, KafkaError):
            raise topic
        numbers = wanted[name]
        there = [one.partition for one in topic.partitions]
        chosen += [TopicPartition(name, number) for number in (there if numbers is None else sorted(numbers))]
    return chosen


def _read(listed: TextIO) -> list[TopicPartition]:
    """Raises: ValueError."""
    from ottla.client.reassignment_plan import read_partitions

    try:
        return read_partitions(listed.read())
    except ValueError as error:
        raise ValueError(f"{listed.name}: {error}") from None
