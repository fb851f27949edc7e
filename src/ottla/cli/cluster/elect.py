"""`ottla cluster elect`: preferred and unclean leader elections."""

from __future__ import annotations

from typing import TextIO

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.cli.common.admin import admin_client, admin_options, partitions_option
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.cli.common.paths import LocalFile
from ottla.cli.topic import lookup
from ottla.client.admin.reassignment_plan import read_partitions
from ottla.client.admin.results import ElectionType
from ottla.wire.errors import ElectionNotNeeded, KafkaError


@fields(OUTCOME)
@click.command(name="elect")
@partitions_option
@click.option(
    "--file", "listed", type=LocalFile("r"), metavar="FILE", help='Partitions as JSON: {"partitions":[{"topic":"t","partition":0}]}.'
)
@click.option("--all-topics", is_flag=True, help="All partitions.")
@click.option("--unclean", is_flag=True, help="Elect any live replica if no in-sync replica is left. Records can be lost.")
@dry_run_option
@yes_option
@admin_options
def command(
    topics: tuple[str, ...],
    listed: TextIO | None,
    all_topics: bool,
    unclean: bool,
    dry_run: bool,
    yes: bool,
    output: OutputFormat,
    bootstrap: str,
) -> None:
    """Elect the preferred replica of partitions as leader, if it is in sync. An unclean election needs a confirmation."""
    if sum((bool(topics), listed is not None, all_topics)) != 1:
        raise click.UsageError("expected one of --topic TOPIC[:0,1], --file FILE, --all-topics")
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    with admin_client(bootstrap) as admin:
        chosen = _read(listed) if listed is not None else None if all_topics else list(lookup.select_partitions(admin, topics, "--topic"))
        if dry_run or (unclean and not yes):
            expected = _expected_outcomes(admin, chosen, unclean=unclean)
            if chosen is None:
                expected = {name: state for name, state in expected.items() if state != "not needed"}
            if dry_run:
                note(NOTHING_CHANGED)
                output.report(expected, {}, "would be elected", expected)
                return
            elected = [str(tp) for tp, state in expected.items() if state != "not needed"]
            confirm("An unclean election loses committed records that the new leader does not have.", elected, yes=False)
        outcomes = admin.elect_leaders(chosen, election_type=kind)
    idle = {str(tp): "not needed" for tp, outcome in outcomes.items() if isinstance(outcome, ElectionNotNeeded)}
    failed = {str(tp): outcome for tp, outcome in outcomes.items() if isinstance(outcome, KafkaError) and str(tp) not in idle}
    output.report([str(tp) for tp in sorted(outcomes)], failed, "elected", idle)


def _expected_outcomes(admin: ottla.Admin, chosen: list[TopicPartition] | None, *, unclean: bool) -> dict[str, str]:
    """The expected outcome of the election for each partition. Raises: ClickException, KafkaError."""
    if chosen is None:
        texts = [topic.name for topic in admin.list_topics(internal=True)]
    else:
        texts = [f"{tp.topic}:{tp.partition}" for tp in chosen]
    outcomes = {}
    for tp, one in lookup.select_partitions(admin, texts, "--topic").items():
        if unclean:
            needed, able = one.leader < 0, set(one.replicas) - set(one.offline_replicas)
        else:
            needed, able = one.leader != one.replicas[0], {one.replicas[0]} & set(one.isr)
        outcomes[str(tp)] = "not needed" if not needed else "would be elected" if able else "no eligible replica"
    return outcomes


def _read(listed: TextIO) -> list[TopicPartition]:
    """Raises: ValueError."""
    try:
        return read_partitions(listed.read())
    except ValueError as error:
        raise ValueError(f"{listed.name}: {error}") from None
