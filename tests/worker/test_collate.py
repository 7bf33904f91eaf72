"""Collating without torch gives what torch gives: structure, dtypes, values and errors."""

from __future__ import annotations

import array
import collections
import decimal
import enum
import fractions
import itertools
import pickle
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.worker._collate import AsTensor, collate_arrays, convert_arrays, default_collate, default_convert

A = np.array
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]


class Point(NamedTuple):
    """Keeps its type when it is collated."""

    x: Any
    y: Any


class Color(enum.IntEnum):
    """A number that is more than a number."""

    RED = 1


class Rows(list[Any]):
    """A list with a property of its own."""


class Frozen(Mapping[str, Any]):
    """A mapping that cannot be changed, only made anew."""

    def __init__(self, workers: Mapping[str, Any]) -> None:
        self._workers = dict(workers)

    def __getitem__(self, key: str) -> Any:
        return self._workers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)


class Stubborn(Frozen):
    """A mapping that cannot be made from its members."""

    def __init__(self, workers: Mapping[str, Any], more: int) -> None:
        super().__init__(workers)


def outcome(function: Callable[[Any], Any], argument: Any) -> Any:
    """Return what a function gives, or the type of what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(argument)
        except Exception as error:  # noqa: BLE001  the point of the comparison
            return type(error)


def same_values(ours: Any, theirs: Any) -> bool:
    """Say whether arrays are equal: NaN is itself, whatever its bits, and -0.0 is not 0.0."""
    if ours.dtype.kind == "c":
        return same_values(ours.real, theirs.real) and same_values(ours.imag, theirs.imag)
    alike = np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f")
    return bool(alike and (ours.dtype.kind != "f" or np.all(np.isnan(ours) | (np.signbit(ours) == np.signbit(theirs)))))


def same(ours: Any, theirs: Any) -> bool:
    """Say whether two batches are alike, ``AsTensor`` standing for a tensor."""
    if isinstance(theirs, torch.Tensor):
        if isinstance(ours, AsTensor) and ours.array.flags.c_contiguous:
            ours = torch.from_numpy(ours.array)
        is_alike = type(ours) is torch.Tensor and ours.dtype == theirs.dtype and ours.shape == theirs.shape
        return is_alike and same_values(ours.numpy(), theirs.numpy())
    if type(ours) is not type(theirs):
        return False
    if isinstance(theirs, Mapping):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, Sequence) and not isinstance(theirs, str | bytes):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, np.ndarray):
        return ours is theirs
    return bool(ours == theirs)


def check_collate(samples: Sequence[Any]) -> None:
    ours, theirs = outcome(collate_arrays, samples), outcome(torch.utils.data.default_collate, samples)
    assert same(ours, theirs), f"{samples}: {ours} is not {theirs}"


NUMBERS = [
    *[[2**63], [2**63 - 1], [-(2**63)], [-(2**63) - 1], [1, 2**63], [True, 2**70], [2**70, 1.5], [Color.RED, 2]],
    *[[1, 2.5], [1.0, 2], [True, 2], [True, False], [True, 2.5], [1, 2j], [1.5, 2j], [1j], [1.0, 10**400], [-0.0]],
    *[[float("nan"), float("inf")], [1.0, decimal.Decimal(2)], [1, decimal.Decimal(2)], [1, fractions.Fraction(1, 2)]],
    *[
        [1, None],
        [1.5, None],
        [1, "a"],
        [1.5, "2"],
        [1, b"a"],
        [1, [2]],
        [1, []],
        [1, ()],
        [1.0, [2]],
        [1, {}],
        [1, {3}],
    ],
    *[[1, {"a": 1}], [True, None], [1.0, A([2])], [1.0, A(2)], [1.5, A("a")], [1, A(2)], [1, A([2])], [1, A(2.5)]],
]
SCALARS = [
    *[[1, np.int8(3)], [1, np.float64(3)], [1, np.float32(3)], [1, np.float16(3)], [np.float16(1), 70000]],
    *[[np.float16(1), 1e300], [np.float32(1), 1e300], [np.float32(1), np.int64(2**53 + 1)], [1, np.uint64(2**63)]],
    *[[np.int32(1), None], [np.int32(1), "a"], [np.int32(1), A([1])], [np.int32(1), A(1.5)], [np.uint64(2**64 - 1)]],
    *[[np.uint64(1)], [np.uint16(1), np.int32(2)], [np.uint16(1), 1], [np.uint16(1), 2.5], [np.uint64(1), True]],
    *[[np.bool_(1), np.bool_(0)], [np.bool_(1), 3], [True, np.bool_(1)], [True, np.float16(1)], [np.longdouble(1)]],
    *[[np.clongdouble(1)], [np.timedelta64(1, "s")], [np.datetime64(1, "s")], [1.5, np.longdouble(1)]],
    *[[np.complex64(1j), 1.0], [np.complex64(1j), np.float64(1)], [np.complex64(1j), 3], [np.float64(1), 2j]],
    *[[np.complex128(1), None], [np.complex128(1), "2"], [1.5, np.complex64(2)], [np.complex64(1), decimal.Decimal(2)]],
    *[[np.str_("a")], [np.bytes_(b"a"), b"c"], [np.void(b"ab")], [np.int32(5), b"a"], [np.longlong(3), np.longlong(4)]],
]
ARRAYS = [
    *[[A([1, 2]), [3, 4]], [A([1, 2]), [3.0, 4]], [A([1, 2]), 3], [A(1), 3], [A(1), 3.5], [A(1), None], [A(1), "a"]],
    *[[A([1, 2]), (3, 4)], [A([1, 2]), range(2)], [A([1, 2]), A([1, 2, 3])], [A([1, 2]), A(["a", "b"])], [A(["a"])]],
    *[[A([1], object)], [A([1], "M8[s]")], [A([1], "M8[as]")], [A([1], "m8[s]")], [A([1], ">i4")], [A([1, 2])[::-1]]],
    *[[A([1])[::-1]], [np.zeros(0)[::-1]], [np.zeros(3, "i4,i4")], [np.zeros(3, "i4,f8")["f0"]], [np.zeros(2, "f16")]],
    *[[np.zeros(2, "V4")], [np.ma.masked_array([1, 2], [0, 1])], [A([1, 2]), np.float64(1)], [A(1), np.float64(1)]],
    *[
        [np.zeros(3, "i4,i4")["f1"]],
        [np.ones((2, 3)).T, np.ones((3, 2))],
        [np.ones((4, 4))[::2, ::2]],
        [A(1), A(2.5), 3],
    ],
    *[[A(1, "i1"), 300], [np.float32(1), A(2)], [A([1, 2]), [[3, 4]]], [A([[1, 2]]), [[3, 4]]], [A([1, 2]), b"ab"]],
    *[[A([[1, 2], [3, 4]]), [[3, 4], [1]]], [A([[1, 2], [3, 4]]), [[3], [1, 2]]], [A([[1, 2]]), [A([1, 2])]]],
    *[[A([1, 2]), [A(1), A(2)]], [A([1, 2]), {"a": 1}], [A([]), []], [A([], "i4"), []], [np.zeros((0, 3))] * 2],
    *[[A([1, 2]), array.array("d", [1, 2])], [A([1, 2]), memoryview(b"ab")], [A([1, 2]), [2**63, 1]], [A([0]), [True]]],
    *[[A([1, 2]), A([1, 2], ">i4")], [A([1, 2]), A([1, 2])[::-1]], [A([1, 2]), A([1, 2], object)], [A([[]]), [[]]]],
    *[[A([2**62 + 1, 2**24 + 1]), A([1, 2], "f4")], [A([70000, 2049]), A([1, 2], "f2")], [np.array([1], np.longlong)]],
    *[[A([2**53 + 1]), A([1], "c8")], [A([1.1, 1e40]), A([1, 2], "c8")], [A([1, 0]), A([True, False])]],
]
CONTAINERS = [
    *[[], [[], []], [{}, {}], [(), ()], [[1, 2], None], [[1, 2], [1]], [[1, 2], 3], [{"a": 1}, {"b": 1}]],
    *[[{"a": 1}, None], [{"a": 1}, [1]], [{"a": 1}, {"a": 2, "b": 3}], ["a", 1], [b"a", None], [None], [object()]],
    *[[("a", 1), ("b", 2)], [["a", 1], ["b", 2]], [{"a": "x"}, {"a": "y"}], [Point(1, "a"), Point(2, "b")]],
    *[[Point(1, 2), (3,)], [range(2), range(2)], [set()], [Rows([1, 2]), Rows([3, 4])], [(1, [2, 3]), [4, (5, 6)]]],
    *[[collections.deque([1, 2])] * 2, [collections.UserDict(a=1)] * 2, [collections.OrderedDict(b=1, a=2)] * 2],
    *[[Frozen({"a": 1})] * 2, [Stubborn({"a": 1}, 0)] * 2, [types.MappingProxyType({"a": 1})] * 2],
    *[[array.array("d", [1, 2])] * 2, [array.array("d", [1, 2])], [array.array("q", [1, 2])], [memoryview(b"ab")] * 2],
    *[[array.array("q", [1, 2])] * 2, [bytearray(b"ab")] * 2, [bytearray(b"ab")], [array.array("d", [])] * 2],
    *[[{"a": None}], [{"a": [{"b": (1, None)}]}], [collections.UserList([1, None])], [{1: 1, None: 2, (3,): 4}] * 2],
]


@pytest.mark.parametrize("samples", [*NUMBERS, *SCALARS, *ARRAYS, *CONTAINERS])
def test_odd_samples_collate_as_in_torch(samples: list[Any]) -> None:
    """Also where torch's rules are surprising, for nobody should see whether torch was loaded."""
    check_collate(samples)


