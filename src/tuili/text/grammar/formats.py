"""Formats that llguidance takes more loosely than validators do: seconds from 00 to 59 only, a capital Z."""

import json
from typing import Any

_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_DAY = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
PATTERNS = {"time": f"^{_TIME}$", "date-time": f"^[1-9][0-9]{{3}}-({_DAY})T{_TIME}$"}

#: What stands below these keywords are values, not schemas.
_VALUES = ("const", "enum", "default", "examples")


def with_strict_formats(schema: str) -> str:
    """The schema with ``format`` time and date-time as patterns. Raises ValueError when it is not JSON."""
    if not any(f'"{name}"' in schema for name in PATTERNS):
        return schema
    return json.dumps(_strict(json.loads(schema)))


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: value if key in _VALUES else _strict(value) for key, value in schema.items()}
    name = strict.get("format")
    if isinstance(name, str) and name in PATTERNS and "pattern" not in strict:
        del strict["format"]
        strict["pattern"] = PATTERNS[name]
    return strict
