"""``tuili run``: one question, a conversation, pipes, and what Ctrl-C leaves behind."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from support import talk
from tuili.cli.chat import chat
from tuili.cli.main import run
from tuili.cli.session import RAW_MAX_TOKENS, Session
from tuili.config.options import EngineOptions
from tuili.errors import BackendError, ContextTooLong
from tuili.observe.progress import LoadProgress
from tuili.types import SamplingParams

PARAMS = SamplingParams(max_tokens=None, temperature=0.5)


def roles(conversation: list[Any]) -> list[str]:
    return [message["role"] for message in conversation]


def test_a_conversation_grows_and_is_forgotten() -> None:
    model = talk.loaded(["Hel", "lo"], ["Fine"], ["Again"])
    written: list[str] = []
    with Session(model, PARAMS, system="Be brief.") as session:
        answer = session.ask("Hi", written.append)
        assert (answer.text, answer.finish_reason) == ("Hello", "stop")
        session.ask("How are you?", written.append)
        session.clear()
        session.ask("Hi", written.append)
    assert written == ["Hel", "lo", "Fine", "Again"]
    first, second, third = model.chat_template.conversations
    assert roles(second) == ["system", "user", "assistant", "user"]
    assert second[2]["content"] == "Hello"
    assert first == third == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert model.closed == [True]


def test_raw_text_goes_without_the_template_and_ends_some_time() -> None:
    model = talk.loaded(["x"], chat=False)
    with Session(model, PARAMS, raw=True) as session:
        session.ask("Once upon a time", lambda _: None)
    (request,) = model.client.requests
    assert len(request.prompt_token_ids) == 4
    assert request.params.max_tokens == RAW_MAX_TOKENS


def test_an_interrupted_answer_stays_in_the_conversation() -> None:
    model = talk.loaded(["It is ", "^C"], ["Paris."])
    with Session(model, PARAMS) as session:
        with pytest.raises(KeyboardInterrupt):
            session.ask("Capital?", lambda _: None)
        session.ask("Go on", lambda _: None)
    assert len(model.client.closed) == 2, "an answer that is stopped is aborted"
    assert [message["content"] for message in model.chat_template.conversations[1]] == ["Capital?", "It is ", "Go on"]


def test_a_question_that_could_not_be_asked_is_taken_back() -> None:
    model = talk.loaded(ContextTooLong("70 tokens do not fit 64"), ["Yes"])
    with Session(model, PARAMS) as session:
        with pytest.raises(ContextTooLong):
            session.ask("long " * 70, lambda _: None)
        session.ask("short", lambda _: None)
    assert roles(model.chat_template.conversations[1]) == ["user"]


def test_an_engine_that_fails_is_an_error() -> None:
    model = talk.loaded(["x"])
    model.client.error = "NaN in the logits"
    with Session(model, PARAMS) as session, pytest.raises(BackendError, match="NaN in the logits"):
        session.ask("Hi", lambda _: None)


def test_the_seed_is_told_so_that_an_answer_can_be_had_again() -> None:
    model = talk.loaded(["x"], ["x"])
    with Session(model, PARAMS) as session:
        answer = session.ask("Hi", lambda _: None)
        assert f"seed {answer.seed}" in answer.report() and "generated  1 tokens" in answer.report()
        assert model.client.requests[0].params.seed == answer.seed
    with Session(talk.loaded(["x"]), SamplingParams(seed=7)) as session:
        assert session.ask("Hi", lambda _: None).seed == 7


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Replaces the engine by a script; ``tuili run`` is otherwise whole."""
    calls: dict[str, Any] = {"model": talk.loaded(["Par", "is"]), "file": tmp_path / "my-model.gguf"}
    calls["file"].write_bytes(b"GGUF")

    def build(path: Path, options: EngineOptions, *, progress: LoadProgress) -> Any:
        calls.update(path=path, options=options)
        progress("packing", 1, 2)
        return calls["model"]

    monkeypatch.setattr("tuili.engine.build.build_engine", build)
    monkeypatch.setenv("TUILI_HOME", str(tmp_path / "home"))
    yield calls


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def asked(built: dict[str, Any]) -> str:
    return built["model"].chat_template.conversations[-1][-1]["content"]