@pytest.mark.filterwarnings("ignore:.*matrix.*")
def test_a_matrix_collates_as_in_torch() -> None:
    """It is always two-dimensional, which must not add a dimension."""
    check_collate([np.matrix([[1, 2]])] * 3)


@pytest.mark.parametrize("first", DTYPES)
def test_dtypes_mix_as_in_torch(first: str) -> None:
    """Torch's table of dtypes is not NumPy's: int64 and float32 are float32."""
    for kinds in itertools.product([first], DTYPES, ["bool", "uint16", "float16", "float64", "complex64"]):
        check_collate([np.ones(2, kind) for kind in kinds])
        check_collate([np.ones((), kind) for kind in kinds])
        check_collate([np.ones((), kind)[()] for kind in kinds])


def test_a_default_factory_is_kept() -> None:
    """A mapping may be more than its members."""
    collated = collate_arrays([collections.defaultdict(int, a=1), collections.defaultdict(int, a=2)])

    assert collated.default_factory is int
    assert collated["a"].tolist() == [1, 2]


def test_the_first_sample_is_not_changed() -> None:
    """The user may keep it."""
    first = collections.UserDict(a=1)
    collate_arrays([first, first])

    assert first == {"a": 1}


def test_errors_say_what_torch_says() -> None:
    """People search for these words."""
    for samples in ([None], [A(["a"])], [[1], [1, 2]], [A([1]), A([1, 2])], [2**63]):
        with pytest.raises(Exception) as ours:  # noqa: PT011  whatever torch raises
            collate_arrays(samples)
        with pytest.raises(type(ours.value)) as theirs:
            torch.utils.data.default_collate(samples)
        assert str(ours.value) == str(theirs.value)


