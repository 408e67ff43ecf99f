"""The command line itself: what it imports, how it fails, what it prints."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from support.library import TERMS, Recorder, ScriptedFetcher, content, entry, fetchers, model_file
from tuili import __version__
from tuili.backends.cpu.pack_cache import PackCache
from tuili.backends.cpu.pack_file import PackKey
from tuili.cli import console
from tuili.cli.main import COMMANDS, run
from tuili.cli.progress import LoadingBar
from tuili.config.sources import pack_dir
from tuili.library.pull import pull
from tuili.library.store import Store
from tuili.weights.content import content_of

DATA = content(5000)
HEAVY = (
    "numpy",
    "asyncio",
    "httpx2",
    "rich",
    "prompt_toolkit",
    "jinja2",
    "tokenizers",
    "fastapi",
    "pydantic",
    "importlib.metadata",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUILI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys; from tuili.cli.main import run; run(['--help']); print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": "src"})
    assert done.stdout.endswith("[]\n")
    for name, line in COMMANDS:
        assert f"{name} " in done.stdout and line in done.stdout


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: tuili {name}") and out.count("\n") > 6
    command = import_module(f"tuili.cli.{name}").command
    assert command.name == name
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{name} {option.opts[0]} has no help"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"tuili {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["lst"], 2, "there is no command 'lst': did you mean 'list'?"),
        (["xyzzy"], 2, "there are run, serve, pull"),
        (["pull"], 2, "Missing argument 'MODEL...'"),
        (["pull", "--fast", "x"], 2, "No such option"),
        (["pull", "smolm2"], 1, "no model is called 'smolm2': did you mean smollm2:135m?"),
        (["pull", "../../etc/passwd"], 1, "'../../etc/passwd' is not a model name"),
        (["pull", "gemma3"], 1, "https://ai.google.dev/gemma/terms"),
        (["show", "nosuch"], 1, "no model is called 'nosuch'"),
        (["show", "a/b"], 1, "`tuili inspect a/b` looks into a file"),
        (["rm", "smollm2"], 1, "smollm2 is not here: no model is"),
        (["completion", "csh"], 2, "'bash', 'zsh', 'fish'"),
        (["run", "nosuch", "hi"], 1, "no model is called 'nosuch'"),
        (["run", "/no/such.gguf", "hi"], 1, "there is no file /no/such.gguf"),
        (["run", "smollm2", "hi", "--max-tokens", "-1"], 2, "--max-tokens"),
        (["run", "smollm2", "hi", "--temperature", "-1"], 1, "temperature is -1.0; it has to be from 0 to 100"),
        (["run", "smollm2", "hi", "--top-p", "3"], 1, "top_p is 3.0; it has to be from 0 to 1"),
        (["run", "smollm2", "hi", "--raw", "--system", "x"], 2, "--system is part of the chat template"),
        (["run", "smollm2", "hi", "--threads", "0"], 1, "--threads is '0'; it has to be a whole number from 1 to 1024"),
        (["run", "smollm2", "hi", "--isa", "sse2"], 1, "--isa is 'sse2'; it has to be one of generic, avx2, avx512"),
        (["run", "smollm2", "hi", "--kv-cache-memory-bytes", "lots"], 1, "512MiB"),
        (["run", "gemma3", "hi"], 1, "--accept-licence"),
        (["serve", "smollm2", "--port", "70000"], 1, "--port is '70000'; it has to be a whole number from 0 to 65535"),
        (["serve", "smollm2", "--log-level", "loud"], 1, "one of debug, info, warning, error"),
    ],
)
def test_mistakes_are_explained_in_one_block(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and message in captured.err
    assert "Traceback" not in captured.err
    assert not home.exists()


def test_a_bad_environment_or_file_is_named(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUILI_PORT", "http")
    assert run(["serve", "smollm2"]) == 1
    assert "the environment variable TUILI_PORT is 'http'" in capsys.readouterr().err
    monkeypatch.delenv("TUILI_PORT")
    home.mkdir()
    (home / "config.toml").write_text("threads = 'many'\n")
    assert run(["serve", "smollm2"]) == 1
    assert f"threads in {home}/config.toml is 'many'" in capsys.readouterr().err


def test_list_show_and_rm(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    store = Store(home)
    assert run(["list"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "tuili pull smollm2" in captured.err
    pull(entry(model_file(DATA), TERMS), store, fetchers(ScriptedFetcher(DATA)), Recorder(), accept_licence=True)
    assert run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "LICENCE", "FETCHED", "MODEL"]
    assert lines[1].split()[:4] == ["toy:1b", "5.0", "kB", "LicenseRef-Gemma"]
    assert run(["list", "--all", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows if row["here"]] == ["toy"] and len(rows) == 5
    assert run(["show", "toy", "--verify"]) == 0
    assert "Every byte is as it should be." in capsys.readouterr().out
    blob = next(store.blobs.iterdir())
    blob.write_bytes(b"!" + DATA[1:])
    assert run(["show", "toy"]) == 0
    capsys.readouterr()
    assert run(["show", "toy", "--verify", "--json"]) == 1
    captured = capsys.readouterr()
    assert "has the sha256" in json.loads(captured.out)["problems"][0]
    assert "Run `tuili pull toy:1b` to repair it" in captured.err
    assert run(["rm", "toy"]) == 0
    assert capsys.readouterr().out == "toy:1b is removed; 5.0 kB are free again\n"
    assert run(["rm", "toy"]) == 1


def test_rm_removes_the_packs_of_a_model(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    store = Store(home)
    manifest = pull(entry(model_file(DATA)), store, fetchers(ScriptedFetcher(DATA)), Recorder(), accept_licence=True)
    key = PackKey(content_of([store.blob(manifest.files[0].sha256)]), "r", "m", "avx2", "l", 1)
    pack = PackCache(pack_dir(), write=True, max_bytes=10**9).save(key, memoryview(DATA), (1,), lambda done, total: None)
    freed = pack.stat().st_size + len(DATA)
    assert run(["rm", "toy"]) == 0
    assert capsys.readouterr().out == f"toy:1b is removed; {console.size_text(freed)} are free again\n"
    assert list(pack.parent.iterdir()) == []


def test_rm_also_removes_what_an_interrupted_fetch_left(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    from tuili.library.catalogue import load_catalogue
    from tuili.library.names import parse_name

    store = Store(home)
    partial = store.partial(load_catalogue().get(parse_name("smollm2")).files[0].sha256)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * 2_000_000)
    assert run(["rm", "smollm2"]) == 0
    assert "what was fetched of smollm2:135m is removed; 2.0 MB are free again" in capsys.readouterr().out
    assert not partial.exists()


def test_show_knows_what_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "gemma3"]) == 0
    out = capsys.readouterr().out
    assert "Gemma Terms of Use" in out and "no; `tuili pull gemma3:270m` fetches it" in out


def test_tuili_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("Usage: tuili")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_a_full_disk_behind_stdout_is_said(home: Path) -> None:
    with open("/dev/full", "wb") as full:
        code = "from tuili.cli.main import main; main(['list', '--all', '--json'])"
        environment = {"PYTHONPATH": "src", "TUILI_HOME": str(home)}
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr == "error: the system refused: [Errno 28] No space left on device\n"


def test_a_reader_that_goes_away_is_no_error(home: Path) -> None:
    code = "from tuili.cli.main import main; main(['list', '--all', '--json'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": "src", "TUILI_HOME": str(home)},
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 1


def test_nothing_is_coloured_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_error("no")
    console.note("yes")
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("size", [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98362432, "98 MB"), (1117320768, "1.1 GB")])
def test_sizes_in_words(size: tuple[int, str]) -> None:
    assert console.size_text(size[0]) == size[1]


def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> Store:
        raise KeyboardInterrupt

    monkeypatch.setattr("tuili.cli.list.open_store", interrupted)
    assert run(["list"]) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize(
    ("words", "expected"), [(["run", "smo"], "smollm2:135m"), (["pull", "gemma3:270m", "q"], "qwen2.5-coder:1.5b")]
)
def test_a_shell_completes_names_of_models(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TUILI_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["tuili", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        run([])
    assert f"plain,{expected}" in capsys.readouterr().out


def test_a_load_that_takes_a_while_shows_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("tuili.cli.progress.time.monotonic", lambda: now)
    bar = LoadingBar()
    bar("packing", 10**6, 10**8)
    assert capsys.readouterr().err == ""
    now = 0.6
    bar("packing", 5 * 10**7, 10**8)
    bar("packing", 6 * 10**7, 10**8)  # too soon to draw again
    assert capsys.readouterr().err.strip() == f"packing weights {'━' * 12}{' ' * 12} 50 MB of 100 MB"
    bar.clear()
    erased = capsys.readouterr().err
    assert erased.isspace() and len(erased) > 50
