"""An epoch without workers: the same program, the same random numbers, in the calling thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from antifreeze.diagnosis import History, Skip
from antifreeze.distributed import Watched
from antifreeze.ipc import Packed
from antifreeze.loaders._main_thread_location import MainThreadLocation, watched
from antifreeze.pool import Decide, TaskSource, can_go_on, user_error
from antifreeze.worker import (
    Ended,
    Nothing,
    Program,
    Result,
    Shard,
    Task,
    TaskContext,
    UserError,
    failure_of,
    restore,
    save,
    seed_now,
)

_HERE = Packed(b"", [])
"""A batch that is not sent anywhere."""


class InlineRunner:
    """Yields the batches that a program makes of a source's tasks in this thread."""

    def __init__(
        self,
        make_program: Callable[[], Program],
        source: TaskSource,
        history: History,
        *,
        on_error: str,
        decide: Decide,
    ) -> None:
        self._make_program, self._source = make_program, source
        self._history, self._decide = history, decide
        self._context = TaskContext(
            None, slot=0, num_workers=1, on_error=on_error, seed=seed_now, times=history.stage_s
        )
        self._program: Any = None
        self._over = False
        self._location: MainThreadLocation | None = None
        self._watched: Watched | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._watched is None:
            self._location = MainThreadLocation()
            self._watched = watched(self._history, self._location, self._history.epochs)
        if self._program is None:
            self._program = self._make_program()
        try:
            return self._next()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """No longer let other ranks see this epoch."""
        if self._watched is not None:
            self._watched.close()
        self._watched = None

    def _next(self) -> Any:
        history, source = self._history, self._source
        history.asked()
        while not self._over:
            found = source.next()
            if found is None:
                break
            task = found[0]
            try:
                batch, result = self._make(task)
            except Nothing:
                source.consume(Result(task.epoch, task.step))
                continue
            except Ended:
                source.consume(Result(task.epoch, task.step, ended=True))
                break
            source.consume(result)
            history.delivered(self._context.num_samples, nbytes=0)
            history.answered()
            return batch
        if not self._over:
            self._over = True
            self._history.epochs += 1
            self._history.ended()
        raise StopIteration

    def _make(self, task: Task) -> tuple[Any, Result]:
        context = self._context
        while True:
            context.clear(task.step)
            failed: UserError | None = None
            saved = save()
            try:
                batch = self._program.make(task, context)
                result = self._result(task)
            except UserError as caught:
                failed = caught
            finally:
                restore(saved)
                if context.skipped:
                    self._account(task)
            if failed is None:
                return batch, result
            self._over = isinstance(task.what, Shard)  # what comes later in it leads through what has failed
            try:
                task = self._without(task, failed)
            finally:
                del failed  # its traceback holds this frame

    def _result(self, task: Task) -> Result:
        """Return what a worker would say of the batch. It is not taken apart, so that it has no fingerprint."""
        if isinstance(task.what, Shard):
            return Result(task.epoch, task.step, _HERE, **self._program.facts() | {"fingerprint": None})
        return Result(task.epoch, task.step, _HERE)

    def _account(self, task: Task) -> None:
        for skip in self._context.skipped:
            name = self._source.name(task, skip.sample, skip.position)
            self._history.skip(Skip(sample=name, reason=skip.reason, epoch=task.epoch, step=task.step))

    def _without(self, task: Task, caught: UserError) -> Task:
        """Return the task without the sample that failed, if the user's function wants that; else raise."""
        original = caught.error
        if isinstance(original, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise original  # it was meant for this process
        trace = original.__traceback__
        place = self._source.name(task, caught.sample, caught.position)
        failure = failure_of(caught)._replace(error=None)
        worker = f"the training process (pid {os.getpid()})"
        location = self._source.location(task, caught.sample, caught.position)
        error = user_error(failure, worker=worker, step=task.step, location=location, original=original)
        error.__cause__ = original.with_traceback(trace)
        can_skip = caught.can_skip and not isinstance(task.what, Shard)
        if not can_skip or not can_go_on(self._decide, error):
            raise error
        self._history.skip(Skip(sample=place, reason=error.message, epoch=task.epoch, step=task.step))
        return task._replace(skip=(*task.skip, caught.position))
