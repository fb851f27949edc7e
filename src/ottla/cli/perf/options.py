"""What `ottla perf produce`, `consume` and `latency` share: their options, the topic they measure with, how they end.

Options that Kafka's tools have are named as there: those of kafka-producer-perf-test, kafka-consumer-perf-test and kafka-e2e-latency, with
the names of before 4.2 (`--producer-props`, `--producer.config`, `--consumer.config`) beside the newer ones.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.complete import topic_names
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.output_formats import Form, note, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.record_options import client_settings

if TYPE_CHECKING:
    from ottla.client.options import ClientOptions

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130
#: How long what is on its way is waited for once somebody pressed Ctrl-C.
LAST_MS = 5_000
#: How often a loop that waits looks at the clock.
TICK_NS = 100_000_000


def shared_options(function: F) -> F:
    """The topic, the cluster, settings of the client, reports and the form of the result."""
    for option in (
        bootstrap_option,
        output_option,
        click.option("--print-metrics", is_flag=True, help="The client's metrics at the end, too."),
        click.option("--show-detailed-stats", is_flag=True, help="The figures of each interval are part of the result."),
        click.option(
            "--reporting-interval", default="5s", show_default=True, metavar="TIME", help="How long an interval is, such as 500ms."
        ),
        click.option(
            "--command-config", "--producer.config", "--consumer.config", "config_file", type=LocalPath(exists=True, dir_okay=False),
            help="Settings of the client as a file of NAME=VALUE lines; -X comes before it.",
        ),
        click.option(
            "-X", "--setting", "--command-property", "--producer-props", "settings", multiple=True, metavar="NAME=VALUE",
            help="A setting of the client, such as linger.ms=0; may be repeated.",
        ),
        click.option("--keep", is_flag=True, help="Do not delete the topic that --create made."),
        click.option("--replicas", type=click.IntRange(min=1), help="--create: its replicas; otherwise the cluster's default."),
        click.option("--partitions", type=click.IntRange(min=1), help="--create: its partitions; otherwise the cluster's default."),
        click.option("--create", is_flag=True, help="Create the topic, and delete it at the end; without a name it gets one."),
        click.option("--topic", "named", metavar="TOPIC", shell_complete=topic_names, help="The topic, as Kafka's tools want it."),
        click.argument("topic", required=False, shell_complete=topic_names),
    ):  # fmt: skip
        function = option(function)
    return function


def limit_options(count: str, *names: str) -> Callable[[F], F]:
    """`--num-records` or whatever it is called, and `--duration`."""

    def limited(function: F) -> F:
        function = click.option("--duration", metavar="TIME", help="Stop after so long: 30s, 5m.")(function)
        return click.option(*names, "records", type=click.IntRange(min=1), metavar="N", help=f"Stop after so many {count}.")(function)

    return limited


def limits(asked: Mapping[str, Any], name: str) -> tuple[int | None, int | None]:
    """Records and nanoseconds after which it is over. Raises: UsageError when neither is given."""
    if asked["records"] is None and asked["duration"] is None:
        raise click.UsageError(f"say when it is over: {name} N, --duration TIME, or both")
    return asked["records"], None if asked["duration"] is None else time_ns(asked["duration"], "--duration")


def time_ns(text: str, option: str) -> int:
    """A duration in nanoseconds: 5s, or milliseconds as Kafka's tools take them. Raises: UsageError."""
    ms = int(text) if text.isdecimal() else duration_ms(text, option)
    if ms <= 0:
        raise click.UsageError(f"{option} expects more than no time at all")
    return ms * 1_000_000


