"""``ottla``: finds the command asked for and imports that one alone, so that none pays for the others.

A command is the attribute ``command`` of the module of its name. The table below is what ``--help`` prints, without importing any.
"""

from importlib import import_module
from importlib.util import find_spec

import click

#: Commands and what they do, in the order of ``--help``.
COMMANDS = {
    "serve": "Run one or more brokers.",
    "topic": "Create, list, describe, alter and delete topics.",
    "produce": "Write records to a topic.",
    "consume": "Read records of a topic.",
    "group": "Look at consumer groups and their lag, reset their offsets, delete them.",
    "log": "Look into log files.",
    "zookeeper": "Run a ZooKeeper ensemble on this machine.",
    "pipeline": "Run data pipelines on Spark.",
    "sim": "Run the broker in a simulated world of faults.",
}


class Commands(click.Group):
    """The group of all commands, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if find_spec(f"ottla.cli.{name}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        found = import_module(f"ottla.cli.{cmd_name}").command
        assert isinstance(found, click.Command), f"ottla.cli.{cmd_name}.command is a command"
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ottla", message="ottla %(version)s")
def main() -> None:
    """Ottla: a distributed, partitioned commit log that speaks the Kafka protocol."""
