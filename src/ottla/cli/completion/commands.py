"""`ottla completion`: the script that teaches a shell to complete commands, options, and names that the cluster knows."""

from __future__ import annotations

import click

INSTALL = {
    "bash": "echo 'eval \"$(ottla completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(ottla completion zsh)\"' >> ~/.zshrc",
    "fish": "ottla completion fish > ~/.config/fish/completions/ottla.fish",
}


@click.command(name="completion", epilog="To have it in every new shell:\n\n" + "\n\n".join(INSTALL.values()))
@click.argument("shell", type=click.Choice(list(INSTALL)))
def command(shell: str) -> None:
    """Print a script for a shell. Topics, groups, settings, brokers and profiles are completed too: the cluster has a second to answer."""
    from click.shell_completion import get_completion_class

    from ottla.cli.main import main

    found = get_completion_class(shell)
    assert found is not None, "click knows the shells that are offered"
    made = found(main, {}, "ottla", "_OTTLA_COMPLETE")
    # Not `source()`, which asks bash for its version first. A setting's `name=` is not the end of a word, which bash has to be told.
    script = made.source_template % made.source_vars()
    click.echo(script.replace("COMPREPLY+=($value)", "COMPREPLY+=($value); [[ $value == *= ]] && compopt -o nospace"))
