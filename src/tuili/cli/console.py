"""How the command line speaks: plain text, aligned; colour and drawings on a terminal only."""

import json
import sys
from collections.abc import Sequence

import click

from tuili.config.sources import color_allowed


def show_error(message: str) -> None:
    """One clear block on stderr."""
    click.echo(f"{style('error:', fg='red', err=True)} {message}", err=True)


def note(message: str) -> None:
    """Something worth knowing that is not the answer, on stderr."""
    click.echo(style(message, dim=True, err=True), err=True)


def style(text: str, *, fg: str | None = None, bold: bool | None = None, dim: bool | None = None, err: bool = False) -> str:
    """Styled on a terminal, plain where the output is piped or NO_COLOR is set."""
    stream = sys.stderr if err else sys.stdout
    return click.style(text, fg=fg, bold=bold, dim=dim) if color_allowed() and stream.isatty() else text


def show_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns, left-aligned."""
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]
    for index, row in enumerate((headers, *rows)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(style(line, bold=True) if index == 0 else line)


def show_facts(facts: Sequence[tuple[str, str]]) -> None:
    """A name and a value on each line."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{style(name.ljust(width), bold=True)}  {value}")


def size_text(size: int) -> str:
    """Bytes for people, in thousands as disks are sold: ``98 MB``."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            value = size / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{size} B"
