"""From a model file and options to an engine that is ready to serve: the one place that knows all the parts."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tuili.backends.base import Backend, Executable, Limits, Loading, PackStore
from tuili.backends.select import select_backend
from tuili.cache.manager import GroupSpec, KVManager
from tuili.cache.plan import GroupShape, plan_kv, sequence_bytes, tokens_held
from tuili.config.machine import MachineFacts, read_machine
from tuili.config.options import DEFAULT_PACK_CACHE_SIZE, EngineOptions
from tuili.config.resolve import ModelFacts, ResolvedOptions, choose_threads, resolve
from tuili.config.sources import cache_dir, pack_dir
from tuili.engine.admission import RequestChecker
from tuili.engine.batch import BatchBuilder
from tuili.engine.client import EngineClient
from tuili.engine.engine import Engine
from tuili.engine.output import OutputProcessor
from tuili.engine.runner import Runner
from tuili.engine.scheduler import Scheduler, SchedulerLimits
from tuili.errors import ConfigError, TemplateRefused
from tuili.models.load import ModelDescription, bind, read_model
from tuili.observe.metrics import EngineMetrics
from tuili.observe.profile import Profile
from tuili.observe.progress import LoadProgress, say_nothing
from tuili.program.program import BLOCK_SIZE, Program
from tuili.text.grammar.compiler import GrammarCompiler
from tuili.text.tokenizer.base import Tokenizer
from tuili.text.tokenizer.load import load_tokenizer
from tuili.weights.gguf import GgufSource, open_gguf

if TYPE_CHECKING:
    from tuili.text.chat import ChatTemplate

#: From this many tokens on a tokenizer takes hundreds of megabytes while it is built: then it comes before the weights, not
#: beside them, so that the two peaks do not add up.
LARGE_VOCABULARY = 200_000


@dataclass(frozen=True)
class LoadedEngine:
    """A model that can be talked to.

    ``client`` is for event loops, ``engine`` (with ``checker`` and ``processor``) for a caller that steps it itself: use one or
    the other.
    ``report``: what the backend says about itself. ``num_blocks``: KV blocks of each state group.
    """

    client: EngineClient
    engine: Engine
    checker: RequestChecker
    processor: OutputProcessor
    tokenizer: Tokenizer
    description: ModelDescription | None
    resolved: ResolvedOptions
    report: Mapping[str, str]
    num_blocks: tuple[int, ...]
    grammars: GrammarCompiler

    @property
    def chat_template(self) -> "ChatTemplate | None":
        """None when the model has none that works; ``chat_template_error`` then says so in words."""
        return self._template[0]

    @property
    def chat_template_error(self) -> str | None:
        return self._template[1]

    @cached_property
    def _template(self) -> "tuple[ChatTemplate | None, str | None]":
        """Made when first asked for: completing text needs none, nor the library that reads them. A template that is missing or
        broken does not keep the model from completing text."""
        from tuili.text.chat import chat_template_of

        try:
            return chat_template_of(self.tokenizer), None
        except TemplateRefused as error:
            return None, str(error)

    @property
    def metrics(self) -> EngineMetrics:
        return self.client.metrics

    def profile(self) -> Profile | None:
        """Times by op of the steps so far, where ``EngineOptions.profile`` asked for them; readable after ``close`` too."""
        return self.engine.profile()

    def close(self) -> None:
        """Abort what is live, stop the engine's thread, give the memory back."""
        self.grammars.close()
        self.client.shutdown()


def build_engine(
    path: Path, options: EngineOptions, *, machine: MachineFacts | None = None, progress: LoadProgress = say_nothing
) -> LoadedEngine:
    """Load the model file at ``path``; ``progress`` is told how far it got, where that takes long.

    Raises ModelFileError and NotSupported for the file, ConfigError for the options, BackendError for what the backend lacks.
    """
    machine = machine or read_machine()
    threads, _ = choose_threads(options, machine)
    backend, choice = select_backend(
        options.backend, isa=options.isa, threads=threads, cpus=options.cpu_list, profile=options.profile
    )
    if options.pack_cache and backend.name != "cpu":
        raise ConfigError(f"backend {backend.name} packs no weights, so there are none to keep; leave pack_cache out")
    source = open_gguf(path)
    try:
        description = read_model(source, max_model_len=options.max_model_len)
        groups = group_shapes(description.program, backend)
        resolved = resolve(options, model_facts(description, groups), machine)
        limits = plan_limits(groups, resolved)
        # The tokenizer is built in Python, the weights are packed without the GIL: side by side they start sooner.
        with ThreadPoolExecutor(1, "tuili-tokenizer") as beside:
            loading = beside.submit(load_tokenizer, source.metadata, cache_dir() / "tokenizers")
            if description.spec.vocab_size >= LARGE_VOCABULARY:
                loading.result()
                trim_heap()
            packs = pack_store(description, source, options) if backend.name == "cpu" else None
            executable = bind(description, source, backend, limits, Loading(packs, progress))
            tokenizer = loading.result()
    except BaseException:
        source.close()
        raise
    return assemble(
        executable,
        description.program,
        limits,
        resolved,
        tokenizer,
        description=description,
        report={"choice": choice, **executable.description},
    )


