"""Shared by `ottla perf produce`, `consume` and `latency`: options, the topic, exit codes.

Options have the names of kafka-producer-perf-test, kafka-consumer-perf-test and kafka-e2e-latency, including those before Kafka 4.2
(`--producer-props`, `--producer.config`, `--consumer.config`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ottla.base.options import ConfigError
from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.complete import topic_names
from ottla.cli.common.connection import Decorator, bootstrap_option, combined
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.lazy import INTERRUPTED
from ottla.cli.common.output_formats import OutputFormat, note, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.rate_limit import parse_rate
from ottla.cli.common.record_options import client_settings
from ottla.cli.common.tables import Column, Row
from ottla.cli.topic.lookup import describe_topics
from ottla.client.admin.results import NewTopic
from ottla.client.options import ClientOptions, from_keywords
from ottla.wire.errors import KafkaError

#: Timeout for records in flight after Ctrl-C.
INTERRUPT_TIMEOUT_MS = 5_000
#: Maximum wait of a loop.
TICK_NS = 100_000_000


#: Options for the topic, the cluster, client settings, reports and the output format.
shared_options = combined(
    bootstrap_option,
    output_option,
    click.option("--print-metrics", is_flag=True, help="Print the client's metrics at the end."),
    click.option("--show-detailed-stats", is_flag=True, help="Include the figures of each interval in the result."),
    click.option("--reporting-interval", default="5s", show_default=True, metavar="TIME", help="Interval of reports, such as 500ms."),
    click.option(
        "--command-config", "--producer.config", "--consumer.config", "config_file", type=LocalPath(exists=True, dir_okay=False),
        help="File of client settings, NAME=VALUE lines; -X overrides it.",
    ),
    click.option(
        "-X", "--setting", "--command-property", "--producer-props", "settings", multiple=True, metavar="NAME=VALUE",
        help="Client setting, such as linger.ms=0; repeatable.",
    ),
    click.option("--keep", is_flag=True, help="With --create: do not delete the topic."),
    click.option("--replicas", type=click.IntRange(min=1), help="With --create: replication factor. [default: the cluster's]"),
    click.option("--partitions", type=click.IntRange(min=1), help="With --create: number of partitions. [default: the cluster's]"),
    click.option("--create", is_flag=True, help="Create the topic and delete it at the end. [default name: random]"),
    click.option("--topic", "named", metavar="TOPIC", shell_complete=topic_names, help="The topic, as with Kafka's tools."),
    click.argument("topic", required=False, shell_complete=topic_names),
)  # fmt: skip


def limit_options(count: str, *names: str) -> Decorator:
    """`--num-records`, or an option with other `names`, and `--duration`."""
    return combined(
        click.option("--duration", metavar="TIME", help="Stop after this time, such as 30s or 5m."),
        click.option(*names, "records", type=click.IntRange(min=1), metavar="N", help=f"Stop after N {count}."),
    )


def limits(options: Mapping[str, Any], name: str) -> tuple[int | None, int | None]:
    """Limits in records and nanoseconds. Raises: UsageError, if neither is set."""
    if options["records"] is None and options["duration"] is None:
        raise click.UsageError(f"missing a limit: {name} N, --duration TIME, or both")
    return options["records"], None if options["duration"] is None else time_ns(options["duration"], "--duration")


def time_ns(text: str, option: str) -> int:
    """A duration in nanoseconds, from 5s, or from milliseconds as in Kafka's tools. Raises: UsageError."""
    ms = int(text) if text.isdecimal() else duration_ms(text, option)
    if ms <= 0:
        raise click.UsageError(f"{option} expects a duration above 0, not {text!r}")
    return ms * 1_000_000


def throughput(text: str) -> float | None:
    """Records per second; None for -1: unlimited. Raises: UsageError."""
    return None if text == "-1" else parse_rate(text, "--throughput")


