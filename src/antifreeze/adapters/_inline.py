"""An epoch without workers: the same program, the same random numbers, in the calling thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from antifreeze.child import Desk, Ended, IterableProgram, Nothing, Share, Task, UserError, failure_of, seeded
from antifreeze.core import AntifreezeError
from antifreeze.crew import History, Source, user_error
from antifreeze.supervise import Skip


class InlineBatches:
    """Yields the batches of an epoch. Nothing is consumed before the first is asked for."""

    def __init__(
        self,
        make_program: Callable[[], Any],
        make_source: Callable[[], Source],
        history: History,
        *,
        dataset: str,
        on_error: str,
        decide: Callable[[AntifreezeError], Any] | None,
    ) -> None:
        self._make_program, self._make_source = make_program, make_source
        self._history, self._dataset, self._decide = history, dataset, decide
        self._desk = Desk(None, slot=0, num_workers=1, on_error=on_error, seed=lambda *_: None)
        self._program: Any = None
        self._source: Source | None = None
        self._over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._history.asked()
        if self._source is None:
            self._program, self._source = self._make_program(), self._make_source()
        while True:
            found = None if self._over else self._source.next()
            if found is None:
                self._history.epochs += 1
                self._history.ended()
                raise StopIteration
            task, _ = found
            try:
                batch = self._make(task)
            except Nothing:
                continue
            except Ended:
                self._over = True
                continue
            self._history.delivered(self._desk.num_samples, 0)
            self._history.answered()
            return batch

    def _make(self, task: Task) -> Any:
        desk = self._desk
        while True:
            desk.clear(task.step)
            # The seed of a batch is the one that a worker would give it.
            place = (1, task.what.number) if isinstance(task.what, Share) else (0, task.step)
            try:
                with seeded(task.seed, *place):
                    batch = self._program.make(task, desk)
            except UserError as caught:
                task = self._without(task, caught)
                continue
            finally:
                for skip in desk.skipped:
                    self._history.skip(Skip(sample=skip.sample, reason=skip.reason, epoch=task.epoch, step=task.step))
                self._history.spent(desk.times, desk.slowest)
            return batch

    def _without(self, task: Task, caught: UserError) -> Task:
        """Return the task without the sample that failed, if the user's function wants that; else raise."""
        original = caught.error
        if isinstance(original, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise original  # it was meant for this process
        trace = original.__traceback__
        failure = failure_of(caught)
        error = user_error(
            failure, worker=f"the training process (pid {os.getpid()})", step=task.step, dataset=self._dataset
        )
        if not (self._decide and caught.can_skip and not isinstance(self._program, IterableProgram)):
            raise error from original.with_traceback(trace)
        if self._decide(error) not in ("skip", True):
            raise error from original.with_traceback(trace)
        self._history.skip(Skip(sample=caught.sample, reason=error.message, epoch=task.epoch, step=task.step))
        return task._replace(skip=(*task.skip, caught.position))
