"""``ottla``: the table of all commands; each is imported when it is called."""

import click

from ottla.cli.common.lazy import Entry, Lazy

COMMANDS = {
    "serve": Entry("serve.command", "Run one or more brokers."),
    "topic": Entry("topic.group", "Create, list, describe, alter and delete topics."),
    "produce": Entry("produce.command", "Write records to a topic."),
    "consume": Entry("consume.command", "Read records of a topic."),
    "group": Entry("group.group", "Look at consumer groups and their lag, reset their offsets, delete them."),
    "broker": Entry("broker.commands", "Look at brokers: where they are, what they hold, their directories and settings."),
    "config": Entry("config.commands", "Look at settings of topics, brokers, the cluster and groups, and change them."),
    "cluster": Entry("cluster.group", "Start, stop and look at clusters; move replicas and leaders."),
    "doctor": Entry("doctor.command", "Find what is wrong with a cluster, and say what to do."),
    "store": Entry("store.commands", "Check the embedded coordination store, and restore it."),
    "log": Entry("log.dump", "Look into log files."),
    "zookeeper": Entry("zookeeper.command", "Run a ZooKeeper ensemble on this machine."),
    "pipeline": Entry("pipeline.group", "Run data pipelines on Spark."),
    "table": Entry("table.group", "Keep a topic as a Delta table."),
    "perf": Entry("perf.group", "Measure a cluster: how fast it writes and reads, and how long a record takes."),
    "profile": Entry("profile.commands", "Name clusters, and choose the one that commands talk to."),
    "completion": Entry("completion.commands", "Print a script that completes commands and names in a shell."),
    "sim": Entry("sim.commands", "Run the broker in a simulated world of faults."),
}


EPILOG = """\b
Which cluster: -b HOST:PORT, --profile NAME, OTTLA_BOOTSTRAP_SERVERS, OTTLA_PROFILE, the profile in use, 127.0.0.1:9092.
Exit codes: 0 done, 1 failed or not well, 2 asked wrongly or not agreed to, 130 interrupted."""


@click.command(cls=Lazy, table=COMMANDS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ottla", message="ottla %(version)s")
def main() -> None:
    """Ottla: a distributed, partitioned commit log that speaks the Kafka protocol."""
