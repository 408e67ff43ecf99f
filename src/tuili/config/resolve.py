"""From options with "auto" to values, once, each with its reason. Pure: everything it needs to know comes in as facts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

from tuili.config.machine import MachineFacts
from tuili.config.options import EngineOptions, SpeculativeConfig
from tuili.errors import ConfigError

MIB = 2**20

DEFAULT_MAX_NUM_SEQS = 64
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
DEFAULT_MAX_WAITING_REQUESTS = 512

#: The automatic KV budget: this part of the memory that is free once the model is loaded, and within these bounds.
KV_SHARE = 0.25
MIN_KV_BYTES = 64 * MIB
MAX_KV_BYTES = 2048 * MIB

#: Part of the free memory that is left alone.
HEADROOM = 0.2

#: Above this many logical processors, one thread a physical core: their siblings share its vector units.
MANY_CPUS = 4

#: Options that are at least 1 when they are given.
POSITIVE = ("threads", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``memory_bytes``: what the loaded weights take. ``kv_bytes(tokens, chunk)``: KV bytes that one sequence of that length
    needs when computed that many tokens at a time; ``kv_tokens(budget, limit, chunk)``: the reverse, at most ``limit``."""

    max_position_embeddings: int
    memory_bytes: int
    kv_bytes: Callable[[int, int], int]
    kv_tokens: Callable[[int, int, int], int]


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """EngineOptions without "auto". ``reasons``: (setting, value in words, why) for the start report. ``warnings``: what the
    user should know because it differs from what was asked."""

    threads: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_memory_bytes: int
    max_waiting_requests: int
    reasons: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...] = ()
    enable_prefix_caching: bool = True
    speculative_config: SpeculativeConfig | None = None


def resolve(options: EngineOptions, model: ModelFacts, machine: MachineFacts) -> ResolvedOptions:
    """Raises ConfigError for a value that is out of range or that cannot go with the others."""
    _check_positive(options)
    reasons: list[tuple[str, str, str]] = []
    warnings: list[str] = []

    def choose(name: str, given: int | None, automatic: int, why: str) -> int:
        value = automatic if given is None else given
        reasons.append((name, str(value), why if given is None else "as asked"))
        return value

    threads, why = choose_threads(options, machine)
    reasons.append(("threads", str(threads), why))
    if threads > machine.num_cpus:
        warnings.append(f"{threads} threads on {machine.num_cpus} processors: they will wait for each other")
    batched = choose("max_num_batched_tokens", options.max_num_batched_tokens, DEFAULT_MAX_NUM_BATCHED_TOKENS, "the default")
    seqs = choose(
        "max_num_seqs",
        options.max_num_seqs,
        min(DEFAULT_MAX_NUM_SEQS, batched),
        "the default, at most one token of a step each",
    )
    waiting = choose("max_waiting_requests", options.max_waiting_requests, DEFAULT_MAX_WAITING_REQUESTS, "the default")
    longest = _longest(options, model)
    budget = choose("kv_cache_memory_bytes", options.kv_cache_memory_bytes, *_kv_budget(longest, seqs, batched, model, machine))
    if model.memory_bytes + budget > machine.available_memory:
        warnings.append(
            f"the model ({model.memory_bytes // MIB} MiB) and its KV cache ({budget // MIB} MiB) need more than the "
            f"{machine.available_memory // MIB} MiB of memory that are free: the system may swap, or stop the program"
        )
    max_model_len = _max_model_len(options, model, longest, budget, batched, reasons, warnings)
    return ResolvedOptions(
        threads,
        max_model_len,
        seqs,
        batched,
        budget,
        waiting,
        tuple(reasons),
        tuple(warnings),
        options.enable_prefix_caching,
        options.speculative_config,
    )


def _check_positive(options: EngineOptions) -> None:
    for name in (*POSITIVE, "max_waiting_requests"):
        value = getattr(options, name)
        if value is not None and not isinstance(value, Integral):
            raise ConfigError(f"{name} is {value!r}; it has to be a whole number, or left out to be chosen automatically")
    for name in POSITIVE:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; it has to be at least 1, or left out to be chosen automatically")
    if options.max_waiting_requests is not None and options.max_waiting_requests < 0:
        raise ConfigError(f"max_waiting_requests is {options.max_waiting_requests}; it has to be 0 or more")


