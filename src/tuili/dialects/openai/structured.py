"""The fields that say what form the output has to have: OpenAI's ``response_format``, vLLM's ``structured_outputs`` and the older
``guided_*``."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tuili.dialects.openai.schema import GenerationBody
from tuili.errors import InvalidRequest
from tuili.types import StructuredOutputs

_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
_FORMATS = '"text", "json_object" or "json_schema"'


def structured_outputs(body: GenerationBody) -> tuple[str, StructuredOutputs] | None:
    """The field that asks for a form, and what it asks for; None when any text will do. Raises InvalidRequest."""
    found: list[tuple[str, StructuredOutputs]] = []
    if body.response_format is not None and (wanted := _of_response_format(body.response_format)):
        found.append(("response_format", wanted))
    if body.structured_outputs is not None:
        found.append(("structured_outputs", _of_structured_outputs(body.structured_outputs)))
    for field, name in _GUIDED.items():
        if (value := getattr(body, field)) is not None:
            found.append((field, _make(field, {name: value})))
    if len(found) > 1:
        names = " and ".join(field for field, _ in found)
        raise InvalidRequest(f"{names} both say what form the output has to have; send one of them", field=found[1][0])
    return found[0] if found else None


def _of_response_format(value: Mapping[str, Any]) -> StructuredOutputs | None:
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json_object=True)
    if kind != "json_schema":
        raise InvalidRequest(f"response_format.type is {kind!r}; it has to be {_FORMATS}", field="response_format")
    inner = value.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if not isinstance(schema, Mapping | bool):
        raise InvalidRequest(
            'response_format.json_schema needs a schema: {"name": "answer", "schema": {"type": "object", ...}}',
            field="response_format",
        )
    return _make("response_format", {"json": schema})


def _of_structured_outputs(value: Mapping[str, Any]) -> StructuredOutputs:
    known = [field.name for field in fields(StructuredOutputs)]
    unknown = sorted(name for name, part in value.items() if part is not None and name not in known)
    if unknown:
        raise InvalidRequest(
            f"structured_outputs has {', '.join(unknown)}, which is not supported; use one of {', '.join(known)}",
            field="structured_outputs",
        )
    return _make("structured_outputs", value)


def _make(field: str, parts: Mapping[str, Any]) -> StructuredOutputs:
    try:
        return StructuredOutputs(**parts)
    except InvalidRequest as error:
        raise InvalidRequest(f"{field}: {error}", field=field) from None