def client_options(
    table: type[ClientOptions], options: Mapping[str, Any], bootstrap: str, *, beside: type[ClientOptions] | None = None, **ours: Any
) -> dict[str, Any]:
    """A client's settings: `ours`, overridden by the file, overridden by -X; without those that only the client `beside` it has.

    Raises: UsageError.
    """
    from_file = properties(Path(options["config_file"]).read_text(), options["config_file"]) if options["config_file"] else {}
    whole = {"bootstrap_servers": bootstrap, "client_id": "ottla-perf", **ours, **from_file, **client_settings(table, options["settings"])}
    # Java's clients need serializers; these clients send bytes.
    settings = {name: value for name, value in whole.items() if not name.endswith(("_serializer", "_deserializer"))}
    if beside is not None:
        known, others = ({spec.attribute for spec in one.SPECS.values()} for one in (table, beside))
        settings = {name: value for name, value in settings.items() if name in known or name not in others}
    try:
        from_keywords(table, settings)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return settings


def properties(text: str, source: str) -> dict[str, str]:
    """Settings in the format of Java's properties: `name=value` or `name:value`; `#` and `!` begin comments. Raises: UsageError."""
    settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        at = min((line.index(mark) for mark in "=:" if mark in line), default=0)
        if not at:
            raise click.UsageError(f"{source}, line {number}: expected NAME=VALUE")
        settings[line[:at].strip().replace(".", "_")] = line[at + 1 :].strip()
    return settings


@contextlib.contextmanager
def benchmark_topic(options: Mapping[str, Any], bootstrap: str) -> Iterator[str]:
    """The topic of a measurement; one that `--create` made is deleted at the end. Raises: UsageError, ClickException, KafkaError."""
    if options["topic"] and options["named"] and options["topic"] != options["named"]:
        raise click.UsageError("the argument and --topic name different topics")
    name = options["topic"] or options["named"]
    if not options["create"]:
        if name is None:
            raise click.UsageError("missing the topic: name one, or create one with --create")
        if options["keep"] or options["partitions"] or options["replicas"]:
            raise click.UsageError("--partitions, --replicas and --keep need --create")
        with connected(bootstrap) as admin:
            describe_topics(admin, [name])
        yield name
        return
    name = name or random_name("perf")
    with connected(bootstrap) as admin:
        admin.create_topic(NewTopic(name, options["partitions"] or -1, options["replicas"] or -1))
    try:
        yield name
    finally:
        if options["keep"]:
            note(f"Topic {name} was kept.")
        else:
            try:
                with connected(bootstrap) as admin:
                    admin.delete_topic(name)
            except KafkaError as error:
                note(f"Warning: topic {name} was not deleted: {error}")


def random_name(prefix: str) -> str:
    """A name with a random suffix."""
    from secrets import token_hex

    return f"{prefix}-{token_hex(4)}"


def metrics_document(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A client's metrics for JSON; NaN and infinity become null."""
    return {name: metrics_document(one) if isinstance(one, Mapping) else _number(one) for name, one in sorted(metrics.items())}


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def metric_rows(metrics: Mapping[str, Any], before: str = "") -> Iterator[dict[str, Any]]:
    """A client's metrics for a table: name `group:metric`, as in Kafka's tools, and value."""
    for name, one in metrics.items():
        whole = f"{before}:{name}" if before else name
        if isinstance(one, Mapping):
            yield from metric_rows(one, whole)
        else:
            yield {"name": whole, "value": one}


def show_result(
    result: Mapping[str, Any], metrics: Mapping[str, Any] | None, output: OutputFormat, *tables: tuple[Sequence[Row], Sequence[Column]]
) -> None:
    """Prints the result as a document, or as these tables, with the client's metrics if there are any."""
    if output.is_structured:
        output.document({**result, **({} if metrics is None else {"metrics": metrics})})
        return
    for rows, columns in tables:
        if rows:
            output.table(rows, columns)
    if metrics is not None:
        output.table(metric_rows(metrics), (Column("METRIC", "name"), Column("VALUE", "value", number=True)), title="Metrics")


def exit_status(*, interrupted: bool, failed: int = 0, error: str | None = None) -> None:
    """Exits with an error code if the run failed or was interrupted. Raises: SystemExit, ClickException."""
    if failed:
        raise click.ClickException(f"{failed:,} records were not written: {error}")
    if interrupted:
        note("Interrupted: the figures cover the time until then.")
        raise SystemExit(INTERRUPTED)
