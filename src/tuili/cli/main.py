"""``tuili``: finds the command that was asked for, imports that one alone, and turns what goes wrong into words and exit codes.

Exit codes: 0 done, 1 it could not be done (or the reader of our output went away), 2 it was asked wrongly, 130 interrupted.
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from tuili import __version__
from tuili.cli.console import show_error
from tuili.errors import TuiliError

#: Every command: its module in this folder, and the line that ``--help`` shows without importing it.
COMMANDS = (
    ("run", "Ask a model, or chat with it."),
    ("serve", "Serve a model over an OpenAI-compatible API."),
    ("pull", "Fetch a model by name."),
    ("compile", "Pack a model's weights ahead of time, so that it starts faster."),
    ("list", "List the models that are here."),
    ("show", "Say what is known of a model."),
    ("rm", "Remove models."),
    ("inspect", "Print the program that a model file becomes."),
    ("bench", "Measure speed, and how far it is from what this machine can do."),
    ("doctor", "Look at this machine, and say what would run and why."),
    ("completion", "Print the completion script of a shell."),
)


#: Objects made before the garbage collector looks at them. Imports and vocabularies make hundreds of thousands, all to stay.
_GC_THRESHOLD = 50_000


class LazyGroup(click.Group):
    """Knows its commands by name and imports a command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        return import_module(f"tuili.cli.{cmd_name}").command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.list_commands(ctx))}"
            ctx.fail(f"there is no command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Begin with: tuili run smollm2 'What is the capital of France? Answer in one sentence.'",
)
@click.version_option(__version__, "--version", message="tuili %(version)s")
def group() -> None:
    """Run open-weights language models, from a laptop to production."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the ``tuili`` program; leaves through SystemExit."""
    gc.set_threshold(_GC_THRESHOLD)
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        result = group.main(arguments, prog_name="tuili", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        _show_usage_error(error)
        return error.exit_code
    except TuiliError as error:
        show_error(str(error))
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        # What a command did not foresee, such as a full disk behind stdout.
        show_error(f"the system refused: {error}")
        _drop_output()
        return 1


def _drop_output() -> None:
    """Whatever is still buffered cannot be written; point stdout at nothing so that the interpreter's last flush succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_usage_error(error: click.ClickException) -> None:
    show_error(error.format_message())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"See `{error.ctx.command_path} --help`.", err=True)
