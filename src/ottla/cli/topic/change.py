"""`ottla topic create` and `ottla topic alter`."""

from __future__ import annotations

from typing import Any

import click

import ottla
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.complete import topic_names, topic_setting_pairs, topic_settings
from ottla.cli.common.confirmation import dry_run_option
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.cli.config import alter as config_alter
from ottla.cli.topic.lookup import describe_topics, with_suggestion
from ottla.client.admin.results import ConfigSource, NewTopic, Resource
from ottla.wire.errors import KafkaError, TopicAlreadyExists


@fields(OUTCOME)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Number of partitions. [default: the cluster's]")
@click.option("-r", "--replicas", type=click.IntRange(min=1), help="Replication factor. [default: the cluster's]")
@click.option(
    "-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", shell_complete=topic_setting_pairs,
    help="Topic setting, such as retention.ms=7d; repeatable.",
)  # fmt: skip
@click.option(
    "--like", metavar="TOPIC", shell_complete=topic_names, help="Copy partition count, replication factor and settings from this topic."
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@dry_run_option
@admin_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    like: str | None,
    if_not_exists: bool,
    dry_run: bool,
    output: OutputFormat,
    bootstrap: str,
) -> None:
    """Create topics. With --dry-run the cluster only validates them."""
    if any("+=" in pair or "-=" in pair for pair in configs):
        raise click.UsageError("-c expects NAME=VALUE: a new topic has no list to append to")
    settings: dict[str, str | None] = {one.name: one.value for one in config_alter.read_pairs(configs, "-c")}
    with admin_client(bootstrap) as admin:
        model = NewTopic("") if like is None else _like(admin, like)
        requested = [
            NewTopic(name, partitions or model.num_partitions, replicas or model.replication_factor, {**model.configs, **settings})
            for name in names
        ]
        outcomes = admin.create_topics(requested, validate_only=dry_run)
    failed = {
        name: outcome
        for name, outcome in outcomes.items()
        if isinstance(outcome, KafkaError) and not (if_not_exists and isinstance(outcome, TopicAlreadyExists))
    }
    existing = {name: "exists" for name, outcome in outcomes.items() if isinstance(outcome, TopicAlreadyExists)}
    output.report(names, failed, "would be created" if dry_run else "created", existing)


def _like(admin: ottla.Admin, name: str) -> NewTopic:
    """A template with the properties of an existing topic. Raises: ClickException, KafkaError."""
    partitions = describe_topics(admin, [name])[name].partitions
    entries = admin.describe_config(Resource.topic(name))
    own: dict[str, str | None] = {entry.name: entry.value for entry in entries.values() if entry.source is ConfigSource.TOPIC}
    return NewTopic("", len(partitions), len(partitions[0].replicas), own)


@fields(config_alter.CHANGE)
@click.command()
@click.argument("name", shell_complete=topic_names)
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="New number of partitions; it can only grow.")
@click.option(
    "-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", shell_complete=topic_setting_pairs,
    help="Set a setting; KEY+=VALUE appends to a list, KEY-=VALUE removes from it; repeatable.",
)  # fmt: skip
@click.option(
    "-d", "--delete-config", "deleted", multiple=True, metavar="KEY", shell_complete=topic_settings,
    help="Delete a setting, so that the default applies; repeatable.",
)  # fmt: skip
@dry_run_option
@admin_options
def alter(
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    dry_run: bool,
    output: OutputFormat,
    bootstrap: str,
) -> None:
    """Add partitions to a topic, or change its settings. With --dry-run the cluster only validates that."""
    if partitions is None and not configs and not deleted:
        raise click.UsageError("nothing to change: use -p, -c or -d")
    changes = [*config_alter.read_pairs(configs, "-c"), *config_alter.deletions(deleted)]
    with admin_client(bootstrap) as admin:
        count = len(describe_topics(admin, [name])[name].partitions)
        documents = [] if partitions is None else [_add_partitions(admin, name, count, partitions, dry=dry_run)]
        if changes:
            documents += config_alter.change(admin, [Resource.topic(name)], changes, dry=dry_run)
    if partitions is not None and not dry_run and documents[0]["error"] is None:
        note(f"Warning: adding partitions changes which partition of {name} a key maps to.")
    config_alter.show(documents, output, dry=dry_run)


def _add_partitions(admin: ottla.Admin, name: str, count: int, new_count: int, *, dry: bool) -> dict[str, Any]:
    outcome = admin.create_partitions({name: new_count}, validate_only=dry)[name]
    error = with_suggestion(admin, name, outcome) if isinstance(outcome, KafkaError) else None
    return {
        "resource": "topic",
        "name": name,
        "setting": "partitions",
        "before": str(count),
        "after": str(new_count) if error is None else None,
        "outcome": None if error is not None else "would be set" if dry else "set",
        "error": None if error is None else {"code": error.code, "message": str(error)},
    }
