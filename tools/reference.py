"""Generates docs/reference/ from the declarations: settings, the protocol, and the command line; and the types of the clients' settings.

``--check`` only checks whether all of it is up to date.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import client_settings  # type: ignore[import-not-found]
from cli_reference import page as cli_page  # type: ignore[import-not-found]
from kafka_dashboards import DASHBOARDS  # type: ignore[import-not-found]
from protocol_reference import protocol_reference  # type: ignore[import-not-found]

import ottla.broker.apis  # noqa: F401  (registers the handlers)
from ottla.base.options import OptionSpec
from ottla.broker.apis import HANDLERS
from ottla.broker.groups.classic.states import TRANSITIONS, GroupState
from ottla.broker.metadata.configs import BrokerOptions, topic_defaults
from ottla.broker.metadata.kafka_settings import OTHER_DEFAULTS, documented
from ottla.broker.security.requirements import REQUIREMENTS, Requirement
from ottla.broker.transactions import states as transactions
from ottla.client.options import AdminOptions, ClientOptions, ConsumerOptions, ProducerOptions
from ottla.log.options import TopicOptions
from ottla.server.metrics.families import FAMILIES, OF_PROCESS
from ottla.wire.messages import API, KAFKA_RELEASE

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
SETTINGS = ROOT / "src" / "ottla" / "client" / "settings.py"


KAFKA_SETTINGS = f"""\
# Settings of Apache Kafka

Generated from the tables in `src/ottla/broker/metadata/kafka_settings.py`. It has every setting that Apache Kafka
{KAFKA_RELEASE} defines, and those of brokers that only 3.9 has. [configuration.md](configuration.md) describes the settings in force.

- **in force**: the setting has Kafka's meaning and Kafka's default, except where the table says otherwise.
- **accepted without meaning**: a value other than the default is ignored with a warning, because what it regulates does not exist here.
- **refused**: a value other than the default stops the start, and is refused while a broker runs, because to ignore it would weaken or
  change what you configured. An empty value and Kafka's default are accepted.

