"""The benchmarks' own arithmetic, and that the one without a peer runs; speeds are not asserted here."""

import asyncio
import contextlib
import importlib.metadata
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import numpy as np
import pytest
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compare_llama_cpp
import compare_quality
import compare_vllm_cpu
import load
import machine
import material
import pairs
import perplexity
import servers
import serving
import sharegpt
import step_overhead
from ours import Generated
from peers import llama_cpp, vllm_cpu
from peers.llama_cpp import find_or_build
from speed_tests import Neighbour
from support.fake_model import small_tokenizer
from support.gguf_file import tensor, write_gguf
from support.tiny_model import write_tiny_model
from tuili.weights.gguf import open_gguf


def test_closeness_of_known_distributions() -> None:
    """Two tokens: p = (3/4, 1/4) against q = (1/2, 1/2) diverge by 3/4 ln(3/2) + 1/4 ln(1/2) nats."""
    expected = np.log(np.array([[0.75, 0.25], [0.1, 0.9]], np.float32))
    actual = np.log(np.array([[0.5, 0.5], [0.1, 0.9]], np.float32)) + np.float32(7)  # a constant shift changes nothing
    result = compare_quality.closeness(expected, lambda a, b: actual[a:b])
    assert result.divergence == pytest.approx([0.75 * np.log(1.5) + 0.25 * np.log(0.5), 0], abs=1e-6)
    assert result.clear.tolist() == [True, True]
    assert result.same_argmax.tolist() == [True, True]


def test_closeness_sees_other_tokens_and_narrow_gaps_in_every_chunk_of_rows() -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((3 * compare_quality.ROWS - 5, 40)).astype(np.float32)
    actual = expected.copy()
    actual[100], expected[70] = np.roll(actual[100], 1), 1.0
    result = compare_quality.closeness(expected, lambda a, b: actual[a:b])
    assert np.flatnonzero(~result.same_argmax).tolist() in ([100], [70, 100])
    assert set(np.flatnonzero(result.divergence > 1e-9)) == {70, 100}
    assert not result.clear[70]
    assert result.cosine[5] == pytest.approx(1)


def test_a_row_takes_the_peers_better_setting() -> None:
    def passes(*rates: float) -> list[pairs.Rates]:
        return [{"pp512": rate} for rate in rates]

    series = pairs.Series(passes(90, 110, 100), {"fa=0": passes(40, 55, 50), "fa=1": passes(30, 20, 60)}, [20.0, 30.0, 25.0])
    row = pairs.row("m", "pp512", series)
    assert (row["ours"], row["theirs"], row["ratio"], row["setting"], row["bandwidth"]) == (100, 50, 2, "fa=0", 25)
    assert row["spread"] == pytest.approx((90 / 40 - 2) / 2)
    assert pairs.judged(row, 2.0)["met"] and not pairs.judged(row, 2.1)["met"] and "met" not in pairs.judged(row, None)
    assert pairs.judged(row, 2.1, at_most=True)["met"]
    assert "MISSED" in pairs.shown(pairs.judged(row, 2.1))


def test_sides_take_turns_and_a_hopeless_setting_is_not_run_again() -> None:
    calls: list[str] = []

    def ours(number: int) -> pairs.Rates:
        calls.append(f"ours {number}")
        return {"a": 10.0 + number, "b": 1.0}

    def theirs(number: int, setting: str) -> pairs.Rates:
        calls.append(f"{setting} {number}")
        return {"slow": {"a": 5.0, "b": 0.5}, "one": {"a": 8.0, "b": 0.5}, "other": {"a": 5.0, "b": 2.0}}[setting]

    series = pairs.take_turns(ours, theirs, ("slow", "one", "other"), 2, bandwidth=lambda: 20.0)
    assert calls == ["ours 0", "slow 0", "one 0", "other 0", "ours 1", "one 1", "other 1", "ours 2", "one 2", "other 2"]
    assert [rates["a"] for rates in series.ours] == [11, 12]  # the warm-up does not count
    assert pairs.row("m", "a", series)["setting"] == "one"
    assert pairs.row("m", "b", series)["setting"] == "other"


def test_decode_rate_counts_only_steps_in_which_all_sequences_decode() -> None:
    """The second prompt's first token comes at 2 s; from then on, until the first sequence ends, two steps of 0.5 s."""
    events = ((1.0, 0, 1), (2.0, 0, 1), (2.0, 1, 1), (2.5, 0, 1), (2.5, 1, 1), (3.0, 0, 1), (3.0, 1, 1), (9.0, 1, 1))
    generated = Generated(((1, 2, 3, 4), (1, 2, 3, 4)), events, 9.0)
    assert generated.first_token == 2.0
    assert generated.decode_rate == pytest.approx(2 * 2 / 1.0)


def test_a_neighbour_leaves_part_of_the_quiet_rate() -> None:
    class Passes:
        rates: ClassVar = [{"pp512": 100.0}, {"pp512": 60.0}]

        def ours(self, number: int) -> pairs.Rates:
            return self.rates.pop(0)

    measured = Neighbour(Passes()).ours(1)  # type: ignore[arg-type]
    assert measured == {"pp512 neighbour": 60.0, "pp512 kept": 0.6}