# -- any samples ---------------------------------------------------------------------------------------------------


@st.composite
def values(draw: st.DrawFn, dtype: str) -> Any:
    """Draw a value of a dtype, among them those at its ends."""
    bits = draw(st.binary(min_size=np.dtype(dtype).itemsize, max_size=np.dtype(dtype).itemsize))
    return np.frombuffer(bits, dtype)[0] if dtype != "bool" else np.bool_(bits[0] & 1)


Maker = Callable[[st.DrawFn], Any]
"""Draws a sample of one structure."""


def number_makers() -> st.SearchStrategy[Maker]:
    plain = [st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.text(max_size=3), st.binary(max_size=3)]
    mixed = [*plain[:3], *[values(dtype) for dtype in DTYPES], st.none(), st.text(max_size=1), st.integers()]
    kinds = [*plain, *[values(dtype) for dtype in DTYPES], st.one_of(mixed)]
    return st.sampled_from(kinds).map(lambda kind: lambda draw: draw(kind))


@st.composite
def array_makers(draw: st.DrawFn) -> Maker:
    shapes = draw(
        st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=draw(st.sampled_from([1, 1, 2])))
    )
    dtypes = draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=draw(st.sampled_from([1, 1, 2]))))
    turned = draw(st.booleans())

    def make(draw: st.DrawFn) -> Any:
        shape, dtype = draw(st.sampled_from(shapes)), draw(st.sampled_from(dtypes))
        size = int(np.prod(shape, initial=1))
        made = A([draw(values(dtype)) for _ in range(size)], dtype).reshape(shape)
        return made.T.copy().T if turned else made

    return make


