"""Generates the page about the command line from the commands: help, options, and fields of the output."""

import re
from collections.abc import Iterator

import click

from ottla.cli.common.output_formats import fields_of
from ottla.cli.main import main
from ottla.server.data_directory import default_data_directory

INTRO = """# Commands

Generated from the declarations in `src/ottla/cli/`. How they all behave, profiles, completion and exit codes:
[command-line.md](../command-line.md).

Options that many commands have:

| option | |
|-|-|
| `-b`, `--bootstrap-server HOST:PORT[,...]` | brokers to begin with |
| `--profile NAME` | the cluster that a profile names |
| `-o`, `--output text\\|wide\\|json\\|yaml` | the form of the answer |
| `--headers`, `--no-headers` | headings above tables or not; with headings by default |
| `-y`, `--yes` | destroy without being asked |
| `--dry-run` | only show what would be done |
| `-h`, `--help` | |

What a command prints with `-o json` and `-o yaml` stands below it: the fields of its document, or of each document in its list. `a[].b` is
a field of the things in the list `a`, `a.*` stands for names that are not known beforehand.
"""
#: Described once, at the top of the page.
COMMON = {"bootstrap", "profile", "output", "headers", "help"}


def page() -> str:
    """The page as Markdown."""
    found = [(path, command) for path, command in commands(main) if not isinstance(command, click.Group)]
    parts = [INTRO]
    for number, (path, command) in enumerate(found):
        if number == 0 or found[number - 1][0][0] != path[0]:
            parts.append(f"## ottla {path[0]}\n")
            top = main.get_command(click.Context(main), path[0])
            if isinstance(top, click.Group):
                # A group that is also a command has its own options.
                parts.append(_command(path[:1], top) if top.params else _paragraphs(top.help) + "\n")
        parts.append(_command(path, command))
    return "\n".join(parts)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands in the order of `--help`, each with its words on the command line."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None, "what is listed is there"
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))


def _command(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(path))
    usage = " ".join(["ottla", *path, *(part for part in command.collect_usage_pieces(context) if part != "[OPTIONS]")])
    parts = [f"### {' '.join(path)}\n" if len(path) > 1 else "", f"```\n{usage}\n```\n", _paragraphs(command.help) + "\n"]
    options = [one for one in command.params if isinstance(one, click.Option) and one.name not in COMMON and not one.hidden]
    if options:
        parts.append("| option | |\n|-|-|\n" + "".join(_option(one, context) for one in options))
    if named := fields_of(command):
        parts.append("| field | |\n|-|-|\n" + "".join(f"| `{name}` | {_cell(says)} |\n" for name, says in named.items()))
    return "\n".join(filter(None, parts))


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None, "it is not hidden"
    says = record[1].replace(str(default_data_directory()), "~/.local/share/ottla")
    return f"| `{_cell(record[0])}` | {_cell(says)} |\n"


#: Limits of a number, as click prints them. Without the marks of code they would be a link in Markdown.
_LIMITS = re.compile(r"\[([\d<=]*x[<>=]+[\d.<>=]*|[\d.]+<=?x<=?[\d.]+)\]")


def _cell(text: str) -> str:
    return _LIMITS.sub(r"`\1`", " ".join(text.split()).replace("|", "\\|").replace("*", "\\*"))


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").replace("\b", "").split("\n\n"))
