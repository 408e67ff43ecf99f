"""``tuili run``: ask a model once, or chat with it."""

import sys
import time
from typing import Any

import click

from tuili.cli.console import note
from tuili.cli.models import fetch_if_absent, find
from tuili.cli.options import accept_licence_option, engine_options, model_argument, quiet_option, read_engine_options
from tuili.cli.progress import loading_progress
from tuili.config.sources import home_dir, read_settings
from tuili.errors import InvalidRequest
from tuili.library.resolve import ResolvedModel
from tuili.types import SamplingParams


@click.command("run")
@model_argument()
@click.argument("prompt", required=False)
@click.option("--system", "-s", metavar="TEXT", help="System prompt: how the model should behave.")
@click.option(
    "--temperature", type=float, default=0.7, show_default=True, metavar="T", help="0 always takes the likeliest token."
)
@click.option("--top-p", type=float, default=0.95, show_default=True, metavar="P", help="Likeliest tokens that sum to P.")
@click.option("--top-k", type=int, default=40, show_default=True, metavar="K", help="The K likeliest tokens; 0 for all.")
@click.option(
    "--min-p", type=float, default=0.0, show_default=True, metavar="P", help="Tokens at least P as likely as the first."
)
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True, metavar="R", help="Above 1: fewer repetitions.")
@click.option("--seed", type=int, metavar="N", help="Same seed, same answer. Default: random.")
@click.option("--max-tokens", "-n", type=click.IntRange(min=1), metavar="N", help="Default: until the model stops (--raw: 256).")
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; may be given several times.")
@click.option("--raw", is_flag=True, help="Give the prompt to the model as it is, without the chat template.")
@click.option("--verbose", "-v", is_flag=True, help="Say load time, prompt speed and generation speed.")
@accept_licence_option
@quiet_option
@engine_options
def command(
    model: str, prompt: str | None, system: str | None, raw: bool, verbose: bool, accept_licence: bool, quiet: bool, **flags: Any
) -> None:
    """Ask MODEL, which is a name of `tuili list --all` or a path to a .gguf file.

    With PROMPT, or with text from a pipe, it answers and ends; with both, the piped text follows the prompt. Without either it
    opens a chat. A model of the catalogue that is not here yet is fetched first.

    \b
    tuili run smollm2 "What is the capital of France? Answer in one sentence."
    git diff | tuili run qwen2.5-coder "Explain this change"
    tuili run smollm2
    """
    started = time.monotonic()
    if raw and system:
        raise click.UsageError("--system is part of the chat template, which --raw leaves out; put the text into the prompt")
    params = _sampling_params(flags)
    options = read_engine_options(read_settings(), flags, one_at_a_time=True)
    wanted = find(model, accept_licence=accept_licence)
    text = _join(prompt, _piped_text())
    if text is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("there is no prompt: give one after the model's name, or pipe one in")
    found = fetch_if_absent(wanted, quiet=quiet)

    from tuili.cli.session import Session
    from tuili.engine.build import build_engine

    with loading_progress(quiet) as progress:
        loaded = build_engine(found.path, options, progress=progress)
    if verbose:
        note(f"loaded     {found.served_name} in {time.monotonic() - started:.2f} s")
        note(f"weights    {loaded.report.get('weights', 'as they are in the file')}")
    if not raw and loaded.chat_template is None:
        if system:
            loaded.close()
            raise InvalidRequest(
                f"{found.served_name} has no chat template, so it cannot take --system; put the text into the prompt"
            )
        if not quiet:
            broken = loaded.chat_template_error if loaded.tokenizer.chat_templates else None
            note(f"{found.served_name}: {broken or 'this model has no chat template'}; it continues the text as it stands")
        raw = True
    with Session(loaded, params, system=system, raw=raw) as session:
        if text is not None:
            _answer_once(session, text, verbose)
        else:
            from tuili.cli.chat import chat

            chat(session, _title(found), home_dir() / "history", verbose=verbose)
    if options.profile:
        note(str(loaded.profile()))


def _answer_once(session: Any, text: str, verbose: bool) -> None:
    answer = session.ask(text, _write)
    click.echo()
    if verbose:
        note(answer.report())


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _title(found: ResolvedModel) -> str:
    return f"{found.served_name} ({found.manifest.title})" if found.manifest else found.served_name


def _sampling_params(flags: dict[str, Any]) -> SamplingParams:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens", "stop")
    return SamplingParams(**{name: flags[name] for name in names})


def _piped_text() -> str | None:
    """What a pipe or a file brings on stdin; None on a terminal."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return None
    try:
        return sys.stdin.buffer.read().decode("utf-8").strip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the piped text is not UTF-8: {error}; convert it first, or check that it is text at all") from None


def _join(prompt: str | None, piped: str | None) -> str | None:
    parts = [part for part in (prompt, piped) if part]
    return "\n\n".join(parts) if parts else None