A name that is neither here nor in configuration.md is kept with a warning, because it may belong to a plugin. If it looks mistyped, the
warning names the setting that you may mean. A setting of Ottla (`ottla.`) and a name given with `--set` must be known.
"""


def configuration() -> str:
    """Every setting of brokers and topics, as Markdown."""
    parts = [
        "# Settings\n\nGenerated from the declarations in `src/ottla/broker/metadata/configs.py` and `src/ottla/log/options.py`.\n\n"
        "A broker takes its settings from `--config FILE` (Kafka's properties format), then, with `--env`, "
        "from `KAFKA_*` variables, then from `--set name=value`.\n"
        "A topic takes its own, set when it is created or with `ottla topic alter`, over the broker's default for topics.\n"
        "[kafka-settings.md](kafka-settings.md) lists every setting of Apache Kafka with what Ottla makes of it.\n",
        "## Brokers\n",
        *_table(BrokerOptions.SPECS.values()),
        "\n## Topics\n",
        *_table(TopicOptions.SPECS.values(), changes=lambda spec: "at any time"),
        "\n## A broker's defaults for topics\n",
        *_table(topic_defaults().values()),
    ]
    return "\n".join(parts) + "\n"


def kafka_settings() -> str:
    """Every setting of Apache Kafka, with what Ottla makes of it, as Markdown."""
    parts = [KAFKA_SETTINGS]
    for title, resource in (("Brokers", "broker"), ("Topics", "topic"), ("Groups", "group")):
        parts += [f"\n## {title}\n", "| name | Kafka's default | here | |", "|---|---|---|---|"]
        for setting, verdict, reason in documented(resource):
            default = f"`{setting.default}`" if setting.default else ""
            notes = ["only in 3.9"] if setting.origin == "3.9" else []
            notes += filter(None, [reason or _other_default(setting.name)])
            row = (f"`{setting.name}`", default, verdict.value, "; ".join(notes))
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(parts) + "\n"


def _other_default(name: str) -> str:
    if name not in OTHER_DEFAULTS:
        return ""
    default = BrokerOptions.SPECS.get(name, topic_defaults().get(name))
    return f"the default is `{default.render(default.default)}`: {OTHER_DEFAULTS[name]}" if default is not None else ""


def clients() -> str:
    """Every setting of producers, consumers and admin clients, as Markdown."""
    common = ClientOptions.SPECS
    parts = [
        "# Settings of the clients\n\nGenerated from the declarations in `src/ottla/client/options.py`.\n\n"
        "In Python a setting is a keyword argument, its name with underscores: `ottla.Producer(linger_ms=20)`.\n"
        "A name that is not here is refused.\n",
        "## All clients\n",
        *_client_table(common.values()),
    ]
    for title, table in (("Producer", ProducerOptions), ("Consumer", ConsumerOptions), ("Admin", AdminOptions)):
        parts += [f"\n## {title}\n", *_client_table(spec for name, spec in table.SPECS.items() if name not in common)]
    return "\n".join(parts) + "\n"


def _client_table(specs: Iterable[OptionSpec]) -> list[str]:
    rows = ["| name | type | default | allowed | |", "|---|---|---|---|---|"]
    for spec in sorted(specs, key=lambda spec: spec.name):
        row = (f"`{spec.attribute}`", spec.kind.name.lower(), f"`{spec.render(spec.default)}`", _allowed(spec), spec.doc)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return rows


def _table(specs: Iterable[OptionSpec], *, changes: Callable[[OptionSpec], str] = lambda spec: spec.scope) -> list[str]:
    """Rows of a table; ``changes`` returns when a setting can change. A topic setting has no scope: it can change any time."""
    rows = ["| name | type | default | allowed | changes | |", "|---|---|---|---|---|---|"]
    for spec in sorted(specs, key=lambda spec: spec.name):
        default = spec.render(spec.default) or ""
        shown = f"`{default}`" if default else ""
        row = (
            f"`{spec.name}`",
            spec.kind.name.lower(),
            shown,
            _allowed(spec),
            changes(spec),
            spec.doc,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return rows


def _allowed(spec: OptionSpec) -> str:
    if spec.choices:
        return ", ".join(spec.choices)
    bounds = [
        f"at least {_number(spec.at_least)}" if spec.at_least is not None else "",
        f"at most {_number(spec.at_most)}" if spec.at_most is not None else "",
    ]
    return ", ".join(bound for bound in bounds if bound)


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


#: What the columns mean.
_SERVES = (
    "ApiVersions names the advertised APIs. The others are for brokers (AlterPartition), or answer every request with UNSUPPORTED_VERSION, "
    "because metadata is in a store (DescribeQuorum, UnregisterBroker). Versions are those that the broker serves; the sections "
    "below also describe versions that only the codec knows.\n\n"
)


def coverage() -> str:
    """The supported APIs and their versions, for the head of the protocol page."""
    rows = ["# What the broker serves\n\n" + _SERVES + "| key | API | versions | advertised | file |", "|---|---|---|---|---|"]
    for key, served in sorted(HANDLERS.items()):
        module = served.run.__module__.rpartition(".")[2]
        advertised = "yes" if served.advertised else "no"
        rows.append(f"| {key} | {API[key].name} | {served.versions[0]}-{served.versions[1]} | {advertised} | `broker/apis/{module}.py` |")
    return "\n".join(rows) + "\n\n"


#: Head of the page of requirements.
_AUTHORIZATION = """\
# What each API requires