def test_a_prompt_from_the_command_line(built: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pipe(monkeypatch, b"")
    assert run(["run", str(built["file"]), "Capital of France?", "--threads", "1"]) == 0
    captured = capsys.readouterr()
    assert captured == ("Paris\n", "")
    assert asked(built) == "Capital of France?"
    assert built["path"] == built["file"]
    assert built["options"] == EngineOptions(threads=1, max_num_seqs=1)
    assert built["model"].closed == [True]


@pytest.mark.parametrize(
    ("prompt", "piped", "expected"),
    [
        (None, "données\n", "données"),
        ("Explain:", "a = 1\n", "Explain:\n\na = 1"),
        ("Explain:", "  indented\n\n", "Explain:\n\n  indented"),
    ],
)
def test_a_prompt_from_a_pipe(
    built: dict[str, Any], monkeypatch: pytest.MonkeyPatch, prompt: str | None, piped: str, expected: str
) -> None:
    pipe(monkeypatch, piped.encode())
    assert run(["run", str(built["file"]), *([prompt] if prompt else [])]) == 0
    assert asked(built) == expected


def test_no_prompt_at_all(built: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pipe(monkeypatch, b"\n")
    assert run(["run", str(built["file"])]) == 2
    assert "there is no prompt" in capsys.readouterr().err


def test_piped_bytes_that_are_no_text(built: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pipe(monkeypatch, b"\xff\xfe\x00")
    assert run(["run", str(built["file"])]) == 1
    assert "the piped text is not UTF-8" in capsys.readouterr().err


def test_a_model_without_a_template_runs_raw_and_says_so(
    built: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    built["model"] = talk.loaded([" blue"], [" blue"], chat=False)
    pipe(monkeypatch, b"")
    assert run(["run", str(built["file"]), "The sky is"]) == 0
    captured = capsys.readouterr()
    assert captured.out == " blue\n"
    assert captured.err.count("this model has no chat template; it continues the text as it stands") == 1
    assert run(["run", str(built["file"]), "The sky is", "--raw"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["run", str(built["file"]), "The sky is", "--system", "x"]) == 1
    assert "cannot take --system" in capsys.readouterr().err


def test_verbose_reports_on_stderr(built: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pipe(monkeypatch, b"")
    assert run(["run", str(built["file"]), "Hi", "-v", "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Paris\n"
    assert captured.err.startswith("loaded     my-model in ") and "finished   stop, seed 3" in captured.err
    assert "weights    packed by nobody" in captured.err


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def talk_to(model: Any, keys: PipeInput, text: str, history: Path) -> None:
    keys.send_text(text)
    with Session(model, PARAMS) as session:
        chat(session, "toy:1b", history, verbose=False)


def test_an_interactive_chat(keyboard: PipeInput, tmp_path: Path, capsys: Any) -> None:
    model = talk.loaded(["One"], ["Two"], ["Three"])
    talk_to(model, keyboard, "first\rsecond\r/clear\rthird\r\x04", tmp_path / "home" / "history")
    captured = capsys.readouterr()
    assert captured.out == "One\nTwo\nThree\n"
    assert "toy:1b, context 64 tokens" in captured.err and "forgotten" in captured.err
    assert [len(conversation) for conversation in model.chat_template.conversations] == [1, 3, 1]
    history = tmp_path / "home" / "history"
    assert "+second" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0, "what was asked is nobody else's business"


def test_commands_of_the_chat(keyboard: PipeInput, tmp_path: Path, capsys: Any) -> None:
    model = talk.loaded(["Answer"])
    talk_to(model, keyboard, "/help\r/hlep\r\r  \r/etc/passwd is a path\r/bye\r", tmp_path / "history")
    captured = capsys.readouterr()
    assert captured.err.count("/clear   forget the conversation") == 2 and "/hlep is no command" in captured.err
    assert captured.out == "Answer\n"
    assert model.chat_template.conversations[0][0]["content"] == "/etc/passwd is a path"


def test_alt_enter_begins_a_new_line(keyboard: PipeInput, tmp_path: Path) -> None:
    model = talk.loaded(["ok"])
    talk_to(model, keyboard, "two\x1b\rlines\r\x04", tmp_path / "history")
    assert model.chat_template.conversations[0][0]["content"] == "two\nlines"


def test_control_c_stops_the_answer_and_keeps_the_chat(keyboard: PipeInput, tmp_path: Path, capsys: Any) -> None:
    model = talk.loaded(["Part", "^C"], ContextTooLong("too long"), BackendError("broken"), ["Whole"])
    talk_to(model, keyboard, "a\rb\rc\rd\r/bye\r", tmp_path / "history")
    captured = capsys.readouterr()
    assert captured.out == "Part\nWhole\n"
    assert "[stopped]" in captured.err and "/clear begins a new conversation" in captured.err and "error: broken" in captured.err
    assert [m["content"] for m in model.chat_template.conversations[-1]] == ["a", "Part", "d"]