def nested(inner: st.SearchStrategy[Maker]) -> st.SearchStrategy[Maker]:
    def mapping(workers: dict[str, Maker]) -> Maker:
        return lambda draw: {key: make(draw) for key, make in workers.items()}

    def sequence(kind: Callable[[Any], Any], workers: list[Maker]) -> Maker:
        return lambda draw: kind(make(draw) for make in workers)

    keys = st.text(max_size=3)
    kinds = st.sampled_from([list, tuple, Rows, collections.deque])
    return st.one_of(
        st.dictionaries(keys, inner, max_size=3).map(mapping),
        st.builds(sequence, kinds, st.lists(inner, max_size=3)),
        st.tuples(inner, inner).map(lambda two: lambda draw: Point(two[0](draw), two[1](draw))),
    )


makers = st.recursive(st.one_of(number_makers(), array_makers()), nested, max_leaves=5)


@given(make=makers, num_samples=st.integers(1, 4), data=st.data())
def test_any_samples_collate_as_in_torch(make: Maker, num_samples: int, data: st.DataObject) -> None:
    """Numbers, texts and arrays of every dtype, nested in containers of every kind."""
    check_collate([make(data.draw) for _ in range(num_samples)])


@given(make=makers, data=st.data())
def test_any_sample_converts_as_in_torch(make: Maker, data: st.DataObject) -> None:
    """Loaders that make no batches hand samples on, with their arrays as tensors."""
    check_convert(make(data.draw))


def check_convert(sample: Any) -> None:
    ours, theirs = outcome(convert_arrays, sample), outcome(torch.utils.data.default_convert, sample)
    assert same_converted(ours, theirs), f"{sample}: {ours} is not {theirs}"


def same_converted(ours: Any, theirs: Any) -> bool:
    """As ``same``, but arrays are not copied, so they keep their strides."""
    if isinstance(ours, AsTensor):
        ours = AsTensor(np.ascontiguousarray(ours.array).reshape(ours.array.shape))
        return same(ours, theirs)
    if isinstance(theirs, Mapping):
        return type(ours) is type(theirs) and all(same_converted(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, Sequence) and not isinstance(theirs, str | bytes | bytearray):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(same_converted, ours, theirs))
    return same(ours, theirs) or (ours != ours and theirs != theirs)


CONVERTED = [
    *[sample for samples in [*NUMBERS, *SCALARS, *ARRAYS, *CONTAINERS] for sample in samples[:1]],
    *[np.add, np.dot, np.dtype("i4"), np.random.default_rng, object, 2**70, Point(A(1), "a"), range(2)],
    *[np.zeros(1, "i4").view(np.recarray), np.uint64(2**64 - 1), (1, A(1)), [1, A(1)], {"a": A([1, 2])}],
]


@pytest.mark.parametrize("sample", CONVERTED)
def test_odd_samples_convert_as_in_torch(sample: Any) -> None:
    """Only arrays and NumPy's scalars become tensors."""
    check_convert(sample)


def test_converting_does_not_copy() -> None:
    """The batch may be large."""
    given = A([1, 2])

    assert convert_arrays(given).array is given


# -- with and without torch ----------------------------------------------------------------------------------------


def test_where_torch_is_loaded_it_does_the_work() -> None:
    """Who has tensors has torch."""
    assert torch.equal(default_collate([torch.ones(2), torch.zeros(2)]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert torch.equal(default_convert({"a": A([1])})["a"], torch.tensor([1]))


def test_where_torch_is_not_loaded_it_stays_so() -> None:
    """Torch costs a second and 150 MB in each process. What it rejects is an error of its own."""
    code = (
        "import sys, numpy as np\n"
        "from antifreeze.worker._collate import default_collate, default_convert\n"
        "from antifreeze.worker._collate_diagnosis import explain\n"
        "batch = default_collate([(np.ones(2), {'a': 1}), (np.zeros(2), {'a': 2})])\n"
        "print(batch, default_convert(np.ones(1)), explain([1, None], ['sample 3', 'sample 4']))\n"
        "assert 'torch' not in sys.modules\n"
        "try: default_collate([object()])\n"
        "except TypeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert "AsTensor" in done.stdout
    assert "sample 4 is None" in done.stdout
    assert "batch must contain tensors, numpy arrays, numbers, dicts or lists; found <class 'object'>" in done.stdout


def test_a_wrapper_arrives_as_a_tensor() -> None:
    """It is made to be sent."""
    wrapper = AsTensor(A([1, 2]))
    arrived = pickle.loads(pickle.dumps(wrapper))  # noqa: S301

    assert torch.equal(arrived, torch.tensor([1, 2]))
    assert repr(wrapper) == "AsTensor(array([1, 2]))"
