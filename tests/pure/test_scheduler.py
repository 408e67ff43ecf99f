"""The scheduler over random traces: budgets kept, blocks conserved, everybody served, whoever is aborted or preempted."""

import random
from collections.abc import Iterator

import pytest

from tuili.cache.manager import GroupSpec, KVManager
from tuili.engine import policy
from tuili.engine.request import Request, Sequence, Status, StepPlan
from tuili.engine.scheduler import Scheduler, SchedulerLimits
from tuili.types import GenerateRequest, SamplingParams

EOS = 1


def scheduler(
    *groups: tuple[int, int | None], max_model_len: int = 4096, seqs: int = 8, tokens: int = 64, rows: int = 8
) -> Scheduler:
    kv = KVManager([GroupSpec(num_blocks, window) for num_blocks, window in groups], 16)
    return Scheduler(SchedulerLimits(max_model_len, seqs, tokens, max_prompt_rows=rows), kv)


def request(
    subject: Scheduler,
    name: str,
    num_prompt: int,
    max_tokens: int | None,
    *,
    priority: int = 0,
    arrival: float = 0.0,
    share: bool = False,
    **params: int,
) -> Request:
    """``share``: it finds the tokens of others in the prefix cache; all prompts here begin alike."""
    sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    source = GenerateRequest(name, tuple(range(2, num_prompt + 2)), sampling, priority, arrival)
    longest = subject.max_sequence_tokens
    total = longest if max_tokens is None else min(num_prompt + max_tokens, longest)
    key = policy.request_key(priority, arrival, len(name))
    return Request(source, 0, frozenset({EOS}), total, key, namespace=b"all" if share else name.encode())


def check_plan(subject: Scheduler, plan: StepPlan) -> None:
    """What every step promises."""
    limits = subject.limits
    assert sum(plan.num_tokens) <= limits.max_num_batched_tokens
    assert len(subject.running) <= limits.max_num_seqs
    assert len(set(map(id, plan.sequences))) == len(plan.sequences)
    slots = [sequence.slot for sequence in subject.running]
    assert len(set(slots)) == len(slots) and all(0 <= slot < limits.max_num_seqs for slot in slots)
    assert [s.key for s in subject.running] == sorted(s.key for s in subject.running)
    assert [s.key for s in subject.waiting] == sorted(s.key for s in subject.waiting)
    prompt_rows = 0
    for sequence, count in zip(plan.sequences, plan.num_tokens, strict=True):
        start = sequence.num_computed_tokens
        assert sequence.status is Status.RUNNING and count >= 1
        assert start + count <= len(sequence.token_ids)
        assert sequence.blocks is not None and sequence.blocks.capacity >= start + count
        if sequence.index == 0:
            prompt_rows += len(sequence.request.prompt_rows(start, start + count))
    assert prompt_rows <= limits.max_prompt_rows
    for sequence in subject.waiting:
        assert sequence.blocks is None and sequence.num_computed_tokens == 0
    subject.kv.check()


def run_step(subject: Scheduler, rng: random.Random) -> StepPlan:
    """Schedule, pretend to compute, record as the engine does."""
    plan = subject.schedule()
    check_plan(subject, plan)
    for sequence, count in zip(plan.sequences, plan.num_tokens, strict=True):
        start = sequence.num_computed_tokens
        if sequence.index == 0 and (known := sequence.request.prompt_logprobs) is not None:
            known += [None] * len(sequence.request.prompt_rows(start, start + count))
    for i in subject.update(plan):
        subject.append(plan.sequences[i], EOS if rng.random() < 0.02 else rng.randrange(2, 100))
    return plan


def drain(subject: Scheduler, rng: random.Random, most: int = 100_000) -> None:
    for _ in range(most):
        if not subject.running and not subject.waiting:
            break
        assert run_step(subject, rng), "work is waiting, and nothing was planned"
    assert not subject.running and not subject.waiting
    assert subject.kv.num_free == tuple(group.num_blocks for group in subject.kv.groups)


TRACES = {
    "one full group": ((60, None),),
    "tiny": ((9, None),),
    "window and full": ((60, None), (12, 40)),
    "two windows": ((40, None), (9, 24), (20, 100)),
    "windows only": ((12, 30),),
}