def choose_threads(options: EngineOptions, machine: MachineFacts) -> tuple[int, str]:
    """How many native threads, and why: the first value that is needed, since backends are made with it."""
    _check_positive(options)
    if options.cpu_list is not None:
        return _threads_of_list(options.cpu_list, options.threads)
    if options.threads is not None:
        return options.threads, "as asked"
    usable = machine.num_cpus if machine.num_cpus <= MANY_CPUS else machine.num_cores
    kind = "processors" if usable == machine.num_cpus else "physical cores"
    if machine.cpu_quota is not None and machine.cpu_quota < usable:
        allowed = max(math.floor(machine.cpu_quota), 1)
        return allowed, f"the control group allows {machine.cpu_quota:g} of {usable} {kind}"
    return usable, f"{usable} {kind} are ours"


def _threads_of_list(cpus: tuple[int, ...], threads: int | None) -> tuple[int, str]:
    """One thread a CPU; fewer threads take the first CPUs."""
    if not cpus or not all(isinstance(cpu, Integral) and cpu >= 0 for cpu in cpus) or len(set(cpus)) < len(cpus):
        raise ConfigError(f"cpu_list is {cpus!r}; it has to be numbers of CPUs, each once, such as (0, 2, 3)")
    if threads is not None and threads > len(cpus):
        raise ConfigError(
            f"threads is {threads}, but cpu_list has {len(cpus)} CPUs, one for each thread; list more of them, or ask for fewer "
            f"threads"
        )
    return threads or len(cpus), "as asked" if threads else "one for each CPU of cpu_list"


def _longest(options: EngineOptions, model: ModelFacts) -> int:
    """The context to aim for, before memory has its say."""
    if options.max_model_len is None:
        return model.max_position_embeddings
    if options.max_model_len > model.max_position_embeddings:
        raise ConfigError(
            f"max_model_len is {options.max_model_len}, but the model was made for {model.max_position_embeddings} tokens; "
            f"ask for at most that"
        )
    return options.max_model_len


def _kv_budget(longest: int, seqs: int, batched: int, model: ModelFacts, machine: MachineFacts) -> tuple[int, str]:
    """A quarter of what is free after loading, within bounds, and never more than all sequences could use."""
    free = int(machine.available_memory * (1 - HEADROOM)) - model.memory_bytes
    share = min(max(int(free * KV_SHARE), MIN_KV_BYTES), MAX_KV_BYTES)
    all_full = seqs * model.kv_bytes(longest, batched)
    if all_full <= share:
        return all_full, f"{seqs} sequences of {longest} tokens need no more"
    return share, f"{KV_SHARE:.0%} of the memory left after loading, from {MIN_KV_BYTES // MIB} to {MAX_KV_BYTES // MIB} MiB"


def _max_model_len(
    options: EngineOptions,
    model: ModelFacts,
    longest: int,
    budget: int,
    batched: int,
    reasons: list[tuple[str, str, str]],
    warnings: list[str],
) -> int:
    held = model.kv_tokens(budget, longest, batched)
    if held == 0:
        raise ConfigError(
            f"kv_cache_memory_bytes is {budget}, too little for a single token; this model needs {model.kv_bytes(1, 1)} bytes "
            f"for its smallest unit and {model.kv_bytes(longest, batched)} for a whole context of {longest}"
        )
    if options.max_model_len is not None:
        reasons.append(("max_model_len", str(longest), "as asked"))
        if held < longest:
            warnings.append(
                f"the KV cache ({budget} bytes) holds {held} tokens of one request, less than max_model_len {longest}: longer "
                f"requests will be refused; {model.kv_bytes(longest, batched)} bytes would hold them"
            )
        return longest
    why = "what the model was made for" if held == longest else f"what the KV cache ({budget} bytes) holds"
    reasons.append(("max_model_len", str(held), why))
    return held
