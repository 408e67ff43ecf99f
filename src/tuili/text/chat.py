"""Chat templates: a conversation becomes the text of a prompt, of which it is known what the user typed."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError

from tuili.errors import InvalidRequest, TemplateRefused
from tuili.text import messages as chat_messages
from tuili.text.meter import Meter, TooMuchWork
from tuili.text.sandbox import MeteredContext, MeteredEnvironment, Refusal
from tuili.text.tokenizer.base import Segment, Tokenizer
from tuili.text.tokenizer.control import ControlTokens

RESERVED = frozenset(["messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "chat_template", "tokenize"])
MAX_OUTPUT = 16_000_000  # characters


def chat_template_of(tokenizer: Tokenizer, name: str | None = None) -> "ChatTemplate":
    """The model's chat template: its default one, or the one of that name. Raises TemplateRefused when there is none."""
    if not tokenizer.chat_templates:
        raise TemplateRefused("this model has no chat template; use /v1/completions, or a model made for chat", field="messages")
    source = tokenizer.chat_templates.get(name or "default")
    if source is None:
        known = ", ".join(sorted(tokenizer.chat_templates))
        raise TemplateRefused(f"this model has no chat template {name or 'default'!r}; it has: {known}", field="messages")
    texts = [tokenizer.token_text(i) if i is not None else "" for i in (tokenizer.bos_token_id, tokenizer.eos_token_id)]
    return ChatTemplate(source, bos_token=texts[0], eos_token=texts[1], control=tokenizer.control)


class ChatTemplate:
    """A Jinja chat template from a model file, run in a sandbox with limits on time and memory.

    Rendering takes well under a millisecond for ordinary conversations and is stopped after 3 seconds: a server renders long
    conversations outside of its event loop. May be used from any thread.

    Raises TemplateRefused when the template is broken.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "", control: ControlTokens | None = None) -> None:
        environment = MeteredEnvironment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateRefused(f"the model's chat template is broken: {error.message} (line {error.lineno})") from error
        except (TemplateError, TooMuchWork, RecursionError, MemoryError, ValueError, SyntaxError) as error:
            raise TemplateRefused(f"the model's chat template cannot be used: {error}") from error
        self._control = control or ControlTokens({})
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._reads_parts = _loops_over_content(tree)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[Segment]:
        """The prompt, for ``Tokenizer.encode_segments``. Other keyword arguments are the template's own variables.

        Null or absent content is empty text; tool arguments in JSON text are given to the template as objects, and as text if it
        fails with those; text parts are joined by line ends unless the template reads parts. Whatever part of the conversation
        could be taken for a control token comes as a segment that is not the template's.

        Raises TemplateRefused with the template's words when it refuses the conversation, or fails, or works too long.
        """
        if reserved := RESERVED & kwargs.keys():
            raise InvalidRequest(
                f"chat_template_kwargs may not set {', '.join(sorted(reserved))}; give them as fields of the request, "
                "templates cannot come with a request",
                field="chat_template_kwargs",
            )
        clean = chat_messages.normalise(messages)
        if not self._reads_parts:
            chat_messages.join_text_parts(clean)
        variables: dict[str, Any] = {"messages": clean, "tools": list(tools) if tools else None, **kwargs}
        try:
            return self._render(variables, add_generation_prompt)
        except TemplateRefused as error:
            if isinstance(error.__cause__, Refusal | TooMuchWork) or not any("tool_calls" in message for message in clean):
                raise
        chat_messages.arguments_as_text(clean)
        return self._render(variables, add_generation_prompt)

    def _render(self, variables: dict[str, Any], add_generation_prompt: bool) -> list[Segment]:
        mark = _Mark(self._control)
        marked, size = chat_messages.map_text(variables, mark)
        context = self._template.new_context({**marked, **self._tokens, "add_generation_prompt": add_generation_prompt})
        assert isinstance(context, MeteredContext)
        context.meter = Meter(size, len(variables["messages"]))
        try:
            text = "".join(_limited(self._template.root_render_func(context)))
        except Refusal as error:
            raise TemplateRefused(
                f"the model's chat template refuses this conversation: {error.message}", field="messages"
            ) from error
        except TooMuchWork as error:
            raise TemplateRefused(f"the model's chat template was stopped: {error}", field="messages") from error
        except SecurityError as error:
            raise TemplateRefused(f"the model's chat template does what it may not: {error}", field="messages") from error
        except Exception as error:  # whatever a template does wrong is the template's fault, not ours
            raise TemplateRefused(
                f"the model's chat template failed on this conversation: {type(error).__name__}: {error}", field="messages"
            ) from error
        return list(mark.segments(text))


class _Mark:
    """Put a mark, random digits, behind each character of the user's that a control token must not contain.

    Digits survive what templates do to text (trim, case, JSON, concatenation), and nobody can type a mark that is drawn anew for
    each rendering.
    """

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._mark = str(secrets.randbelow(9 * 10**23) + 10**23)
        self._used = False

    def __call__(self, text: str) -> str:
        breaks = self._control.breaks(text)
        if not breaks:
            return text
        self._used = True
        cuts = [0, *(position + 1 for position in breaks), len(text)]
        return self._mark.join(text[start:end] for start, end in pairwise(cuts))

    def segments(self, text: str) -> Iterator[Segment]:
        """``text`` without the marks; the character before each is the user's."""
        if not self._used:
            yield Segment(text, True)
            return
        *pieces, last = text.split(self._mark)
        for piece in pieces:
            if len(piece) > 1:
                yield Segment(piece[:-1], True)
            yield Segment(piece[-1:], False)
        if last:
            yield Segment(last, True)


def _limited(chunks: Iterator[str]) -> Iterator[str]:
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > MAX_OUTPUT:
            raise TooMuchWork(f"it writes more than {MAX_OUTPUT} characters")
        yield chunk


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether the template knows content as a list of parts."""
    looped = [loop.iter.node for loop in tree.find_all(nodes.For) if isinstance(loop.iter, nodes.Filter)]  # inside the meter's
    attributes = [node.attr for node in looped if isinstance(node, nodes.Getattr)]
    keys = [node.arg.value for node in looped if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const)]
    return "content" in attributes or "content" in keys
