"""``ottla import``: takes log directories of stopped Kafka brokers into a new data directory, and compares them.

The first argument may be a command, ``verify`` or ``znodes``; else all arguments are directories. Exit code 1: nothing was imported, or the
comparison found a difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.common.confirmation import NOTHING_CHANGED, dry_run_option
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OutputFormat, fields, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.progress import REDRAW_S, RedrawnLine, bytes_text
from ottla.cli.common.tables import Column

if TYPE_CHECKING:
    from ottla.server.kafka_import.plan import ImportPlan

F = TypeVar("F", bound=Callable[..., Any])
LOST = (Column("KIND", "kind"), Column("WHAT", "what"), Column("REASON", "reason"))
DIFFERENCES = (Column("WHAT", "what"), Column("DIFFERENCE", "difference"))


class ImportGroup(CommandGroup):
    """A group whose default command is ``run``: ``ottla import DIR`` is ``ottla import run DIR``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(name="import", cls=ImportGroup)
def command() -> None:
    """Take over the directories of a stopped Apache Kafka: ottla import DIR... --data-dir NEW."""


def source_options(function: F) -> F:
    """The directories, and where the metadata of a Kafka with ZooKeeper is."""
    for decorate in (
        click.option("--incomplete", is_flag=True, help="Accept partitions without a replica that has all committed records."),
        click.option("--znodes", metavar="FILE", type=LocalPath(path_type=Path), help="Exported nodes of Kafka's ZooKeeper."),
        click.option("--zookeeper", metavar="HOST:PORT[,...][/PATH]", help="ZooKeeper of a Kafka 3.x; only read."),
        click.option("--data-dir", metavar="DIR", required=True, type=LocalPath(path_type=Path), help="Data directory of Ottla."),
        click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=LocalPath(path_type=Path)),
    ):
        function = decorate(function)
    return function


REPORT = {
    "metadata": "where topics and settings were read",
    "cluster_id": "id of the cluster, which stays",
    "brokers": "list of brokers",
    "brokers[].kafka_id": "id in Kafka",
    "brokers[].broker_id": "id in Ottla",
    "brokers[].directories": "directories of Kafka",
    "brokers[].clean": "whether Kafka stopped cleanly",
    "topics": "number of topics",
    "partitions": "number of partitions",
    "logs": "number of logs: replicas of partitions",
    "groups": "number of groups",
    "committed_offsets": "number of committed offsets",
    "transactional_ids": "number of transactional ids",
    "open_transactions": "transactions that their producer ends, or that time out",
    "decided_transactions": "transactions whose markers are written at the first start",
    "incomplete": "partitions without a replica that has all committed records",
    "linked_bytes": "bytes in hard links; null in a dry run",
    "copied_bytes": "copied bytes; null in a dry run",
    "not_imported": "list of what has no equal, or was left out",
    "not_imported[].kind": "kind",
    "not_imported[].what": "name, or count",
    "not_imported[].reason": "reason",
    "serve": "command that starts the brokers",
}


@fields(REPORT)
@command.command(name="run")
@source_options
@click.option("--copy", is_flag=True, help="Copy all files, without hard links, so that Kafka can start on the source again.")
@dry_run_option
@output_option
def run(
    directories: tuple[Path, ...], data_dir: Path, zookeeper: str | None, znodes: Path | None, incomplete: bool, copy: bool,
    dry_run: bool, output: OutputFormat,
) -> None:  # fmt: skip
    """Import directories of a stopped Kafka.

    Topics, records, producers, committed offsets, groups and settings are imported.

    The source does not change. Closed segments are hard links where possible; do not start Kafka on the source then. Directories of several
    brokers become several brokers.
    """
    from ottla.server.kafka_import.carry_out import carry_out, steps

    data_dir = data_dir.absolute()
    with planned(directories, zookeeper=zookeeper, znodes=znodes, incomplete=incomplete) as plan:
        done = None
        if not dry_run:
            progress = Transfer(sum(one.size for one in steps(plan)))
            try:
                done = carry_out(plan, data_dir, copy=copy, progress=progress.update)
            finally:
                progress.clear()
        document = report(plan, data_dir, done)
    if output.is_structured:
        output.document(document)
        return
    click.echo(
        f"{document['topics']} topics, {document['partitions']} partitions, {document['groups']} groups,"
        f" {document['committed_offsets']} committed offsets of cluster {document['cluster_id']}"
    )
    if document["transactional_ids"]:
        click.echo(
            f"{document['transactional_ids']} transactional ids; {document['open_transactions']} open transactions, which their producers"
            f" end or which time out; {document['decided_transactions']} decided ones, which the first start completes"
        )
    for broker in document["brokers"]:
        where = ", ".join(broker["directories"])
        how = "stopped cleanly" if broker["clean"] else "not stopped cleanly, the first start recovers it"
        click.echo(f"broker {broker['kafka_id']} becomes broker {broker['broker_id']}: {where} ({how})")
    if document["not_imported"]:
        click.echo("Not imported:")
        output.table(document["not_imported"], LOST)
    if done is None:
        click.echo(NOTHING_CHANGED)
        return
    click.echo(f"ottla: {data_dir} is complete: {bytes_text(done.linked_bytes)} linked, {bytes_text(done.copied_bytes)} copied")
    click.echo(f"Start it with: {document['serve']}")