@pytest.mark.parametrize("groups", TRACES.values(), ids=TRACES.keys())
def test_random_traces_end_with_every_block_free(groups: tuple[tuple[int, int | None], ...]) -> None:
    """D-SCHED-1: a property test with random sizes ends with waiting = running = 0 and all blocks free."""
    rng = random.Random(str(groups))
    subject = scheduler(*groups, max_model_len=300)
    live: list[Request] = []
    for number in range(300):
        num_prompt = rng.choice((1, 3, 16, 33, rng.randrange(1, 140)))
        num_prompt = min(num_prompt, subject.max_sequence_tokens - 1)
        params = {"n": rng.choice((1, 1, 1, 2, 4))}
        if rng.random() < 0.2:
            params["prompt_logprobs"] = 1
        new = request(
            subject,
            f"r{number}",
            num_prompt,
            rng.choice((0, 1, 5, 40, None)),
            priority=rng.choice((0, 0, 3)),
            arrival=number / 10,
            **params,
        )
        subject.add(new)
        live.append(new)
        for _ in range(rng.randrange(8)):
            run_step(subject, rng)
        if rng.random() < 0.3:
            for sequence in live.pop(rng.randrange(len(live))).sequences:
                subject.finish(sequence)
            subject.kv.check()
    drain(subject, rng)
    for each in live:
        assert each.num_unfinished == 0
        for sequence in each.sequences:
            assert len(sequence.token_ids) <= max(sequence.max_tokens_total, len(each.prompt_token_ids))
        if each.prompt_logprobs is not None:
            assert len(each.prompt_logprobs) == len(each.prompt_token_ids)


def test_what_fits_partly_runs_until_the_cache_is_full() -> None:
    """D-SCHED-1: a pool of 20 blocks, a prompt that fits but whose max_tokens does not: it ends where the pool ends."""
    subject = scheduler((20, None))
    assert subject.max_sequence_tokens == 320
    greedy = request(subject, "a", 100, 4000)
    subject.add(greedy)
    short = [request(subject, "b" * (i + 2), 8, 4) for i in range(5)]
    for each in short:
        subject.add(each)
    rng = random.Random(0)
    rng.random = lambda: 1.0  # type: ignore[method-assign]
    drain(subject, rng)
    assert len(greedy.sequences[0].token_ids) == 320
    assert all(len(each.sequences[0].token_ids) == 12 for each in short)


def test_sequences_of_one_request_share_the_prompt() -> None:
    """D-SCHED-1: n = 4 over a prompt that fits once."""
    subject = scheduler((20, None))
    four = request(subject, "a", 200, 8, n=4)
    subject.add(four)
    rng = random.Random(0)
    most = 0
    while subject.running or subject.waiting:
        run_step(subject, rng)
        most = max(most, len(subject.running))
    assert most > 1, "four copies of 200 tokens do not fit into 320, yet shared they do"
    assert subject.num_preemptions == 0


def test_decodes_are_not_held_up_by_a_long_prompt() -> None:
    subject = scheduler((200, None), tokens=16)
    rng = random.Random(0)
    rng.random = lambda: 1.0  # type: ignore[method-assign]
    for i in range(3):
        subject.add(request(subject, "d" * (i + 1), 4, 50))
        run_step(subject, rng)
    subject.add(request(subject, "long", 400, 5, priority=-100))  # it comes first in every order
    for _ in range(20):
        plan = run_step(subject, rng)
        assert sum(len(s.request.request_id) <= 3 and s.request.request_id[0] == "d" for s in plan.sequences) == 3
        assert sum(plan.num_tokens) == 16


def test_the_youngest_gives_way_and_keeps_its_place() -> None:
    subject = scheduler((6, None), seqs=3)
    rng = random.Random(0)
    rng.random = lambda: 1.0  # type: ignore[method-assign]
    old, young = request(subject, "a", 30, 40), request(subject, "bb", 30, 40, arrival=1.0)
    subject.add(young)
    subject.add(old)
    run_step(subject, rng)
    assert [s.request for s in subject.running] == [old, young]
    while not subject.num_preemptions:
        run_step(subject, rng)
    assert [s.request for s in subject.running] == [old]
    waiting = subject.waiting[0]
    assert waiting.request is young and len(waiting.token_ids) > 30, "its output is kept"
    subject.add(request(subject, "ccc", 4, 4, arrival=2.0))
    assert subject.waiting[0] is waiting
    drain(subject, rng)
    assert old.sequences[0].num_preemptions == 0
    assert len(young.sequences[0].token_ids) == 70


def arrivals() -> Iterator[tuple[int, float]]:
    """D-SCHED-3: urgent requests without end, one every 0.1 seconds."""
    for i in range(2000):
        yield 0, i * 0.1


def test_low_priority_still_advances() -> None:
    """D-SCHED-3: low priority still advances, however many urgent requests keep coming (ageing)."""
    subject = scheduler((100, None), seqs=1)
    rng = random.Random(0)
    humble = request(subject, "low", 4, 1, priority=10, arrival=0.0)
    subject.add(humble)
    first = request(subject, "first", 4, 1, priority=0, arrival=0.0)
    subject.add(first)
    run_step(subject, rng)
    assert first.num_unfinished == 0 and humble.num_unfinished == 1, "priority decides among equals"
    for i, (priority, arrival) in enumerate(arrivals()):
        subject.add(request(subject, f"u{i}", 4, 1, priority=priority, arrival=arrival))
        run_step(subject, rng)
        if not humble.num_unfinished:
            break
    assert not humble.num_unfinished


