"""Chat messages as templates expect them: plain copies, nothing null, arguments as objects."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tuili.errors import InvalidRequest

#: Some templates write ``<|role|>``: any other role could forge a control token.
ROLES = frozenset(["system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "observation"])

MAX_DEPTH = 64


def normalise(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of ``messages`` in which null keys are absent, content is text or a list of parts ("" when absent), and tool
    arguments given as JSON text are objects. Raises InvalidRequest for what is not a message."""
    return [_message(message, index) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} is a {type(message).__name__}; it has to be an object", field="messages")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role is {role!r}; it has to be one of: {', '.join(sorted(ROLES))}", field="messages")
    clean = {key: value for key, value in message.items() if value is not None and (key != "tool_calls" or value)}
    content = clean.setdefault("content", "")
    if not isinstance(content, str | list):
        raise InvalidRequest(f"{where}.content has to be text or a list of parts", field="messages")
    if isinstance(content, list):
        _check_parts(cast(list[Any], content), where)
    if "tool_calls" in clean:
        clean["tool_calls"] = [_tool_call(call, where) for call in _list_of(clean["tool_calls"], f"{where}.tool_calls")]
    return clean


def _check_parts(parts: list[Any], where: str) -> None:
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequest(
                f"{where}.content has a part of type {kind!r}; this model reads text parts only", field="messages"
            )


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where}.tool_calls needs objects with function.name", field="messages")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Any:
    """An object where one was meant; text that is not JSON stays text."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        value = json.loads(arguments) if arguments.strip() else None
    except (ValueError, RecursionError):
        return arguments
    return {} if value is None else value


def join_text_parts(messages: list[dict[str, Any]]) -> None:
    """For templates that know content as text only: parts become lines of one text."""
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = "\n".join(part["text"] for part in message["content"])


def arguments_as_text(messages: list[dict[str, Any]]) -> None:
    """For templates that know tool arguments as text only."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            function = call["function"]
            if not isinstance(function["arguments"], str):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)


def map_text(value: Any, change: Callable[[str], str], depth: int = 0) -> tuple[Any, int]:
    """A plain copy of JSON-like data with every text, keys too, passed through ``change``; and its size in characters and items.

    Raises InvalidRequest for anything that is not JSON, or nested too deep.
    """
    if isinstance(value, str):
        return change(value), len(value)
    if value is None or isinstance(value, bool | int | float):
        return value, 1
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"messages and tools may be nested {MAX_DEPTH} levels deep, not more", field="messages")
    if isinstance(value, Mapping):
        mapped = [(map_text(k, change, depth + 1), map_text(v, change, depth + 1)) for k, v in value.items()]
        return {k[0]: v[0] for k, v in mapped}, 1 + sum(k[1] + v[1] for k, v in mapped)
    if isinstance(value, Sequence):
        items = [map_text(item, change, depth + 1) for item in value]
        return [item[0] for item in items], 1 + sum(item[1] for item in items)
    raise InvalidRequest(f"messages and tools hold a {type(value).__name__}; only JSON data can be rendered", field="messages")


def _list_of(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{where} has to be a list", field="messages")
    return list(cast(Sequence[Any], value))
