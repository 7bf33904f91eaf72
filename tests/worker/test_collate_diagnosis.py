"""What is said about samples that do not fit together."""

from __future__ import annotations

import itertools
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.worker._collate_diagnosis import explain


class Point(NamedTuple):
    """A sample with named members."""

    x: Any
    y: Any


def said(*samples: Any) -> str | None:
    """Return what is said about samples 10, 11, 12, ..."""
    return explain(samples, [f"sample {10 + i}" for i in range(len(samples))])


A, Z = np.array, np.zeros


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ((1, 2, None), "sample 12 is None; the other samples are int"),
        ((None, Z(3), None), "sample 10 and sample 12 are None; the other samples are ndarray"),
        ((None, 1, None, None), "3 samples (the first: sample 10) are None; the other samples are int"),
        ((None, None), "every sample is None"),
        ((None,), "sample 10 is None"),
        (({"a": 1}, {"a": None}), '"a" is None in sample 11; in the other samples it is int'),
        (({"a": None}, {"a": None}), '"a" is None in every sample'),
        ((Z(3), Z(4)), "shapes differ: sample 10 is (3,), sample 11 is (4,)"),
        ((Z(3), Z(3), Z(4), Z(3)), "shapes differ: (3,) for 3 samples, (4,) for sample 12"),
        ((Z(1), Z(1), Z(2), Z(2)), "shapes differ: (1,) for 2 samples, (2,) for sample 12 and sample 13"),
        ((*[Z(2)] * 4, *[Z(1)] * 3), "shapes differ: (2,) for 4 samples, (1,) for 3 samples (the first: sample 14)"),
        (tuple(map(Z, range(6))),
         ("shapes differ: (0,) for sample 10, (1,) for sample 11, (2,) for sample 12, "
          "(3,) for sample 13, 2 others")),
        ((torch.zeros(3), torch.zeros(2, 3)), "shapes differ: sample 10 is (3,), sample 11 is (2, 3)"),
        (({"image": Z(3)}, {"image": Z(4)}), 'shapes of "image" differ: sample 10 is (3,), sample 11 is (4,)'),
        (((1, Z(3)), (1, Z(4))), "shapes of [1] differ: sample 10 is (3,), sample 11 is (4,)"),
        (({"a": [{"b": Z(3)}]}, {"a": [{"b": Z(4)}]}),
         'shapes of "a"[0]["b"] differ: sample 10 is (3,), sample 11 is (4,)'),
        ((Point(1, Z(3)), Point(1, Z(4))), "shapes of .y differ: sample 10 is (3,), sample 11 is (4,)"),
        ((Z(3), torch.zeros(3)), "types differ: sample 10 is ndarray, sample 11 is Tensor"),
        ((1, 2, "a"), "types differ: int for 2 samples, str for sample 12"),
        (({"a": 1}, [1]), "types differ: sample 10 is dict, sample 11 is list"),
        (([1, 2], [1]), "lengths differ: sample 10 is 2, sample 11 is 1"),
        (((1, (1,)), (1, (1, 2))), "lengths of [1] differ: sample 10 is 1, sample 11 is 2"),
        (({"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2}), 'keys differ: "b" is missing in sample 11'),
        (({"a": 1, "b": 2}, {"a": 1}, {"a": 1}), 'keys differ: "b" is present only in sample 10'),
        (({"a": 1, "b": 2, 3: 4}, {"a": 1}), 'keys differ: "b" (and 1 more) is missing in sample 11'),
        (({"m": {1: 1}}, {"m": {}}), 'keys of "m" differ: 1 is missing in sample 11'),
        (({"a": 1}, {"a": 1, "b": 2}), 'keys differ: "b" is missing in sample 10'),
        ((A(["a"]), A(["b"])), "the dtype is <U1 in sample 10 and sample 11, which torch does not support"),
        (({"t": Z(1)}, {"t": Z(1, "M8[s]")}),
         'the dtype of "t" is datetime64[s] in sample 11, which torch does not support'),
        ((Z(1, "u2"), Z(1, "i4")),
         "dtypes differ: sample 10 is uint16, sample 11 is int32; torch has no dtype for both"),
        ((np.uint16(1), np.int32(1)),
         "dtypes differ: sample 10 is uint16, sample 11 is int32; torch has no dtype for both"),
        ((torch.zeros(1, dtype=torch.uint16), torch.zeros(1, dtype=torch.int32)),
         "dtypes differ: sample 10 is torch.uint16, sample 11 is torch.int32; torch has no dtype for both"),
        ((1, 2**63), "sample 11 is 9223372036854775808, which does not fit into 64 bits"),
        (({"n": 1}, {"n": 2**63}), '"n" of sample 11 is 9223372036854775808, which does not fit into 64 bits'),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(samples: tuple[Any, ...], words: str) -> None:
    """The sample, the member, and what its neighbours have."""
    assert said(*samples) == words


@pytest.mark.parametrize(
    "samples",
    [
        (),
        (1,),
        (1, 2.5, True, np.float32(1)),
        ("a", "b"),
        (Z(3), Z(3, "f4"), Z(3, "?")),
        (torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int8)),
        ({"a": [1, (2, "x")]}, {"a": [1, (2, "y")]}),
        ((1, 2), [3, 4]),
        (object(), object()),
        ({}, {}),
    ],
)
def test_what_fits_is_not_blamed(samples: tuple[Any, ...]) -> None:
    """A wrong explanation is worse than none."""
    assert said(*samples) is None


@pytest.mark.parametrize("harmless", [({"k": 1}, {"k": 1, "l": 1}), (None, None), ("a", 1), (object(), Point(1, 2))])
def test_a_certain_finding_goes_before_a_possible_one(harmless: tuple[Any, Any]) -> None:
    """What a user's own collate function may well take is named only if there is nothing else."""
    first, second = ({"a": one, "x": Z(n)} for one, n in zip(harmless, (3, 4), strict=True))

    assert said(first, second) == 'shapes of "x" differ: sample 10 is (3,), sample 11 is (4,)'
    assert said(*({"a": one} for one in harmless)) is not None


class Hostile:
    """Raises whatever one does with it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __len__(self) -> int:
        raise ValueError("no length")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")

    __hash__ = None  # type: ignore[assignment]


class HostileList(list[Any]):
    """Has no length and no members."""

    def __len__(self) -> int:
        raise SystemError("no length")


class HostileShape:
    """Has a shape that is none."""

    shape = ("a", None)
    dtype = 3


class HostileDict(dict[Any, Any]):
    """Raises when it is looked through."""

    def __iter__(self) -> Any:
        raise KeyError("no keys")


HOSTILE = [Hostile(), HostileList([1]), HostileDict(a=1), HostileShape()]


def test_samples_that_raise_when_looked_at_do_no_harm() -> None:
    """An error is already under way; it must not be replaced by another."""
    for one, other in itertools.product(HOSTILE, [*HOSTILE, None, 1, Z(3)]):
        for samples in ((one, one), (one, other), (other, one), ([one], [other]), ({"a": one}, {"a": other})):
            assert isinstance(said(*samples), str | None)


def test_a_member_that_raises_hides_no_other() -> None:
    """The reason may stand right beside it."""
    first, second = ({"a": HostileList([1]), "b": Z(n)} for n in (3, 4))

    assert said(first, second) == 'shapes of "b" differ: sample 10 is (3,), sample 11 is (4,)'


def test_a_sample_that_contains_itself_ends() -> None:
    """Nothing may be waited for here."""
    endless: list[Any] = []
    endless.append(endless)

    assert said(endless, endless) is None


def test_too_few_names_do_no_harm() -> None:
    """Whatever the caller does."""
    assert isinstance(explain([1, None, 3], []), str | None)


def test_long_samples_are_not_looked_through_to_their_end() -> None:
    """An error should not wait for a hundred million numbers."""
    began_s = time.monotonic()
    row = list(range(1_000_000))

    assert said(*[row] * 100) is None
    assert time.monotonic() - began_s < 30


anything = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=2) | st.builds(Z, st.integers(0, 2)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=1), inner, max_size=2),
    max_leaves=6,
)


@given(samples=st.lists(anything, max_size=5))
def test_whatever_the_samples_something_or_nothing_is_said(samples: list[Any]) -> None:
    """Never an error."""
    assert isinstance(said(*samples), str | None)


@given(samples=st.lists(anything, min_size=1, max_size=5))
def test_what_torch_collates_is_never_certainly_wrong(samples: list[Any]) -> None:
    """If torch takes them, at most what torch does not look at is named: beside a text, an empty dict or other keys."""
    try:
        torch.utils.data.default_collate(samples)
    except Exception:  # noqa: BLE001  only what can be collated matters here
        return
    words = said(*samples)
    assert words is None or words.startswith(("keys", "types")) or "None" in words
