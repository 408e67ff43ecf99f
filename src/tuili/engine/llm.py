"""Offline generation without a server: ``LLM(model).generate(prompts)``."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from tuili.config.options import EngineOptions, SpeculativeConfig
from tuili.engine.build import LoadedEngine, build_engine
from tuili.engine.output import merge
from tuili.errors import ConfigError, InvalidRequest, ModelNotFound, TemplateRefused
from tuili.observe.profile import Profile
from tuili.types import FinishReason, GenerateRequest, RequestOutput, SamplingParams, TokenLogprob, Usage

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sequence. ``stop_reason``: the stop string or stop token id that ended it, None otherwise."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What became of one prompt: ``params.n`` completions. ``error`` goes with finish_reason "error"."""

    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.outputs[0].text


class LLM:
    """A model in this process. ``model``: path of a model file; ``options``: fields of EngineOptions.

    Not thread-safe: one call at a time.
    """

    def __init__(self, model: str | Path | LoadedEngine, **options: Any) -> None:
        self._numbers = itertools.count()
        if isinstance(model, LoadedEngine):
            self._loaded = model
            return
        unknown = sorted(options.keys() - {field.name for field in fields(EngineOptions)})
        if unknown:
            known = ", ".join(field.name for field in fields(EngineOptions))
            raise ConfigError(f"LLM has no option {', '.join(unknown)}; known are {known}")
        if isinstance(speculative := options.get("speculative_config"), Mapping):
            options["speculative_config"] = SpeculativeConfig.read(speculative)
        path = Path(model)
        if not path.is_file():
            raise ModelNotFound(f"there is no model file {path}; give the path of a .gguf file (tuili pull fetches models)")
        self._loaded = build_engine(path, EngineOptions(**options))

    @property
    def loaded(self) -> LoadedEngine:
        return self._loaded

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[GenerationResult]:
        """Complete each prompt: text, or token ids. ``params``: for all of them, or one each.

        Raises InvalidRequest or ContextTooLong, before anything runs, when one of the requests cannot be served.
        """
        asked = [prompts] if isinstance(prompts, str) else list(prompts)
        tokenizer = self._loaded.tokenizer
        for number, prompt in enumerate(asked):
            if not isinstance(prompt, Sequence):
                raise InvalidRequest(
                    f"prompts[{number}] is {prompt!r}; each has to be text, or a list of token ids: [[1, 2]] is one prompt"
                )
        token_ids = [tuple(tokenizer.encode(p)) if isinstance(p, str) else tuple(p) for p in asked]
        return self._run(asked, token_ids, _one_each(params, len(asked)))

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template_arguments: Any,
    ) -> list[GenerationResult]:
        """Answer a conversation (a list of messages), or each of several. Raises TemplateRefused when the model cannot chat."""
        template = self._loaded.chat_template
        if template is None:
            raise TemplateRefused(self._loaded.chat_template_error or "this model has no chat template; use generate()")
        several: Sequence[Sequence[Message]] = (
            [conversations] if conversations and isinstance(conversations[0], Mapping) else conversations  # type: ignore[list-item]
        )
        rendered = [template.render(messages, **template_arguments) for messages in several]
        prompts = ["".join(segment.text for segment in segments) for segments in rendered]
        token_ids = [tuple(self._loaded.tokenizer.encode_segments(segments)) for segments in rendered]
        return self._run(prompts, token_ids, _one_each(params, len(several)))

    def profile(self) -> Profile:
        """Where the time of the steps so far went, by op; ``print`` it for a table. Readable after ``close`` too.

        Raises ConfigError for an LLM that was not made with ``profile=True``.
        """
        profile = self._loaded.profile()
        if profile is None:
            raise ConfigError("this LLM keeps no times; make it with LLM(model, profile=True)")
        return profile

    def close(self) -> None:
        self._loaded.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(
        self, prompts: Sequence[Prompt], token_ids: Sequence[tuple[int, ...]], params: Sequence[SamplingParams]
    ) -> list[GenerationResult]:
        requests = [
            GenerateRequest(f"offline-{next(self._numbers)}", ids, chosen, arrival=time.monotonic())
            for ids, chosen in zip(token_ids, params, strict=True)
        ]
        outputs: dict[str, list[RequestOutput]] = {request.request_id: [] for request in requests}
        for output in run_offline(self._loaded, requests):
            outputs[output.request_id].append(output)
        return [
            _result(prompt, request, merge(outputs[request.request_id]))
            for prompt, request in zip(prompts, requests, strict=True)
        ]


def run_offline(loaded: LoadedEngine, requests: Sequence[GenerateRequest]) -> Iterator[RequestOutput]:
    """Run requests to their end in this thread, yielding outputs as they come. Raises what ``RequestChecker.check`` raises,
    before any of them runs. Closing the iterator aborts what is left."""
    engine, processor = loaded.engine, loaded.processor
    asked = [request.params.structured_outputs for request in requests]
    grammars = [loaded.grammars.compile(outputs.spec) if outputs else None for outputs in asked]
    checked = [
        loaded.checker.check(request, number, grammar)
        for number, (request, grammar) in enumerate(zip(requests, grammars, strict=True))
    ]
    for request in checked:
        processor.add(request.source)
        engine.add(request)
    try:
        while engine.has_work:
            results, stopped = processor.process(engine.step())
            for request_id, index in stopped:
                engine.abort(request_id, index)
            yield from results
    finally:
        for request in requests:
            engine.abort(request.request_id)
            processor.end(request.request_id, "abort", time.monotonic())


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
        raise InvalidRequest(f"params is {params!r}; it has to be a SamplingParams, or a list with one for each prompt")
    if len(params) != count:
        raise InvalidRequest(f"{count} prompts came with {len(params)} sampling parameters; give one for all, or one each")
    return params


def _result(prompt: Prompt, request: GenerateRequest, output: RequestOutput) -> GenerationResult:
    completions: list[Completion] = []
    for delta in sorted(output.deltas, key=lambda delta: delta.index):
        assert delta.finish_reason is not None
        completions.append(
            Completion(delta.index, delta.text, delta.token_ids, delta.logprobs, delta.finish_reason, delta.stop_reason)
        )
    return GenerationResult(
        prompt, request.prompt_token_ids, tuple(completions), output.usage, output.prompt_logprobs, output.error
    )
