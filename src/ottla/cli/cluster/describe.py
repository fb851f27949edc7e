"""`ottla cluster describe`, `apis`, `features` and `quorum`: what a cluster says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ottla.cli.broker.commands import BROKER, LISTED, broker_document
from ottla.cli.common import tables
from ottla.cli.common.arguments import time_text
from ottla.cli.common.complete import broker_ids
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import Form, fields, note, output_option
from ottla.cli.common.tables import Column

if TYPE_CHECKING:
    from ottla.client.admin.cluster_results import Quorum, QuorumReplica, VersionRange

TOTALS = {
    "topics": "how many there are, without the cluster's own",
    "internal_topics": "the cluster's own",
    "partitions": "of all topics",
    "replicas": "of all partitions",
    "under_replicated": "partitions with a leader and replicas that are not in sync",
    "offline": "partitions without a leader",
}


@fields(
    {f"brokers[].{name}": says for name, says in BROKER.items()},
    TOTALS,
    cluster_id="the cluster's id",
    controller="the broker that is the controller; null: none",
)
@click.command()
@output_option
@bootstrap_option
def describe(output: Form, bootstrap: str) -> None:
    """Show a cluster's id, controller and brokers, and how much is in it. Whether it is well: ottla cluster status."""
    from ottla.wire.errors import KafkaError

    with told(), connected(bootstrap) as admin:
        cluster = admin.describe_cluster()
        listed = admin.list_topics(internal=True)
        topics = admin.describe_topics([topic.name for topic in listed]) if listed else {}
    partitions = [one for topic in topics.values() if not isinstance(topic, KafkaError) for one in topic.partitions]
    brokers = [broker_document(node, cluster) for node in sorted(cluster.nodes, key=lambda node: node.id)]
    document = {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller if cluster.controller >= 0 else None,
        "topics": sum(not topic.is_internal for topic in listed),
        "internal_topics": sum(topic.is_internal for topic in listed),
        "partitions": len(partitions),
        "replicas": sum(len(one.replicas) for one in partitions),
        "under_replicated": sum(one.leader >= 0 and len(one.isr) < len(one.replicas) for one in partitions),
        "offline": sum(one.leader < 0 for one in partitions),
        "brokers": brokers,
    }
    if output.for_programs:
        output.document(document)
        return
    rows = [{"what": name.replace("_", " "), "is": value} for name, value in document.items() if name != "brokers"]
    output.table(rows, (Column("", "what"), Column("", lambda row: "none" if row["is"] is None else row["is"])))
    if tables.is_terminal():
        click.echo()
    output.table(brokers, [column for column in LISTED if not column.wide])


APIS = (
    Column("KEY", "key", number=True),
    Column("API", "name"),
    Column("BROKER", lambda row: f"{row['broker_first']}-{row['broker_last']}"),
    Column("OTTLA'S CLIENT", lambda row: None if row["client_first"] is None else f"{row['client_first']}-{row['client_last']}"),
    Column("USED", "used", number=True),
)


@fields(
    key="the request's number",
    name="Kafka's name of it; empty: this version of Ottla knows none",
    broker_first="the first version that the broker takes",
    broker_last="the last one",
    client_first="the first version that Ottla's clients speak; null: none",
    client_last="the last one",
    used="the version in which they speak with each other; null: none",
)
@click.command()
@click.option("--broker", type=int, metavar="N", shell_complete=broker_ids, help="Ask this broker, and not any.")
@output_option
@bootstrap_option
def apis(broker: int | None, output: Form, bootstrap: str) -> None:
    """List the requests that a broker takes, in which versions."""
    with told(), connected(bootstrap) as admin:
        found = admin.describe_api_versions(broker=broker)
    documents = [
        {
            "key": one.key,
            "name": one.name,
            "broker_first": one.broker.first,
            "broker_last": one.broker.last,
            "client_first": one.client.first if one.client else None,
            "client_last": one.client.last if one.client else None,
            "used": one.used,
        }
        for one in found
    ]
    output.show(documents, APIS)


