"""Log lines: one line an event, for people and for machines."""

import io
import json
import logging

import pytest

from tuili.observe.log import JsonFormatter, TextFormatter


def line(formatter: logging.Formatter, message: str, **fields: object) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("tuili.test")
    logger.addHandler(handler)
    logger.info(message, extra={"fields": fields})
    return stream.getvalue()


def test_text_has_the_fields_after_the_message() -> None:
    assert line(TextFormatter(), "loaded", seconds=1.5, model="m").endswith("info    loaded  seconds=1.5  model=m\n")


@pytest.mark.parametrize("hostile", ["a\nfake line", "a\x1b[2J", "a\r\x9b"])
def test_one_event_is_one_line_without_control_characters(hostile: str) -> None:
    text = line(TextFormatter(), "x", name=hostile)
    assert text.count("\n") == 1 and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text.rstrip("\n"))
    assert len(line(JsonFormatter(), hostile).splitlines()) == 1


def test_json_is_one_object() -> None:
    event = json.loads(line(JsonFormatter(), "loaded", seconds=1.5))
    assert (event["message"], event["level"], event["logger"], event["seconds"]) == ("loaded", "info", "tuili.test", 1.5)
    assert event["time"].endswith("+00:00")
