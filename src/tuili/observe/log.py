"""Logging: one line an event, as text for people or as JSON for machines, on standard error.

Everything logs through the standard library (``logging.getLogger(__name__)``), so that libraries join in. Fields are passed as
``extra={"fields": {...}}``. Prompts, answers, headers, query strings and keys are never logged.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")

#: Control characters that would let one event look like several, or move a terminal's cursor.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))}


def configure_logging(*, level: str = "info", format: LogFormat = "text", stream: TextIO | None = None) -> None:
    """Sends the log of this process to ``stream`` (standard error by default). Called once, by a program's entry point."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


class TextFormatter(logging.Formatter):
    """``19:20:01.123 info  message  key=value``; the date is added to warnings and errors."""

    def format(self, record: logging.LogRecord) -> str:
        time = _time(record).astimezone()
        form = "%H:%M:%S" if record.levelno < logging.WARNING else "%Y-%m-%d %H:%M:%S"
        line = f"{time.strftime(form)}.{time.microsecond // 1000:03d} {record.levelname.lower():7} {record.getMessage()}"
        for name, value in _fields(record).items():
            line += f"  {name}={value}"
        line = line.translate(_CONTROL)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One object a line: time (ISO 8601, UTC), level, logger, message, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False, default=str)
