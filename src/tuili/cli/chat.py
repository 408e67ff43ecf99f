"""The interactive chat of ``tuili run``: a prompt with history, answers that can be stopped."""

import os
import sys
from pathlib import Path

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from tuili.cli.console import note, show_error, style
from tuili.cli.session import Session
from tuili.errors import ContextTooLong, TuiliError

HELP = """\
/clear   forget the conversation
/help    this list
/bye     leave (so does Ctrl-D)
Alt-Enter begins a new line; Ctrl-C stops an answer; arrow up brings back what was asked before."""


def chat(session: Session, title: str, history: Path, *, verbose: bool) -> None:
    """Talk until the user leaves."""
    note(f"{title}, context {session.loaded.resolved.max_model_len} tokens. /help lists the commands, Ctrl-D leaves.")
    prompts = _prompt_session(history)
    while True:
        try:
            text = prompts.prompt(ANSI(style(">>> ", bold=True))).strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text in ("/bye", "/exit", "/quit"):
            return
        if text == "/clear":
            session.clear()
            note("The conversation is forgotten.")
        elif text in ("/help", "/?"):
            note(HELP)
        elif text.startswith("/") and " " not in text and text.count("/") == 1:
            note(f"{text} is no command.\n{HELP}")
        elif text:
            _answer(session, text, verbose)


def _answer(session: Session, text: str, verbose: bool) -> None:
    try:
        answer = session.ask(text, write)
        click.echo()
        if verbose:
            note(answer.report())
        elif answer.finish_reason == "length":
            note("[the answer reached its limit: --max-tokens, or the end of the context]")
    except KeyboardInterrupt:
        click.echo()
        note("[stopped]")
    except ContextTooLong as error:
        show_error(f"{error}\n/clear begins a new conversation; --max-model-len makes the context longer, where the model can.")
    except TuiliError as error:
        show_error(str(error))


def write(text: str) -> None:
    """A piece of the answer, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _prompt_session(history: Path) -> PromptSession[str]:
    history.parent.mkdir(parents=True, exist_ok=True)
    # What people ask is theirs alone: no one else may read it.
    os.close(os.open(history, os.O_WRONLY | os.O_CREAT, 0o600))
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(history=FileHistory(str(history)), key_bindings=keys, enable_open_in_editor=True)
