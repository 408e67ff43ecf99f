"""OpenAI's routes. Each reads its body, makes requests for the engine, and answers whole or as a stream."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tuili import __version__
from tuili.dialects.openai import models
from tuili.dialects.openai.chat import ChatReply, chat_messages, template_arguments
from tuili.dialects.openai.completions import CompletionReply, Prompt, prompts
from tuili.dialects.openai.params import cache_salt, chat_params, completion_params, priority
from tuili.dialects.openai.reply import Reply, ReplyHeader
from tuili.dialects.openai.schema import Body, ChatCompletionBody, CompletionBody, GenerationBody, ignored_fields, parse_body
from tuili.dialects.openai.structured import structured_outputs
from tuili.dialects.openai.wire import Model, encode
from tuili.engine.build import LoadedEngine
from tuili.errors import InvalidRequest, TemplateRefused
from tuili.server.body import read_json
from tuili.server.generation import Generation
from tuili.server.service import Service
from tuili.server.stream import EventStream, run_to_end
from tuili.text.grammar.compiler import Grammar
from tuili.types import GenerateRequest, SamplingParams

log = logging.getLogger(__name__)

#: Longer texts are tokenised in a thread, so that other streams keep flowing. In characters; about 1 ms of work.
LONG_TEXT = 4096

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as all the steps of its answer need it."""

    request: Request
    service: Service
    loaded: LoadedEngine
    header: ReplyHeader
    warnings: dict[str, str]


async def list_models(request: Request) -> Response:
    """The served model, with its context length."""
    service: Service = request.app.state.service
    return _json(models.model_list([_model(service, service.engine())]))


async def retrieve_model(request: Request) -> Response:
    """The served model by its name; 404 for any other."""
    service: Service = request.app.state.service
    loaded = service.engine()
    service.check_model(request.path_params["model"])
    return _json(_model(service, loaded))


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation through the model's chat template; streamed on request."""
    body, call = await _begin(request, ChatCompletionBody, "chatcmpl")
    params = chat_params(body, call.loaded.resolved.max_model_len)
    prompt_ids = await _in_thread(lambda: _render(call.loaded, body))
    grammar = await _compile(call, body)
    try:
        generation = _start(call, [prompt_ids], params, body, grammar)
    except InvalidRequest as error:
        if error.field == "prompt":
            error.field = "messages"  # what the client sent; the prompt is our rendering of it
        raise
    reply = ChatReply(body, call.header, call.loaded.tokenizer.token_bytes)
    return await _answer(call, generation, reply, in_stream=bool(body.stream))


async def create_completion(request: Request) -> Response:
    """Continue text or token ids, without a template; streamed on request."""
    body, call = await _begin(request, CompletionBody, "cmpl")
    params = completion_params(body, call.loaded.resolved.max_model_len)
    given = prompts(body)
    add_bos = False if body.add_special_tokens is False else None
    prompt_ids = [await _encode(call.loaded, prompt, add_bos) for prompt in given]
    texts = [_echo_text(call.loaded, prompt) for prompt in given] if body.echo else [""] * len(given)
    grammar = await _compile(call, body)
    generation = _start(call, prompt_ids, params, body, grammar)
    reply = CompletionReply(body, call.header, call.loaded.tokenizer.token_bytes, prompt_ids, texts)
    return await _answer(call, generation, reply, in_stream=bool(body.stream))


async def _begin(request: Request, kind: type[Body], id_prefix: str) -> tuple[Body, Call]:
    service: Service = request.app.state.service
    loaded = service.engine()
    body = parse_body(await read_json(request), kind)
    service.check_model(body.model)
    header = ReplyHeader(
        f"{id_prefix}-{uuid.uuid4().hex}",
        int(time.time()),
        service.model_name,
        f"tuili-{__version__}",
    )
    return body, Call(request, service, loaded, header, _warnings(request, body))


def _warnings(request: Request, body: GenerationBody) -> dict[str, str]:
    """Says in the log and in a reply header which fields had no effect. Names come from outside: bounded, printable ASCII."""
    names = [name[:80].encode("ascii", "backslashreplace").decode() for name in ignored_fields(body)[:10]]
    if not names:
        return {}
    said = "ignored fields: " + ", ".join(name if name.isprintable() else repr(name) for name in names)
    log.warning(said, extra={"fields": {"id": request.state.request_id}})
    return {"X-Tuili-Warning": said}


def _render(loaded: LoadedEngine, body: ChatCompletionBody) -> Sequence[int]:
    if loaded.chat_template is None:
        raise TemplateRefused(loaded.chat_template_error or "this model has no chat template", field="messages")
    segments = loaded.chat_template.render(
        chat_messages(body),
        add_generation_prompt=body.add_generation_prompt is not False,
        **template_arguments(body),
    )
    return loaded.tokenizer.encode_segments(segments)


async def _encode(loaded: LoadedEngine, prompt: Prompt, add_bos: bool | None) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    if len(prompt) < LONG_TEXT:
        return loaded.tokenizer.encode(prompt, add_bos=add_bos)
    return await _in_thread(lambda: loaded.tokenizer.encode(prompt, add_bos=add_bos))


def _echo_text(loaded: LoadedEngine, prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    size = loaded.tokenizer.vocab_size
    strange = next((token_id for token_id in prompt if not 0 <= token_id < size), None)
    if strange is not None:
        raise InvalidRequest(f"prompt has the token id {strange}; ids of this model are 0 to {size - 1}", field="prompt")
    return loaded.tokenizer.decode(prompt, skip_special_tokens=False)


async def _in_thread(function: Callable[[], T]) -> T:
    return await asyncio.to_thread(function)


async def _compile(call: Call, body: GenerationBody) -> Grammar | None:
    asked = structured_outputs(body)
    if asked is None:
        return None
    field, outputs = asked
    try:
        return await call.loaded.grammars.compile_async(outputs.spec)
    except InvalidRequest as error:
        error.field = field
        raise


def _start(
    call: Call,
    prompt_ids: Sequence[Sequence[int]],
    params: SamplingParams,
    body: GenerationBody,
    grammar: Grammar | None,
) -> Generation:
    tenant = None if call.service.options.share_prefix else getattr(call.request.state, "tenant", None)
    now, order, salt = time.monotonic(), priority(body), cache_salt(body)
    requests = [
        GenerateRequest(f"{call.header.id}-{index}", tuple(ids), params, order, now, tenant, salt)
        for index, ids in enumerate(prompt_ids)
    ]
    generation = Generation.start(call.loaded.client, requests, call.service.running, grammar)
    call.request.state.generation = generation  # for the access log
    return generation


async def _answer(call: Call, generation: Generation, reply: Reply, *, in_stream: bool) -> Response:
    if in_stream:
        return EventStream(generation, reply, call.warnings)
    if not await run_to_end(generation, reply, call.request.receive):
        return Response(status_code=499)
    return _json(reply.whole(), call.warnings)


def _model(service: Service, loaded: LoadedEngine) -> Model:
    return models.model(service.model_name, service.created, loaded.resolved.max_model_len)


def _json(value: object, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(value), 200, headers, "application/json")
