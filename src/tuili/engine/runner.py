"""Runs planned steps on an executable."""

from tuili.backends.base import Executable, StepResult
from tuili.engine.batch import Batch, BatchBuilder
from tuili.engine.request import StepPlan
from tuili.observe.profile import Profile


class Runner:
    def __init__(self, executable: Executable, builder: BatchBuilder) -> None:
        self._executable = executable
        self._builder = builder

    def run(self, plan: StepPlan) -> tuple[Batch, StepResult]:
        """One step: fill the arrays, launch, wait. The native call holds no GIL, so the output side works meanwhile.

        What is returned is valid until the next call.
        """
        batch = self._builder.build(plan)
        return batch, self._executable.collect(self._executable.launch(batch.step, batch.sampling))

    def profile(self) -> Profile | None:
        return self._executable.profile()

    def close(self) -> None:
        self._executable.close()
