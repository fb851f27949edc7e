"""`ottla completion`: a shell script that completes commands, options and names from the cluster."""

from __future__ import annotations

import click

INSTALL = {
    "bash": "echo 'eval \"$(ottla completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(ottla completion zsh)\"' >> ~/.zshrc",
    "fish": "ottla completion fish > ~/.config/fish/completions/ottla.fish",
}


@click.command(name="completion", epilog="To install it for new shells:\n\n" + "\n\n".join(INSTALL.values()))
@click.argument("shell", type=click.Choice(list(INSTALL)))
def command(shell: str) -> None:
    """Print a shell completion script.

    It also completes topics, groups, settings, brokers and profiles. A query to the cluster times out after one second.
    """
    from click.shell_completion import get_completion_class

    from ottla.cli.main import main

    completion = get_completion_class(shell)
    assert completion is not None, "click supports the shells of INSTALL"
    made = completion(main, {}, "ottla", "_OTTLA_COMPLETE")
    # Not `source()`, which starts bash to check its version. After a setting's `name=` bash must not add a blank.
    script = made.source_template % made.source_vars()
    click.echo(script.replace("COMPREPLY+=($value)", "COMPREPLY+=($value); [[ $value == *= ]] && compopt -o nospace"))