def test_perplexity_counts_the_second_half_of_a_window() -> None:
    """Whatever the rows before say: a uniform distribution over 7 tokens costs ln 7 a token."""
    logits = np.zeros((8, 7), np.float32)
    logits[:4, 2] = 50
    assert perplexity._surprise(logits, [1] * 8, 4) == pytest.approx(4 * np.log(7))
    assert perplexity._surprise(logits, [1] * 7, 4) == pytest.approx(3 * np.log(7))  # nothing follows the last row


def test_first_turns_survive_a_file_that_was_cut_off() -> None:
    turns = [[("human", " Why? "), ("gpt", "Because.")], [("gpt", "Hello")], [], [("human", "And \u4e16?")], [("human", "lost")]]
    whole = [{"id": i, "conversations": [{"from": a, "value": b} for a, b in turn]} for i, turn in enumerate(turns)]
    text = json.dumps(whole, indent=1)
    assert list(sharegpt.first_turns(text)) == ["Why?", "And 世?", "lost"]
    assert list(sharegpt.first_turns(text[: text.index("lost")])) == ["Why?", "And 世?"]


class CompletionServer:
    """Speaks just enough of the completions API. ``tokens``: how many it gives; None: as many as were asked for."""

    def __init__(self, tokens: int | None = None) -> None:
        self.tokens = tokens
        self.bodies: list[dict[str, Any]] = []
        self.most = self.now = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        self.bodies.append(body)
        self.now += 1
        self.most = max(self.most, self.now)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        count = body["max_tokens"] if self.tokens is None else self.tokens
        events: list[dict[str, Any]] = [{"choices": [{"text": "x"}]} for _ in range(count)]
        events.append({"choices": [], "usage": {"completion_tokens": count}})
        for text in [*map(json.dumps, events), "[DONE]"]:
            await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})
        self.now -= 1
        await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def listening(app: CompletionServer) -> AsyncIterator[str]:
    port = servers.free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await task


async def test_the_load_client_keeps_every_timeline(tmp_path: Path) -> None:
    app = CompletionServer()
    async with listening(app) as url:
        timelines = await load.run(load.Asked(url, "model", 5), [f"prompt {i}" for i in range(7)], clients=3)
    assert app.most == 3
    assert sorted(body["prompt"] for body in app.bodies) == [f"prompt {i}" for i in range(7)]
    assert all(body["stream"] and body["ignore_eos"] and body["temperature"] == 0 for body in app.bodies)
    for one in timelines:
        assert one.tokens == len(one.arrivals) == 5
        assert 0 <= one.sent < one.arrivals[0] <= one.arrivals[-1] <= one.ended
    figures = load.summary(timelines)
    span = max(one.ended for one in timelines) - min(one.sent for one in timelines)
    assert figures["output_rate"] == pytest.approx(35 / span, rel=0.01)
    load.write_timelines(tmp_path / "t", timelines, side="ours")
    records = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
    assert len(records) == 7 and records[0]["side"] == "ours" and len(records[0]["arrivals"]) == 5


async def test_the_load_client_refuses_answers_that_are_too_short() -> None:
    async with listening(CompletionServer(tokens=2)) as url:
        with pytest.raises(ExceptionGroup) as caught:
            await load.run(load.Asked(url, "model", 5), ["prompt"], clients=1)
    assert "gave 2 tokens" in str(caught.value.exceptions[0])


def test_latencies_are_those_of_the_timelines() -> None:
    timelines = [load.Timeline(0.0, [0.1, 0.2, 0.4], 0.4, 3), load.Timeline(1.0, [1.3, 1.4, 1.5], 2.0, 3)]
    figures = load.summary(timelines)
    assert (figures["output_rate"], figures["ttft_p50"], figures["itl_p50"]) == (3.0, 200.0, 100.0)


def test_a_token_costs_what_the_file_says(tmp_path: Path) -> None:
    """Two layers of two KV heads of 16; the tied embedding is read as the output matrix, an untied one is not read at all."""
    file = write_tiny_model(tmp_path / "tiny.gguf")
    assert material.kv_bytes_per_token(file) == 2 * 2 * 2 * 2 * 16
    source = open_gguf(file)
    assert material.bytes_read_per_token(file) == sum(source.tensor(name).data.nbytes for name in source.names())
    untied = {name: np.ones((4, 8), np.float32) for name in ("token_embd.weight", "output.weight")}
    records = [tensor(name, value) for name, value in untied.items()]
    write_gguf(tmp_path / "untied.gguf", {"general.architecture": "llama"}, records)
    assert material.bytes_read_per_token(tmp_path / "untied.gguf") == 4 * 8 * 4


