"""Errors of iterable datasets that yield different samples when they are replayed."""

from __future__ import annotations

from antifreeze.worker._wire import FailureReason


class NotTheSame(RuntimeError):
    """An iterable dataset yielded different samples when a replacement worker replayed it."""

    reason = FailureReason.NOT_REPEATABLE

    def __init__(self, shard: int, number: int) -> None:
        super().__init__(
            f"cannot resume shard {shard} on a replacement worker: expected the same first {number} batches, got "
            "different ones. The dataset is not deterministic, so the remaining samples are unknown"
        )


class NotAsSaved(RuntimeError):
    """An iterable dataset yielded different samples than before its state was saved."""

    reason = FailureReason.NOT_AS_SAVED

    def __init__(self, shard: int, number: int, *, has_more: bool = False) -> None:
        what = (
            f"the state does not fit this dataset: the first {number} batches of shard {shard} differ from those "
            "delivered before the state was saved"
        )
        if has_more:
            what = (
                f"the state does not fit this dataset: shard {shard} had ended after {number} batches when the state "
                "was saved, and now it has more"
            )
        super().__init__(
            f"{what}: it has changed, or it is not deterministic. "
            "Use load_state_dict(state, strict=False) to continue after that many batches, whatever they are"
        )