FEATURES = (
    Column("FEATURE", "name"),
    Column("SUPPORTED", lambda row: _range(row, "supported")),
    Column("FINALIZED", lambda row: _range(row, "finalized")),
)


def _range(row: Any, kind: str) -> str | None:
    return None if row[f"{kind}_first"] is None else f"{row[f'{kind}_first']}-{row[f'{kind}_last']}"


@fields(
    name="the feature, say metadata.version",
    supported_first="the first level that the broker knows; null: it does not know the feature",
    supported_last="the last one",
    finalized_first="the first level that all brokers keep to; null: nothing is agreed on",
    finalized_last="the last one",
)
@click.command()
@click.option("--broker", type=int, metavar="N", shell_complete=broker_ids, help="Ask this broker, and not any.")
@output_option
@bootstrap_option
def features(broker: int | None, output: Form, bootstrap: str) -> None:
    """Show feature levels: what a broker knows, and what the cluster has agreed on."""
    with told(), connected(bootstrap) as admin:
        found = admin.describe_features(broker=broker)
    documents = [
        {"name": name, **_levels("supported", found.supported.get(name)), **_levels("finalized", found.finalized.get(name))}
        for name in sorted({*found.supported, *found.finalized})
    ]
    if not documents and not output.for_programs:
        note("There is nothing to agree on in this cluster: its brokers have no features with levels.")
        return
    output.show(documents, FEATURES)


def _levels(kind: str, levels: VersionRange | None) -> dict[str, int | None]:
    first, last = (None, None) if levels is None else levels
    return {f"{kind}_first": first, f"{kind}_last": last}


QUORUM = (
    Column("NODE", "node", number=True),
    Column("ROLE", "role", colour=lambda row: "green" if row["role"] == "leader" else None),
    Column("LOG END", "log_end_offset", number=True),
    Column("LAG", "lag", number=True, colour=lambda row: "yellow" if row["lag"] else None),
    Column("CAUGHT UP", lambda row: time_text(row["last_caught_up_ms"])),
    Column("FETCHED", lambda row: time_text(row["last_fetch_ms"]), wide=True),
)


@fields(
    {
        "replicas[].node": "a node's number",
        "replicas[].role": "leader, voter or observer",
        "replicas[].log_end_offset": "where its log ends",
        "replicas[].lag": "records of the leader's that it lacks",
        "replicas[].last_caught_up_ms": "when it last had all; null: not known",
        "replicas[].last_fetch_ms": "when it last asked the leader; null: not known",
    },
    leader="the node that leads the metadata log",
    leader_epoch="how often it had a new leader",
    high_watermark="what is committed of it",
)
@click.command()
@output_option
@bootstrap_option
def quorum(output: Form, bootstrap: str) -> None:
    """Show who keeps the metadata of a KRaft cluster, and how far behind each is. Ottla keeps it in a store and has no such quorum."""
    with told(), connected(bootstrap) as admin:
        found = admin.describe_quorum()
    replicas = [
        *(_replica(one, found, "leader" if one.replica_id == found.leader else "voter") for one in found.voters),
        *(_replica(one, found, "observer") for one in found.observers),
    ]
    document = {
        "leader": found.leader,
        "leader_epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
        "replicas": replicas,
    }
    if output.for_programs:
        output.document(document)
        return
    title = f"leader {found.leader}  epoch {found.leader_epoch}  high watermark {found.high_watermark}"
    output.table(replicas, QUORUM, title=title)


def _replica(one: QuorumReplica, quorum: Quorum, role: str) -> dict[str, Any]:
    ends = {voter.replica_id: voter.log_end_offset for voter in quorum.voters}
    return {
        "node": one.replica_id,
        "role": role,
        "log_end_offset": one.log_end_offset,
        "lag": max(ends.get(quorum.leader, one.log_end_offset) - one.log_end_offset, 0),
        "last_caught_up_ms": one.last_caught_up_ms,
        "last_fetch_ms": one.last_fetch_ms,
    }