def test_both_servers_get_room_for_every_client(tmp_path: Path) -> None:
    file = write_tiny_model(tmp_path / "tiny.gguf")
    (tmp_path / "llama-server").touch()
    llama = llama_cpp.LlamaCpp(tmp_path, tmp_path)
    theirs = llama_cpp.server(llama, file, 8080, threads=2, clients=4, context=512)
    options = dict(zip(theirs.command, theirs.command[1:], strict=False))
    assert (options["--parallel"], options["--ctx-size"], options["--threads"]) == ("4", "2048", "2")
    ours = serving.ours(file, 2, 4, 512)(8000, 1)
    assert ours.kv_bytes == theirs.kv_bytes == 4 * 512 * material.kv_bytes_per_token(file)
    assert str(ours.kv_bytes) in ours.command


def test_a_missing_program_of_a_build_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no llama-server"):
        llama_cpp.LlamaCpp(tmp_path, tmp_path).program("llama-server")


def test_vllm_gets_the_metadata_it_looks_for(tmp_path: Path) -> None:
    metadata = tmp_path / f"vllm_cpu-{vllm_cpu.VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm-cpu\nVersion: {vllm_cpu.VERSION}\nSummary: vllm-cpu\n")
    vllm_cpu.give_alias(metadata)
    (found,) = importlib.metadata.distributions(name="vllm", path=[str(tmp_path)])
    assert found.version == f"{vllm_cpu.VERSION}+cpu"


def test_each_side_counts_at_its_best_number_of_clients() -> None:
    def side(rates: dict[int, float], ttft: float, memory: int) -> serving.Measured:
        summary = {"ttft_p50": 1.0, "ttft_p90": ttft, "ttft_p99": 9.0, "itl_p50": 1.0, "itl_p99": 1.0}
        loads = {clients: [{**summary, "output_rate": rate}] * 3 for clients, rate in rates.items()}
        return serving.Measured(loads, [memory] * 3)

    ours, theirs = side({4: 100, 16: 300}, 30.0, 5 * 10**8), side({4: 90, 16: 60}, 100.0, 6 * 10**8)
    rows = {row["test"]: row for row in serving._rows("m", "peer", ours, theirs, serving.LLAMA_SERVER_BARS)}
    best = rows["peer best rate"]
    assert (best["ours"], best["theirs"], best["met"], best["clients"]) == (300, 90, True, [16, 4])
    assert rows["peer 16 ttft_p90"]["met"] and "met" not in rows["peer 4 ttft_p90"]
    assert rows["peer memory MB"]["ours"] == 500 and rows["peer memory MB"]["met"]


HEALTHY = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(str(child.pid).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def test_a_server_is_waited_for_measured_and_ended_with_its_children() -> None:
    port = servers.free_port()
    command = servers.ServerCommand("healthy", (sys.executable, "-c", HEALTHY, str(port)), port, 0)
    with servers.Server(command) as server:
        child = int(httpx2.get(server.url, trust_env=False).text)
        assert server.peak_memory() > 5e6
        assert Path(f"/proc/{child}").exists()
    assert not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text()


def test_a_server_that_does_not_start_says_why() -> None:
    command = servers.ServerCommand("broken", (sys.executable, "-c", "import sys; sys.exit('no such model')"), 1, 0)
    with pytest.raises(SystemExit, match=r"broken did not become ready(?s:.*)no such model"), servers.Server(command):
        pass


def test_material_is_the_same_every_time_and_holds_no_control_token() -> None:
    tokenizer = small_tokenizer()
    ids = material.random_ids(tokenizer, 200, seed=3)
    assert ids == material.random_ids(tokenizer, 200, seed=3) != material.random_ids(tokenizer, 200, seed=4)
    assert not any(tokenizer.is_hidden(token) for token in ids)
    texts = material.windows(tokenizer, 64, 2)
    assert [(w.kind, len(w.ids)) for w in texts] == [("prose", 64), ("prose", 64), ("code", 64), ("code", 64)]
    assert len({w.ids for w in texts}) == 4


def test_step_overhead_runs_and_counts_both_threads() -> None:
    row = step_overhead.measure(num_streams=3, num_tokens=30)
    assert row["test"] == "step3"
    assert row["engine"] > 0 and row["loop"] > 0
    assert row["steps"] > 15


def test_a_folder_that_is_no_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not the bin folder of a llama"):
        find_or_build(tmp_path / "bin")


def test_the_probe_measures_something() -> None:
    probe = machine.probe()
    assert probe.bandwidth > 0 and probe.round_trip > 0
    assert "cores" in machine.describe()


@pytest.mark.parametrize("program", [compare_llama_cpp, compare_vllm_cpu, load])
def test_programs_explain_themselves(program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "--help"])
    with pytest.raises(SystemExit):
        program.main()
    assert program.__doc__.splitlines()[0] in capsys.readouterr().out


def test_every_bar_belongs_to_a_test_and_its_models() -> None:
    by_figure = {"pp512": "short", "tg128": "short", "pp2048": "deep", "tg128@d2048": "deep", "batch16": "batch"}
    for model, figure in compare_llama_cpp.BARS:
        assert model in compare_llama_cpp.TESTS[by_figure[figure]][1]
