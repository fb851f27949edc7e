"""`ottla cluster describe`, `apis`, `features` and `quorum`."""

from __future__ import annotations

from typing import Any

import click

from ottla.cli.broker.commands import BROKER, LISTED, broker_document
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import time_text
from ottla.cli.common.complete import broker_ids
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.tables import Column
from ottla.client.admin.cluster_results import Quorum, QuorumReplica, VersionRange
from ottla.wire.errors import KafkaError

TOTALS = {
    "topics": "number of topics without the internal ones",
    "internal_topics": "number of internal topics",
    "partitions": "number of partitions of all topics",
    "replicas": "number of replicas of all partitions",
    "under_replicated": "number of partitions with a leader and replicas that are not in sync",
    "offline": "number of partitions without a leader",
}


@fields(
    {f"brokers[].{name}": help for name, help in BROKER.items()},
    TOTALS,
    cluster_id="cluster id",
    controller="broker id of the controller; null: none",
)
@click.command()
@admin_options
def describe(output: OutputFormat, bootstrap: str) -> None:
    """Show a cluster's id, controller, brokers and numbers of topics and partitions. For its health see ottla cluster status."""
    with admin_client(bootstrap) as admin:
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
    if output.is_structured:
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
    Column("CLIENT", lambda row: None if row["client_first"] is None else f"{row['client_first']}-{row['client_last']}"),
    Column("USED", "used", number=True),
)


@fields(
    key="API key",
    name="API name; empty: unknown to this version of Ottla",
    broker_first="first version that the broker supports",
    broker_last="last version that the broker supports",
    client_first="first version that Ottla's clients support; null: none",
    client_last="last version that Ottla's clients support; null: none",
    used="version that Ottla's clients use with this broker; null: none",
)
@click.command()
@click.option("--broker", type=int, metavar="N", shell_complete=broker_ids, help="Query this broker. [default: any]")
@admin_options
def apis(broker: int | None, output: OutputFormat, bootstrap: str) -> None:
    """List the APIs of a broker and their versions."""
    with admin_client(bootstrap) as admin:
        versions = admin.describe_api_versions(broker=broker)
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
        for one in versions
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
    name="feature, such as metadata.version",
    supported_first="first level that the broker supports; null: unsupported",
    supported_last="last level that the broker supports; null: unsupported",
    finalized_first="first finalized level of the cluster; null: none",
    finalized_last="last finalized level of the cluster; null: none",
)
@click.command()
@click.option("--broker", type=int, metavar="N", shell_complete=broker_ids, help="Query this broker. [default: any]")
@admin_options
def features(broker: int | None, output: OutputFormat, bootstrap: str) -> None:
    """Show the feature levels that a broker supports and that the cluster has finalized."""
    with admin_client(bootstrap) as admin:
        levels = admin.describe_features(broker=broker)
    documents = [
        {"name": name, **_levels("supported", levels.supported.get(name)), **_levels("finalized", levels.finalized.get(name))}
        for name in sorted({*levels.supported, *levels.finalized})
    ]
    if not documents and not output.is_structured:
        note("The brokers of this cluster have no features with levels.")
        return
    output.show(documents, FEATURES)


def _levels(kind: str, levels: VersionRange | None) -> dict[str, int | None]:
    first, last = (None, None) if levels is None else levels
    return {f"{kind}_first": first, f"{kind}_last": last}


QUORUM = (
    Column("NODE", "node", number=True),
    Column("ROLE", "role", colour=lambda row: "green" if row["role"] == "leader" else None),
    Column("LOG-END-OFFSET", "log_end_offset", number=True),
    Column("LAG", "lag", number=True, colour=lambda row: "yellow" if row["lag"] else None),
    Column("LAST-CAUGHT-UP", lambda row: time_text(row["last_caught_up_ms"])),
    Column("LAST-FETCH", lambda row: time_text(row["last_fetch_ms"]), wide=True),
)


@fields(
    {
        "replicas[].node": "node id",
        "replicas[].role": "leader, voter or observer",
        "replicas[].log_end_offset": "log end offset",
        "replicas[].lag": "records behind the leader",
        "replicas[].last_caught_up_ms": "time when it was last caught up; null: unknown",
        "replicas[].last_fetch_ms": "time of its last fetch; null: unknown",
    },
    leader="node id of the leader of the metadata log",
    leader_epoch="leader epoch",
    high_watermark="high watermark of the metadata log",
)
@click.command()
@admin_options
def quorum(output: OutputFormat, bootstrap: str) -> None:
    """Show the metadata quorum of a KRaft cluster and the lag of its nodes. Ottla uses a store instead and has no quorum."""
    with admin_client(bootstrap) as admin:
        metadata = admin.describe_quorum()
    replicas = [
        *(_replica(one, metadata, "leader" if one.replica_id == metadata.leader else "voter") for one in metadata.voters),
        *(_replica(one, metadata, "observer") for one in metadata.observers),
    ]
    document = {
        "leader": metadata.leader,
        "leader_epoch": metadata.leader_epoch,
        "high_watermark": metadata.high_watermark,
        "replicas": replicas,
    }
    if output.is_structured:
        output.document(document)
        return
    title = f"leader {metadata.leader}  epoch {metadata.leader_epoch}  high watermark {metadata.high_watermark}"
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
