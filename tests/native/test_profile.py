"""Times by op: every phase is counted, prompt steps and decode steps apart, and nothing is kept unless asked for."""

import pytest

from support.tiny_engine import tiny_engine
from tuili import SamplingParams
from tuili.backends.cpu.executor import CpuBackend
from tuili.backends.select import select_backend
from tuili.config.options import EngineOptions
from tuili.engine.llm import LLM
from tuili.errors import ConfigError
from tuili.observe.profile import Profile

PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


def profile_of(architecture: str) -> Profile:
    backend = CpuBackend(threads=2, profile=True)
    llm = LLM(tiny_engine(architecture, backend, EngineOptions(max_model_len=64)))
    llm.generate([[1, 2, 3], [4, 5]], PARAMS)
    before = llm.profile()
    llm.close()
    assert llm.profile() == before, "it stays readable"
    return before


def test_every_op_of_every_step_is_counted() -> None:
    profile = profile_of("qwen2")
    assert (profile.prompt.num_steps, profile.prompt.num_tokens) == (1, 5)
    assert (profile.decode.num_steps, profile.decode.num_tokens) == (3, 6)
    decode = {time.op: time for time in profile.decode.ops}
    assert decode["sampling"].calls == 3 and decode["sampling"].rows == 6
    assert decode["linear lm_head F32"].calls == 3
    layers = decode["attention"].calls // 3
    assert layers == decode["linear q_proj/k_proj/v_proj F32"].calls // 3 >= 2
    assert any(op.startswith("gate_up_act gate_proj/up_proj") for op in decode)
    for times in (profile.prompt, profile.decode):
        assert 0 < sum(time.seconds for time in times.ops) <= times.seconds


def test_experts_have_names_too() -> None:
    ops = {time.op for time in profile_of("qwen3_moe").prompt.ops}
    assert "group_experts" in ops and any(op.startswith("moe_linear") for op in ops)


def test_the_table_says_what_was_counted() -> None:
    text = str(profile_of("llama"))
    assert "prompt: 1 steps, 5 tokens" in text and "decode: 3 steps, 6 tokens" in text
    for part in ("op", "calls", "ms", "share", "attention", "rope tables", "sampling"):
        assert part in text


def test_nothing_is_kept_unless_asked_for() -> None:
    llm = LLM(tiny_engine("llama", CpuBackend(threads=1), EngineOptions(max_model_len=64)))
    llm.generate([[1, 2, 3]], PARAMS)
    with pytest.raises(ConfigError, match="profile=True"):
        llm.profile()
    with pytest.raises(ConfigError, match="needs --backend cpu"):
        select_backend("reference", profile=True)
