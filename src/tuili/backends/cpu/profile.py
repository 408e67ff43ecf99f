"""Names for the phases that the native executor times."""

from collections.abc import Mapping, Sequence

from tuili.backends.cpu.lower import Phase, matrices_of
from tuili.observe.profile import OpTime, Profile, StepTimes, sum_by_op
from tuili.program.program import Instr, Program

#: (calls, rows, nanoseconds), as the extension counts.
Timing = tuple[int, int, int]


def phase_labels(program: Program, phases: Sequence[Phase], formats: Mapping[str, str]) -> tuple[str, ...]:
    """One name a phase, the same in every layer: op, roles and formats of its matrices. ``formats``: weight name -> format."""
    return tuple(
        " + ".join(dict.fromkeys(instr.op for instr in phase.instrs))
        if phase.is_rows
        else _matrix_label(program, phase.instrs[0], formats)
        for phase in phases
    )


def _matrix_label(program: Program, instr: Instr, formats: Mapping[str, str]) -> str:
    matrices = matrices_of(instr)
    if any(value.id == program.output.id for value in instr.outputs):
        roles = ["lm_head"]  # which may be the embedding's matrix
    else:
        roles = [name.removesuffix(".weight").rpartition(".")[2] for name in matrices]
    kinds = dict.fromkeys(formats[name] for name in matrices)
    return " ".join([instr.op, "/".join(roles), "/".join(kinds)]).strip()


def read_profile(labels: Sequence[str], kinds: Sequence[Sequence[Timing]]) -> Profile:
    """``kinds``: of prompt steps and of decode steps, the timings that the extension gives."""
    prompt, decode = (_step_times(labels, timings) for timings in kinds)
    return Profile(prompt, decode)


def _step_times(labels: Sequence[str], timings: Sequence[Timing]) -> StepTimes:
    (num_steps, num_tokens, nanoseconds), rope, sampling, *phases = timings
    named = [("rope tables", rope), *zip(labels, phases, strict=True), ("sampling", sampling)]
    ops = sum_by_op(OpTime(op, calls, rows, spent / 1e9) for op, (calls, rows, spent) in named)
    return StepTimes(num_steps, num_tokens, nanoseconds / 1e9, ops)
