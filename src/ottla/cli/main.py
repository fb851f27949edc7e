"""``ottla``: the table of all commands. A command's module is imported when the command is called."""

import click

from ottla.cli.common.lazy import JSON_OUTPUT, CommandEntry, MainGroup

COMMANDS = {
    "serve": CommandEntry("serve.command", "Run one or more brokers."),
    "topic": CommandEntry("groups:topic", "Create, list, describe, alter and delete topics."),
    "produce": CommandEntry("produce.command", "Write records to a topic."),
    "consume": CommandEntry("consume.command", "Read records of a topic."),
    "group": CommandEntry("groups:group", "Describe and delete groups, show lag, reset offsets."),
    "transaction": CommandEntry("groups:transaction", "List, describe and abort transactions; find those that block readers."),
    "user": CommandEntry("user.commands", "Add, list, show and remove users and their passwords (SCRAM)."),
    "token": CommandEntry("token.commands", "Create, list, renew and expire delegation tokens."),
    "acl": CommandEntry("groups:acl", "List, add, remove and test access rules (ACLs)."),
    "quota": CommandEntry("groups:quota", "List, set and remove quotas of users, client ids and addresses."),
    "broker": CommandEntry("broker.commands", "Describe brokers, their log directories and settings."),
    "config": CommandEntry("config.commands", "Describe and change settings of topics, brokers and groups."),
    "cluster": CommandEntry("groups:cluster", "Start, stop and describe clusters; move replicas and leaders."),
    "console": CommandEntry("console.command", "Serve a web application that shows and changes a cluster."),
    "service": CommandEntry("service.commands", "Run a broker as a service of systemd on this machine."),
    "top": CommandEntry("top.command", "Show brokers, topics, groups and what moves, live in the terminal."),
    "registry": CommandEntry("groups:registry", "Serve a schema registry; list, register, check and delete schemas."),
    "doctor": CommandEntry("doctor.command", "Find problems of a cluster and show how to fix them."),
    "backup": CommandEntry("backup.commands:backup", "Write metadata and configuration of a cluster to a file."),
    "restore": CommandEntry("backup.commands:restore", "Add and change what is in a file of ottla backup."),
    "store": CommandEntry("store.commands", "Check and restore the embedded coordination store."),
    "import": CommandEntry("import_.command", "Take over the directories of a stopped Apache Kafka."),
    "log": CommandEntry("log.dump", "Dump and verify log files."),
    "zookeeper": CommandEntry("zookeeper.command", "Run a ZooKeeper ensemble on this machine."),
    "pipeline": CommandEntry("groups:pipeline", "Run data pipelines on Spark."),
    "table": CommandEntry("table.command", "Keep Delta tables in sync with topics; show and compact them."),
    "perf": CommandEntry("groups:perf", "Measure throughput and latency of a cluster."),
    "tls": CommandEntry("tls.commands", "Create a private authority and certificates."),
    "profile": CommandEntry("profile.commands", "Name clusters and choose the default one."),
    "completion": CommandEntry("completion.commands", "Print a shell completion script."),
    "sim": CommandEntry("sim.commands", "Run brokers in a simulator that injects faults."),
}


EPILOG = """\b
Cluster, first that is set: -b, --profile, OTTLA_BOOTSTRAP_SERVERS, OTTLA_PROFILE, the profile in use, 127.0.0.1:9092.
Exit codes: 0 success, 1 failed or problem found, 2 usage error or not confirmed, 130 interrupted."""


def _version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    import json
    import platform

    from ottla.base.version import VERSION
    from ottla.records import NATIVE

    if context.meta.get(JSON_OUTPUT):
        codec = "compiled" if NATIVE else "python"
        click.echo(json.dumps({"version": VERSION, "python": platform.python_version(), "codec": codec, "platform": platform.platform()}))
    else:
        click.echo(f"ottla {VERSION}")
    context.exit()


@click.command(
    cls=MainGroup, table=COMMANDS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option("-o", "--output", type=click.Choice(("text", "json")), hidden=True, is_eager=True, expose_value=False)
@click.option("--version", is_flag=True, expose_value=False, callback=_version, help="Show the version; -o json adds what it runs on.")
def main() -> None:
    """Ottla: a distributed, partitioned commit log that speaks the Kafka protocol."""