@fields(
    logs="number of compared logs",
    batches="number of equal batches",
    bytes="their bytes",
    groups="number of groups",
    committed_offsets="number of committed offsets",
    further_records="records that only Ottla has",
    differences="list of differences",
    **{"differences[].what": "topic, partition or group", "differences[].difference": "difference"},
)
@command.command(name="verify")
@source_options
@output_option
def verify(
    directories: tuple[Path, ...], data_dir: Path, zookeeper: str | None, znodes: Path | None, incomplete: bool, output: OutputFormat
) -> None:
    """Compare an imported data directory with its source.

    Offsets, bytes and checksums of batches, and groups are compared.

    Verify before the first start. Exit code 1 if anything differs.
    """
    from ottla.server.data_directory import CannotStart, LockedDirectory
    from ottla.server.kafka_import.verification import verify as compare

    if not data_dir.is_dir():
        raise click.ClickException(f"{data_dir} is not a directory; name the data directory of an import with --data-dir")
    with planned(directories, zookeeper=zookeeper, znodes=znodes, incomplete=incomplete) as plan:
        try:
            held = LockedDirectory(data_dir)
        except CannotStart as error:
            raise click.ClickException(str(error)) from None
        progress = Transfer(sum(path.stat().st_size for one in plan.logs for path in one.source.path.glob("*.log")))
        try:
            found = compare(plan, data_dir.absolute(), progress=progress.update)
        finally:
            progress.clear()
            held.release()
    differences = [{"what": what, "difference": difference} for what, difference in found.differences]
    if output.is_structured:
        counts = {"logs": found.logs, "batches": found.batches, "bytes": found.read_bytes, "groups": found.groups}
        output.document(
            {**counts, "committed_offsets": found.offsets, "further_records": found.further_records, "differences": differences}
        )
    else:
        if differences:
            output.table(differences, DIFFERENCES)
        click.echo(
            f"{found.logs} logs, {found.batches} batches, {bytes_text(found.read_bytes)}, {found.groups} groups, {found.offsets} committed"
            f" offsets: {len(differences)} differences"
        )
    if differences:
        sys.exit(1)


@command.command(name="znodes")
@click.option("--zookeeper", metavar="HOST:PORT[,...][/PATH]", required=True, help="ZooKeeper of a Kafka 3.x; only read.")
def znodes_command(zookeeper: str) -> None:
    """Print the nodes of Kafka's ZooKeeper as JSON, for --znodes. They may contain secrets."""
    import msgspec

    from ottla.server.kafka_import.kafka_metadata import CannotImport
    from ottla.server.kafka_import.znodes import fetched_nodes

    try:
        nodes = fetched_nodes(zookeeper)
    except CannotImport as error:
        raise click.ClickException(str(error)) from None
    click.echo(msgspec.json.format(msgspec.json.encode(nodes), indent=1).decode())


@contextmanager
def planned(directories: Sequence[Path], *, zookeeper: str | None, znodes: Path | None, incomplete: bool) -> Iterator[ImportPlan]:
    """The plan of an import, with the directories locked. Raises: ClickException."""
    from ottla.server.data_directory import CannotStart
    from ottla.server.kafka_import.plan import metadata_of_kraft, plan_import
    from ottla.server.kafka_import.source import SourceDirectory, open_source
    from ottla.server.kafka_import.znodes import exported_nodes, fetched_nodes, metadata_of

    if zookeeper is not None and znodes is not None:
        raise click.UsageError("--zookeeper and --znodes exclude each other")
    opened: list[SourceDirectory] = []
    try:
        # One by one, so that those opened before an error are released.
        opened.extend(map(open_source, dict.fromkeys(path.resolve() for path in directories)))
        if zookeeper is not None:
            metadata = metadata_of(fetched_nodes(zookeeper), f"ZooKeeper at {zookeeper}")
        elif znodes is not None:
            metadata = metadata_of(exported_nodes(znodes), str(znodes))
        else:
            metadata = metadata_of_kraft(opened)
        yield plan_import(opened, metadata, allow_incomplete=incomplete)
    except (CannotStart, OSError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        for source in opened:
            source.release()


def report(plan: ImportPlan, data_dir: Path, done: Any) -> dict[str, Any]:
    """The document of an import. ``done`` is None in a dry run."""
    brokers = []
    for old, new in plan.brokers.items():
        own = [source for source in plan.sources if source.node_id == old]
        # A directory with the metadata log alone has no mark of a clean stop.
        clean = all(source.clean for source in own if source.logs)
        brokers.append({"kafka_id": old, "broker_id": new, "directories": [str(source.path) for source in own], "clean": clean})
    return {
        "metadata": plan.metadata.origin,
        "cluster_id": plan.cluster_id,
        "brokers": brokers,
        "topics": plan.topics,
        "partitions": plan.partitions,
        "logs": len(plan.logs),
        "groups": plan.groups.groups,
        "committed_offsets": plan.groups.offsets,
        "transactional_ids": len(plan.transactions.values),
        "open_transactions": plan.transactions.ongoing,
        "decided_transactions": plan.transactions.decided,
        "incomplete": [str(partition) for partition in plan.incomplete],
        "linked_bytes": None if done is None else done.linked_bytes,
        "copied_bytes": None if done is None else done.copied_bytes,
        "not_imported": [{"kind": kind, "what": what, "reason": reason} for kind, what, reason in plan.not_imported],
        "serve": " ".join(filter(None, (f"ottla serve --data-dir {data_dir}", plan.serve_arguments))),
    }


class Transfer:
    """A progress line in bytes, if standard error is a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._line = RedrawnLine(sys.stderr) if sys.stderr.isatty() else None
        self._drawn_s = 0.0

    def update(self, done: int) -> None:
        import time

        if self._line is None or (now_s := time.monotonic()) - self._drawn_s < REDRAW_S:
            return
        self._drawn_s = now_s
        share = done / self._total if self._total else 1.0
        self._line.draw(f"{share:4.0%}  {bytes_text(done)} of {bytes_text(self._total)}".replace("%", " %"))

    def clear(self) -> None:
        if self._line is not None:
            self._line.clear()
