"""The start report at the top of the log: what runs, on what, within which limits, and what the user should know."""

import logging
import platform
import time

from tuili import __version__
from tuili.engine.build import LoadedEngine
from tuili.server.service import Service

log = logging.getLogger("tuili.server")

_MIB = 2**20
_LINE_SECONDS = 2.0


def log_start(service: Service, url: str) -> None:
    """The first lines, once the port is bound: before anything slow."""
    keys = len(service.options.api_keys)
    access = f"{keys} API key{'s' if keys > 1 else ''}" if keys else "no API key: this machine only"
    log.info("tuili %s, Python %s, %s %s", __version__, platform.python_version(), platform.system(), platform.machine())
    log.info("listening on %s (%s); loading %s", url, access, service.model_name)


class LoadingLines:
    """Says in the log, every few seconds, how far a load got."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_SECONDS

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            log.info("%s weights: %d of %d MiB", stage, done // _MIB, total // _MIB)


def log_loaded(service: Service, loaded: LoadedEngine, seconds: float, url: str) -> None:
    """The rest, once the model is there."""
    for line in _model_lines(loaded):
        log.info(line)
    limits = loaded.resolved
    log.info(
        "limits: %d tokens of context, %d sequences at a time, %d tokens a step, %d requests waiting",
        limits.max_model_len,
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        limits.max_waiting_requests,
    )
    for name, value, why in loaded.resolved.reasons:
        log.info("%s = %s (%s)", name, _readable(name, value), why)
    sharing = (
        "off" if not loaded.engine.scheduler.prefix_caching else "on" if _shares_all(service) else "on, one for each API key"
    )
    log.info("prefix cache: %s", sharing)
    if loaded.chat_template is None:
        log.warning("/v1/chat/completions will refuse: %s", loaded.chat_template_error)
    for warning in loaded.resolved.warnings:
        log.warning(warning)
    log.info("%s is ready at %s/v1, loaded in %.2f s", service.model_name, url, seconds)


def _shares_all(service: Service) -> bool:
    return service.options.share_prefix or len(service.options.api_keys) < 2


def _model_lines(loaded: LoadedEngine) -> list[str]:
    lines: list[str] = []
    model = loaded.description
    if model is not None:
        formats = ", ".join(sorted(set(model.formats.values())))
        lines.append(
            f"model: {model.architecture}, {model.num_parameters / 1e6:.0f} M parameters in {model.weight_bytes / _MIB:.0f} MiB "
            f"({formats}), made for {model.spec.max_position_embeddings} tokens of context"
        )
    lines += [f"{name}: {value}" for name, value in loaded.report.items()]
    blocks = " + ".join(str(number) for number in loaded.num_blocks)
    lines.append(f"KV cache: {blocks} blocks of 16 tokens")
    return lines


def _readable(name: str, value: str) -> str:
    return f"{int(value) / _MIB:.0f} MiB" if name.endswith("_bytes") and value.isdigit() else value
