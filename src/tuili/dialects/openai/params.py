"""OpenAI's fields -> SamplingParams, and the counts back again."""

from collections.abc import Iterable
from typing import TypeVar

from tuili.dialects.openai.schema import ChatCompletionBody, CompletionBody, GenerationBody
from tuili.dialects.openai.structured import structured_outputs
from tuili.dialects.openai.wire import PromptTokensDetails, Usage
from tuili.errors import InvalidRequest
from tuili.types import MAX_LOGPROBS, SamplingParams
from tuili.types import Usage as TokenCounts

T = TypeVar("T")

#: What /v1/completions generates when nothing is said, as OpenAI documents it.
DEFAULT_COMPLETION_TOKENS = 16

_INT32_MAX = 2**31 - 1


def chat_params(body: ChatCompletionBody, max_model_len: int) -> SamplingParams:
    """``max_completion_tokens`` wins over ``max_tokens``; neither means up to the context. Raises InvalidRequest."""
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest(
            "top_logprobs goes with logprobs: true only; set it, or leave top_logprobs out", field="top_logprobs"
        )
    _check_count("top_logprobs", body.top_logprobs)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = _cap(name, max_tokens, max_model_len)
    return _params(body, max_tokens, logprobs=logprobs, prompt_logprobs=body.prompt_logprobs)


def completion_params(body: CompletionBody, max_model_len: int) -> SamplingParams:
    """``echo`` with ``logprobs`` asks for those of the prompt too. Raises InvalidRequest."""
    max_tokens = _cap("max_tokens", _or(body.max_tokens, DEFAULT_COMPLETION_TOKENS), max_model_len)
    _check_count("logprobs", body.logprobs)
    of_prompt = [count for count in (body.prompt_logprobs, body.logprobs if body.echo else None) if count is not None]
    return _params(
        body,
        max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=max(of_prompt) if of_prompt else None,
    )


def _params(
    body: GenerationBody,
    max_tokens: int | None,
    *,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    _check_count("prompt_logprobs", body.prompt_logprobs)
    structured = structured_outputs(body)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return SamplingParams(
        n=_or(body.n, 1),
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=min(_or(body.top_k, 0), _INT32_MAX),
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=_logit_bias(body.logit_bias),
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        seed=body.seed,
        max_tokens=max_tokens,
        min_tokens=_or(body.min_tokens, 0),
        stop=stop,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=_or(body.skip_special_tokens, True),
        structured_outputs=structured[1] if structured else None,
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _cap(name: str, max_tokens: int | None, max_model_len: int) -> int | None:
    """No answer is longer than the context: a larger limit is no error, it just never bites."""
    if max_tokens is None:
        return None
    if max_tokens < 0:
        raise InvalidRequest(f"{name} is {max_tokens}; it has to be 0 or more", field=name)
    return min(max_tokens, max_model_len)


def _check_count(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise InvalidRequest(f"{name} is {value}; it has to be from 0 to {MAX_LOGPROBS}", field=name)


def _logit_bias(biases: dict[str, float] | None) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, bias in (biases or {}).items():
        try:
            result[int(key)] = bias
        except ValueError:
            raise InvalidRequest(
                f'logit_bias has the key {key[:40]!r}; keys are token ids, such as "50"', field="logit_bias"
            ) from None
    return result


def priority(body: GenerationBody) -> int:
    """Lower is served first. Raises InvalidRequest."""
    value = _or(body.priority, 0)
    if abs(value) > _INT32_MAX:
        raise InvalidRequest(f"priority is {value}; it has to be a 32-bit integer", field="priority")
    return value


def cache_salt(body: GenerationBody) -> str | None:
    """Requests with different salts never share cached tokens. Raises InvalidRequest for an empty one, as vLLM does."""
    if body.cache_salt == "":
        raise InvalidRequest("cache_salt is empty; it has to be a non-empty text, or left out", field="cache_salt")
    return body.cache_salt


def usage(counts: Iterable[TokenCounts]) -> Usage:
    """The sum over the prompts of one call."""
    prompt = completion = cached = 0
    for count in counts:
        prompt += count.prompt_tokens
        completion += count.completion_tokens
        cached += count.cached_tokens
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))