def compile_model(path: Path, options: EngineOptions, progress: LoadProgress = say_nothing) -> tuple[Path, bool]:
    """Pack the weights of a model file and keep them for later starts: the pack, and whether it had to be made.

    Raises CacheError when it cannot be kept, and what ``build_engine`` raises.
    """
    from tuili.backends.cpu.executor import CpuBackend

    threads, _ = choose_threads(options, read_machine())
    backend = CpuBackend(options.isa, threads)
    source = open_gguf(path)
    try:
        description = read_model(source)
        loading = Loading(pack_store(description, source, options), progress)
        return backend.compile(description.program, description.weights(source), loading)
    finally:
        source.close()


def pack_store(description: ModelDescription, source: GgufSource, options: EngineOptions) -> PackStore:
    """Where the packed weights of a model file are kept."""
    return PackStore(
        folder=pack_dir(),
        content=source.content(),
        recipe=description.recipe,
        write=options.pack_cache,
        max_bytes=options.pack_cache_size or DEFAULT_PACK_CACHE_SIZE,
    )


def trim_heap() -> None:
    """Give the pages that the allocator keeps free back to the system, where the C library can."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def group_shapes(program: Program, backend: Backend) -> list[GroupShape]:
    """What a block costs in each state group on that backend."""
    costs = backend.kv_bytes_per_block(program)
    return [GroupShape(cost, group.window) for cost, group in zip(costs, program.state_groups(), strict=True)]


def model_facts(description: ModelDescription, groups: list[GroupShape]) -> ModelFacts:
    return ModelFacts(
        max_position_embeddings=description.spec.max_position_embeddings,
        memory_bytes=description.weight_bytes,
        kv_bytes=lambda tokens, chunk: sequence_bytes(groups, tokens, chunk=chunk, block_size=BLOCK_SIZE),
        kv_tokens=lambda budget, limit, chunk: tokens_held(groups, budget, limit=limit, chunk=chunk, block_size=BLOCK_SIZE),
    )


def plan_limits(groups: list[GroupShape], resolved: ResolvedOptions) -> Limits:
    num_blocks = plan_kv(
        groups,
        budget_bytes=resolved.kv_cache_memory_bytes,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        block_size=BLOCK_SIZE,
    )
    return Limits(resolved.max_model_len, resolved.max_num_seqs, resolved.max_num_batched_tokens, num_blocks)


def assemble(
    executable: Executable,
    program: Program,
    limits: Limits,
    resolved: ResolvedOptions,
    tokenizer: Tokenizer,
    *,
    description: ModelDescription | None = None,
    report: Mapping[str, str] | None = None,
) -> LoadedEngine:
    """The engine around an executable that was made for ``limits``."""
    specs = [GroupSpec(n, group.window) for n, group in zip(limits.num_blocks, program.state_groups(), strict=True)]
    kv = KVManager(specs, BLOCK_SIZE)
    scheduling = SchedulerLimits(limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens)
    speculative = resolved.speculative_config
    builder = BatchBuilder(
        limits,
        max_extra_rows=scheduling.max_prompt_rows + (speculative.max_batch_rows if speculative else 0),
        vocab_size=program.output.width,
        banned_token_ids=[*sorted(tokenizer.unused_token_ids), *range(tokenizer.vocab_size, program.output.width)],
    )
    scheduler = Scheduler(scheduling, kv, prefix_caching=resolved.enable_prefix_caching, speculative=speculative)
    engine = Engine(scheduler, Runner(executable, builder))
    checker = RequestChecker(
        max_model_len=limits.max_model_len,
        kv_capacity=kv.max_tokens_alone,
        num_tokens=min(tokenizer.vocab_size, program.output.width),
        eos_token_ids=tokenizer.eos_token_ids,
    )
    metrics = EngineMetrics()
    processor = OutputProcessor(tokenizer, metrics)
    client = EngineClient(
        engine,
        checker,
        processor,
        metrics,
        max_num_seqs=limits.max_num_seqs,
        max_waiting_requests=resolved.max_waiting_requests,
    )
    return LoadedEngine(
        client,
        engine,
        checker,
        processor,
        tokenizer,
        description,
        resolved,
        report or executable.description,
        limits.num_blocks,
        GrammarCompiler(tokenizer),
    )
