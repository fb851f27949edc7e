"""`ottla cluster elect`: have partitions led by their preferred replica, or by whatever replica is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import click

from ottla.cli.common.complete import topic_names
from ottla.cli.common.confirmation import DRY, agreed, dry_run_option, yes_option
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import OUTCOME, Form, fields, note, output_option
from ottla.cli.common.paths import LocalFile
from ottla.cli.topic import lookup

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.sync.admin import Admin


@fields(OUTCOME)
@click.command(name="elect")
@click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC[:0,2-5]", shell_complete=topic_names, help="These partitions; may be repeated."
)
@click.option(
    "--file", "listed", type=LocalFile("r"), metavar="FILE", help='Partitions as JSON: {"partitions":[{"topic":"t","partition":0}]}.'
)
@click.option("--all-topics", is_flag=True, help="All partitions.")
@click.option("--unclean", is_flag=True, help="Where no replica in sync is left, let any lead that is alive: records are lost then.")
@dry_run_option
@yes_option
@output_option
@bootstrap_option
def command(
    topics: tuple[str, ...], listed: TextIO | None, all_topics: bool, unclean: bool, dry_run: bool, yes: bool, output: Form, bootstrap: str
) -> None:
    """Have partitions led by their preferred replica, the first one, if it is in sync. Only an unclean election asks first."""
    from ottla.client.admin.results import ElectionType
    from ottla.wire.errors import ElectionNotNeeded, KafkaError

    if sum((bool(topics), listed is not None, all_topics)) != 1:
        raise click.UsageError("say which partitions: --topic TOPIC[:0,1], --file FILE or --all-topics")
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    with told(), connected(bootstrap) as admin:
        wanted = _read(listed) if listed is not None else None if all_topics else list(lookup.chosen(admin, topics, "--topic"))
        if dry_run or (unclean and not yes):
            going = _electable(admin, wanted, unclean=unclean)
            if wanted is None:
                going = {name: state for name, state in going.items() if state != "not needed"}
            if dry_run:
                note(DRY)
                output.report(going, {}, "would be elected", going)
                return
            lost = [str(tp) for tp, state in going.items() if state != "not needed"]
            agreed("An unclean election loses what the replicas in sync had and the new leader has not.", lost, yes=False)
        outcomes = admin.elect_leaders(wanted, election_type=kind)
    idle = {str(tp): "not needed" for tp, outcome in outcomes.items() if isinstance(outcome, ElectionNotNeeded)}
    failed = {str(tp): outcome for tp, outcome in outcomes.items() if isinstance(outcome, KafkaError) and str(tp) not in idle}
    output.report([str(tp) for tp in sorted(outcomes)], failed, "elected", idle)


def _electable(admin: Admin, wanted: list[TopicPartition] | None, *, unclean: bool) -> dict[str, str]:
    """What an election would do with each partition, as far as the brokers tell. Raises: ClickException, KafkaError."""
    if wanted is None:
        texts = [topic.name for topic in admin.list_topics(internal=True)]
    else:
        texts = [f"{tp.topic}:{tp.partition}" for tp in wanted]
    found = {}
    for tp, one in lookup.chosen(admin, texts, "--topic").items():
        if unclean:
            needed, able = one.leader < 0, set(one.replicas) - set(one.offline_replicas)
        else:
            needed, able = one.leader != one.replicas[0], {one.replicas[0]} & set(one.isr)
        found[str(tp)] = "not needed" if not needed else "would be elected" if able else "nobody is able to lead"
    return found


def _read(listed: TextIO) -> list[TopicPartition]:
    """Raises: ValueError."""
    from ottla.client.admin.reassignment_plan import read_partitions

    try:
        return read_partitions(listed.read())
    except ValueError as error:
        raise ValueError(f"{listed.name}: {error}") from None
