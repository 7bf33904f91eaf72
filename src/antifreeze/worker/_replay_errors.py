"""Shares of an iterable dataset that were begun again and are not what they were."""

from __future__ import annotations

from antifreeze.worker._wire import FailureReason


class NotTheSame(RuntimeError):
    """An iterable dataset gave other samples when it was asked again."""

    reason = FailureReason.NOT_REPEATABLE

    def __init__(self, share: int, number: int) -> None:
        super().__init__(
            f"the worker of share {share} had to be replaced, and the dataset did not give the same first {number} "
            "batches again. It is not deterministic, so it cannot be told which samples are still to come"
        )


class NotAsSaved(RuntimeError):
    """An iterable dataset gave other samples than before a state was saved."""

    reason = FailureReason.NOT_AS_SAVED

    def __init__(self, share: int, number: int, *, has_more: bool = False) -> None:
        what = (
            f"the state does not fit this dataset: the first {number} batches of share {share} are not those that were "
            "delivered before the state was saved"
        )
        if has_more:
            what = (
                f"the state does not fit this dataset: share {share} had ended after {number} batches when the state "
                "was saved, and now it has more"
            )
        super().__init__(
            f"{what}: it has changed, or it is not deterministic. "
            "load_state_dict(state, strict=False) goes on after as many batches, whatever they are"
        )