def test_prompt_logprobs_bound_the_output_rows_of_a_step() -> None:
    subject = scheduler((100, None), rows=8)
    asked = request(subject, "a", 50, 1, prompt_logprobs=1)
    subject.add(asked)
    rng = random.Random(0)
    sizes: list[int] = []
    while subject.running or subject.waiting:
        sizes += run_step(subject, rng).num_tokens
    assert sizes == [8] * 6 + [2]
    assert asked.prompt_logprobs is not None and len(asked.prompt_logprobs) == 50


def test_abort_in_every_phase_frees_everything() -> None:
    """D-STRM-2: waiting, prefill, decode, just finished."""
    rng = random.Random(0)
    for phase in range(12):
        subject = scheduler((40, None), (12, 20), tokens=16)
        victim, other = request(subject, "a", 40, 6, n=2), request(subject, "bb", 8, 6)
        subject.add(victim)
        subject.add(other)
        for _ in range(phase):
            run_step(subject, rng)
        for sequence in victim.sequences:
            subject.finish(sequence)
            subject.finish(sequence)  # a second time changes nothing
        subject.kv.check()
        assert victim.num_unfinished == 0
        drain(subject, rng)


def _sequence(key: int) -> Sequence:
    source = GenerateRequest(str(key), (1,), SamplingParams())
    return Request(source, 0, frozenset(), 2, (float(key), key)).sequences[0]


def test_the_victim_is_the_last_of_the_running() -> None:
    running = [_sequence(key) for key in range(3)]
    assert policy.victim(running) is running[2]


def test_a_prefix_in_flight_is_computed_once() -> None:
    subject = scheduler((200, None), tokens=64)
    requests = [request(subject, "r" * (n + 1), 200 + n, 4, share=True) for n in range(6)]
    for new in requests:
        subject.add(new)
    rng = random.Random(3)
    computed = 0
    while subject.running or subject.waiting:
        plan = run_step(subject, rng)
        computed += sum(count for count in plan.num_tokens if count > 1)
    assert computed < 200 + 6 * 32
    assert [r.num_cached_tokens for r in requests] == [0, *[192] * 5]


def test_random_traces_with_shared_prefixes() -> None:
    """D-PFX-1, D-SCHED-1: aborts, preemptions and evictions amid sharing; everybody ends, and all blocks are available again."""
    for groups in TRACES.values():
        rng = random.Random(f"shared {groups}")
        subject = scheduler(*groups, max_model_len=300, seqs=6)
        live: list[Request] = []
        for number in range(200):
            num_prompt = min(rng.choice((15, 16, 17, 33, 100, 140)), subject.max_sequence_tokens - 1)
            params = {"n": rng.choice((1, 1, 3)), **({"prompt_logprobs": 1} if rng.random() < 0.1 else {})}
            live.append(
                request(subject, f"r{number}", num_prompt, rng.choice((1, 20)), arrival=number / 10, share=True, **params)
            )
            subject.add(live[-1])
            for _ in range(rng.randrange(6)):
                if subject.running or subject.waiting:
                    assert run_step(subject, rng)
            if rng.random() < 0.2:
                for sequence in live.pop(rng.randrange(len(live))).sequences:
                    subject.finish(sequence)
        drain(subject, rng)


def test_the_longest_kept_prefix_goes_first_but_not_for_ever() -> None:
    subject = scheduler((100, None), seqs=1)
    rng = random.Random(0)
    subject.add(request(subject, "warm", 100, 1, share=True))
    drain(subject, rng)
    cold, hit = request(subject, "cold", 100, 1, arrival=10.0), request(subject, "hit", 100, 1, arrival=10.5, share=True)
    late = request(subject, "late", 100, 1, arrival=10.0 + policy.PREFIX_PATIENCE + 0.1, share=True)
    for new in (cold, hit, late):
        subject.add(new)
    order: list[str] = []
    while subject.running or subject.waiting:
        order += [sequence.request.request_id for sequence in run_step(subject, rng).admitted]
    assert order == ["hit", "cold", "late"]


def test_without_the_prefix_cache_only_siblings_share() -> None:
    kv = KVManager([GroupSpec(100, None)], 16)
    subject = Scheduler(SchedulerLimits(4096, 8, 64), kv, prefix_caching=False)
    rng = random.Random(1)
    first = request(subject, "a", 100, 1, share=True, n=2)
    subject.add(first)
    drain(subject, rng)
    second = request(subject, "b", 100, 1, share=True)
    subject.add(second)
    plan = run_step(subject, rng)
    assert plan.num_tokens == [64] and second.num_cached_tokens == 0
    assert kv.num_kept == (0,)
    drain(subject, rng)