def throughput(text: str) -> float | None:
    """Records a second; None: as many as can be, which Kafka's tools call -1. Raises: UsageError."""
    from ottla.cli.common.rate_limit import rate

    if text == "-1":
        return None
    try:
        return rate(text, "--throughput")
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def settings_of(
    table: type[ClientOptions], asked: Mapping[str, Any], bootstrap: str, *, beside: type[ClientOptions] | None = None, **ours: Any
) -> dict[str, Any]:
    """Settings of a client: ours, over them those of the file, over them -X; without those that only the client `beside` it knows.

    Raises: UsageError.
    """
    from ottla.base.options import ConfigError
    from ottla.client.options import from_keywords

    from_file = properties(Path(asked["config_file"]).read_text(), asked["config_file"]) if asked["config_file"] else {}
    whole = {"bootstrap_servers": bootstrap, "client_id": "ottla-perf", **ours, **from_file, **client_settings(table, asked["settings"])}
    # What Java's clients want to be told and these do not.
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
    """Settings of lines `name=value`, or with a colon; `#` and `!` begin comments. Raises: UsageError."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        at = min((line.index(mark) for mark in "=:" if mark in line), default=0)
        if not at:
            raise click.UsageError(f"{source}, line {number}: expected NAME=VALUE")
        found[line[:at].strip().replace(".", "_")] = line[at + 1 :].strip()
    return found


@contextlib.contextmanager
def topic_for(asked: Mapping[str, Any], bootstrap: str) -> Iterator[str]:
    """The topic to measure with, which is deleted at the end if it was created for that. Raises: UsageError, ClickException, KafkaError."""
    from ottla.cli.topic.lookup import described
    from ottla.client.admin.results import NewTopic
    from ottla.wire.errors import KafkaError

    if asked["topic"] and asked["named"] and asked["topic"] != asked["named"]:
        raise click.UsageError("name one topic")
    name = asked["topic"] or asked["named"]
    if not asked["create"]:
        if name is None:
            raise click.UsageError("name a topic, or have one made with --create")
        if asked["keep"] or asked["partitions"] or asked["replicas"]:
            raise click.UsageError("--partitions, --replicas and --keep are for --create")
        with connected(bootstrap) as admin:
            described(admin, [name])
        yield name
        return
    name = name or fresh_name("perf")
    with connected(bootstrap) as admin:
        admin.create_topic(NewTopic(name, asked["partitions"] or -1, asked["replicas"] or -1))
    try:
        yield name
    finally:
        if asked["keep"]:
            note(f"Topic {name} is kept.")
        else:
            try:
                with connected(bootstrap) as admin:
                    admin.delete_topic(name)
            except KafkaError as error:
                note(f"Warning: topic {name} was not deleted: {error}")


def fresh_name(what: str) -> str:
    """A name that nobody has yet."""
    from secrets import token_hex

    return f"{what}-{token_hex(4)}"


def metrics_document(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A client's metrics for JSON, in which there is no NaN: null."""
    return {name: metrics_document(one) if isinstance(one, Mapping) else _number(one) for name, one in sorted(metrics.items())}


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def metric_rows(metrics: Mapping[str, Any], before: str = "") -> Iterator[dict[str, Any]]:
    """A client's metrics for a table: `name` as `group:metric`, as Kafka's tools print them, and `value`."""
    for name, one in metrics.items():
        whole = f"{before}:{name}" if before else name
        if isinstance(one, Mapping):
            yield from metric_rows(one, whole)
        else:
            yield {"name": whole, "value": one}


def show_metrics(metrics: Mapping[str, Any] | None, output: Form) -> None:
    """The table of a client's metrics, if they were asked for."""
    from ottla.cli.common.tables import Column

    if metrics is not None:
        output.table(metric_rows(metrics), (Column("METRIC", "name"), Column("VALUE", "value", number=True)), title="Metrics")


def ended(*, interrupted: bool, failed: int = 0, error: str | None = None) -> None:
    """The exit code. Raises: SystemExit, ClickException."""
    if failed:
        raise click.ClickException(f"{failed:,} records were not written: {error}")
    if interrupted:
        note("Interrupted: these are the figures so far.")
        raise SystemExit(INTERRUPTED)
