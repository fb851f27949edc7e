"""`python -m bench`: measures Ottla, and a stock Apache Kafka where available."""

from __future__ import annotations

import dataclasses
import datetime
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from bench import kafka, report, runner
from bench.cases import (
    SCALES,
    Case,
    Scale,
    arrow,
    clients,
    console,
    failover,
    footprint,
    groups,
    replicated,
    requests,
    spark,
    throughput,
    transactions,
)
from bench.maven import PeerUnavailable
from bench.servers import OTTLA, OTTLA_CACHED, ROOT, Contestant, KafkaServer, compiled

RESULTS = ROOT / "bench" / "results"
WIDTH = 150
SERVERS = ("ottla", "cached", "kafka")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", "scale_name", flag_value="quick", help="One short round of everything, in about ten minutes.")
@click.option("--default", "scale_name", flag_value="default", default="default", hidden=True)
@click.option("--full", "scale_name", flag_value="full", help="More rounds, longer, more cases.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only cases whose title contains TEXT; may be given again.")
@click.option("--peer/--no-peer", default=True, help="Measure Apache Kafka beside Ottla (the default), or do not.")
@click.option("--server", "names", multiple=True, type=click.Choice(SERVERS), help="Only this server; may be given again.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of every case that has more than one.")
@click.option("--topics", type=click.IntRange(1), help="Topics of the cluster that the console shows.")
@click.option("--partitions", type=click.IntRange(1), help="Partitions of all these topics together.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where data directories are made.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here, not to bench/results.")
@click.option("--list", "list_only", is_flag=True, help="Print the titles of the cases and stop.")
def main(
    scale_name: str,
    only: tuple[str, ...],
    peer: bool,
    names: tuple[str, ...],
    rounds: int | None,
    topics: int | None,
    partitions: int | None,
    directory: Path | None,
    json_path: Path | None,
    list_only: bool,
) -> None:
    """Measure Ottla, and Apache Kafka for comparison.

    Exit code 0: every case was measured or skipped, whether targets were met or missed; 1: a case on Ottla could not be measured.
    """
    given = SCALES[scale_name]
    scale = dataclasses.replace(
        given, rounds=rounds or given.rounds, topics=topics or given.topics, partitions=partitions or given.partitions
    )
    cases = [case for case in _cases(scale) if not only or any(text in case.title for text in only)]
    if list_only:
        for case in cases:
            click.echo(case.title)
        return
    if not cases:
        raise click.ClickException(f"no case matches {', '.join(only)}; --list prints them all")
    # Without a terminal rich would wrap everything at 80 columns.
    screen, progress = (Console(stderr=on, highlight=False, width=None if sys.stdout.isatty() else WIDTH) for on in (False, True))
    contestants, notes, servers = _contestants(names or SERVERS, peer=peer)
    for note in notes:
        progress.print(note)
    began = datetime.datetime.now(datetime.UTC)
    machine = report.machine(directory or Path(tempfile.gettempdir()))
    if machine["file_system"] in ("tmpfs", "ramfs"):
        notes.append("the data lies in memory, where fsync costs nothing: choose another place with --directory")
    results = runner.run(
        cases, contestants, scale, directory=directory, say=lambda line: progress.print(line, markup=False, soft_wrap=True)
    )
    results.notes[:0] = notes
    commit = report.commit()
    document = report.as_json(results, scale=scale, machine=machine, commit=commit, servers=servers, began=began)
    path = json_path or RESULTS / f"{began.strftime('%Y%m%dT%H%M%SZ')}-{commit}.json"
    report.write(document, path)
    screen.print()
    screen.print(
        f"commit {commit}, {machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, {machine['python']}, {machine['file_system']}"
    )
    screen.print("; ".join(f"{name}: {what}" for name, what in servers.items()))
    screen.print()
    report.show(results, screen)
    screen.print(f"\nkept in {path}", soft_wrap=True)
    sys.exit(report.exit_status(results, screen))


def _cases(scale: Scale) -> list[Case]:
    return [
        *footprint.first_cases(scale),
        *requests.cases(scale),
        *throughput.cases(scale),
        *transactions.cases(scale),
        *clients.cases(scale),
        *arrow.cases(scale),
        *groups.cases(scale),
        *replicated.cases(scale),
        *failover.cases(scale),
        *console.cases(scale),
        *footprint.last_cases(scale),
        *spark.cases(scale),
    ]


def _contestants(names: tuple[str, ...], *, peer: bool) -> tuple[list[Contestant], list[str], dict[str, str]]:
    """The servers to measure, messages about missing ones, and a description of each."""
    contestants: list[Contestant] = []
    notes: list[str] = []
    servers: dict[str, str] = {}
    if not compiled():
        notes.append("Ottla is interpreted here, as in an editable install; `make bench` measures it as pip installs it")
    if "ottla" in names:
        contestants.append(OTTLA)
        servers[OTTLA.name] = "as it comes; acks=all is answered after fsync"
    if "cached" in names:
        contestants.append(OTTLA_CACHED)
        servers[OTTLA_CACHED.name] = "write.caching=true; acks=all is answered from the page cache, as Kafka does"
    if "kafka" in names and peer:
        try:
            found = kafka.distribution()
        except PeerUnavailable as why:
            notes.append(f"Apache Kafka is left out: {why}")
        else:
            contestants.append(KafkaServer(found))
            servers["kafka"] = f"Apache Kafka {found.version} on Java {found.java.version}, stock settings, 1 GiB heap"
    return contestants, notes, servers


if __name__ == "__main__":
    main()
