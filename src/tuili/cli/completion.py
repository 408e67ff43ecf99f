"""``tuili completion``: the script that teaches a shell our commands and options."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  echo 'eval "$(tuili completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(tuili completion zsh)"' >> ~/.zshrc
    fish:  tuili completion fish > ~/.config/fish/completions/tuili.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(ctx.find_root().command, {}, "tuili", "_TUILI_COMPLETE").source())