Generated from the table in `src/ottla/broker/security/requirements.py`, from which the broker makes its checks. It applies to brokers with
`authorizer.class.name`; without, every client may do everything. [operating.md](../operating.md#access-rules-acls) shows how to add rules.

A requirement of the *request* is checked first. A requirement of a *part* is checked for each resource, and its refusal concerns that
resource only. An answer that is not given is the error of the resource type: TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED,
CLUSTER_AUTHORIZATION_FAILED or TRANSACTIONAL_ID_AUTHORIZATION_FAILED. A refusal marked *quiet* is not in the audit log.

Read, Write, Delete and Alter include Describe; AlterConfigs includes DescribeConfigs.
"""


def authorization() -> str:
    """What each API requires, as Markdown."""
    rows = [_AUTHORIZATION + "\n| key | API | of | operation | a refusal answers | |", "|---|---|---|---|---|---|"]
    for key in sorted(HANDLERS):
        row = REQUIREMENTS[key]
        parts = [("request", required) for required in row.request] + list(row.parts.items())
        if not parts:
            rows.append(f"| {key} | {row.name} | | none | | {row.note} |")
        for number, (part, required) in enumerate(parts):
            since = f" (from version {required.since} on)" if required.since else ""
            quiet = "" if required.audits_denied else "quiet"
            note = ". ".join(filter(None, (row.note.rstrip(".") if number == 0 else "", quiet)))
            rows.append(f"| {key} | {row.name} | {part}{since} | {_operation(required)} | {required.refusal} | {note} |")
    return "\n".join(rows) + "\n"


def _operation(required: Requirement) -> str:
    any_resource = "any " if required.any_resource else ""
    found = f"{required.operation.label} on {any_resource}{required.resource_type.label}"
    return " or ".join((found, *map(_operation, required.alternatives)))


def group_states() -> str:
    """The states of a group of the classic protocol, as a diagram."""
    rows = ["| from | to | when |", "|-|-|-|"]
    rows += [f"| {before.value} | {after.value} | {why} |" for (before, after), why in TRANSITIONS.items()]
    intro = "Generated from the table in `src/ottla/broker/groups/classic/states.py`, which says what each state means."
    title = "# States of a group of the classic protocol"
    edges = [f"    {before.value} --> {after.value}: {why}" for (before, after), why in TRANSITIONS.items()]
    lines = ["stateDiagram-v2", f"    [*] --> {GroupState.EMPTY.value}", *edges, f"    {GroupState.DEAD.value} --> [*]"]
    diagram = "\n".join(lines)
    return f"{title}\n\n{intro}\n\n```mermaid\n{diagram}\n```\n\n" + "\n".join(rows) + "\n"


def transaction_states() -> str:
    """The states of a transactional id, as a diagram."""
    rows = ["| from | to | when |", "|-|-|-|"]
    rows += [f"| {before.value} | {after.value} | {why} |" for (before, after), why in transactions.TRANSITIONS.items()]
    intro = "Generated from the table in `src/ottla/broker/transactions/states.py`, which says what each state means."
    edges = [f"    {before.value} --> {after.value}: {why}" for (before, after), why in transactions.TRANSITIONS.items()]
    first, last = transactions.TransactionState.EMPTY.value, transactions.TransactionState.DEAD.value
    diagram = "\n".join(["stateDiagram-v2", f"    [*] --> {first}", *edges, f"    {last} --> [*]"])
    return f"# States of a transactional id\n\n{intro}\n\n```mermaid\n{diagram}\n```\n\n" + "\n".join(rows) + "\n"


METRICS = """\
# Metrics

Generated from `src/ottla/server/metrics/families.py`. `ottla serve --http 127.0.0.1:9644` serves them at `/metrics`, in Prometheus'
text format or as OpenMetrics. Summaries also have the label `quantile`, histograms `le`. Besides these there are `process_*` and
`python_*` of the Prometheus client. [Operating](../operating.md#metrics) says what to look at.

"""
NOT_THERE = """
Not there: `kafka_server_raftmetrics_*` and `kafka_server_raftchannelmetrics_*`, because there is no quorum;
`kafka_server_fetcherlagmetrics_*`: see the ISR and `kafka_consumergroup_lag`; and the names of Strimzi's own metrics reporter
(`..._bytesinpersec_total`).
"""


def metrics() -> str:
    """The metrics of /metrics, and which of them dashboards draw."""
    rows = ["| metric | type | labels | |", "|-|-|-|-|"]
    for one in sorted(FAMILIES.values()):
        labels = one.labels if one.name in OF_PROCESS else ("broker", *one.labels)
        rows.append(f"| `{one.name}` | {one.kind} | {', '.join(labels)} | {one.help} |")
    drawn = "".join(f"\n### {title}\n\n{', '.join(f'`{name}`' for name in names)}\n" for title, names in DASHBOARDS.items())
    return METRICS + "\n".join(rows) + f"\n\n## Drawn by dashboards for Kafka\n{drawn}{NOT_THERE}"


def main() -> int:
    """Write the pages, or compare them; returns 1 when one is out of date."""
    pages = {
        "configuration.md": configuration(),
        "kafka-settings.md": kafka_settings(),
        "clients.md": clients(),
        "protocol.md": coverage() + protocol_reference(),
        "authorization.md": authorization(),
        "cli.md": cli_page(),
        "group-states.md": group_states(),
        "transaction-states.md": transaction_states(),
        "metrics.md": metrics(),
    }
    files = {REFERENCE / name: text for name, text in pages.items()} | {SETTINGS: client_settings.module()}
    stale = []
    for path, text in files.items():
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    if stale:
        print(("out of date, run make docs: " if "--check" in sys.argv else "written: ") + ", ".join(stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
