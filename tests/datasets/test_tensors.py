"""From a block to tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch

from antifreeze.core import DataError, RaggedColumn
from antifreeze.datasets import tensors as adapter
from antifreeze.formats import Converter, PieceLocation

I32 = pa.int32()


def block_of(columns: dict[str, pa.Array]) -> tuple[Converter, dict[str, Any]]:
    """Return a converter and its block of some columns."""
    batch = pa.record_batch(columns)
    convert = Converter(batch.schema)
    return convert, convert(batch, PieceLocation(file="a", row_group=0))


def finish(columns: dict[str, pa.Array], **options: Any) -> dict[str, Any]:
    """Return the finished batch of some columns."""
    convert, block = block_of(columns)
    return adapter.finisher(convert.leaves, **options)(block)


def test_a_tensor_shares_the_memory_of_the_block() -> None:
    """A copy here would cost as much as the decoder."""
    convert, block = block_of({"c": pa.array([[1, 2], [3, 4]], pa.list_(I32, 2))})
    tensor = adapter.finisher(convert.leaves)({"c": block["c"][1:]})["c"]
    tensor[0, 0] = 9

    assert block["c"].tolist() == [[1, 2], [9, 4]]


def test_structs_are_nested_in_order() -> None:
    """Texts stay lists inside them."""
    batch = finish({"s": pa.array([{"x": 1, "y": "a"}]), "c": pa.array([1])})

    assert list(batch) == ["s", "c"]
    assert torch.equal(batch["s"]["x"], torch.tensor([1]))
    assert batch["s"]["y"] == ["a"]


def test_ragged_lists_are_tensors_one_by_one_or_padded() -> None:
    """Lists of lists keep their outer level."""
    deep = pa.array([[[1], [2, 3]], []], pa.list_(pa.list_(I32)))
    batch = finish({"c": deep})["c"]

    assert [[part.tolist() for part in row] for row in batch] == [[[1], [2, 3]], []]
    assert finish({"c": deep}, pad=0)["c"].tolist() == [[[1, 0], [2, 3]], [[0, 0], [0, 0]]]


def test_ragged_times_are_ticks() -> None:
    """As times that are not in lists."""
    column = pa.array([[1, 2], []], pa.list_(pa.timestamp("us")))

    assert [row.tolist() for row in finish({"c": column})["c"]] == [[1, 2], []]
    assert finish({"c": column}, pad=7)["c"].tolist() == [[1, 2], [7, 7]]


def test_collating_all_rows_gives_the_batch() -> None:
    """The way back, through torch's own function."""
    batch = finish({"n": pa.array([1, 2]), "t": pa.array(["a", "b"]), "s": pa.array([{"x": 1.5}, {"x": 2.5}])})
    again = adapter.collate([adapter.row_of(batch, index) for index in range(2)])

    assert torch.equal(again["n"], batch["n"])
    assert torch.equal(again["s"]["x"], batch["s"]["x"])
    assert again["t"] == batch["t"]


@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
def test_rows_of_different_shapes_are_named(make: Any) -> None:
    """Torch says that stack expects equal sizes, and nothing of the key."""
    with pytest.raises(RaggedColumn, match=r'"v" is \(2,\) in row 0 of the batch and \(3,\) in row 1') as caught:
        adapter.collate([{"n": 1, "v": make(2)}, {"n": 1, "v": make(3)}])

    assert isinstance(caught.value.__context__, RuntimeError)


def test_rows_of_different_lengths_or_keys_are_named() -> None:
    """Lists and tuples by their place, dicts by their keys."""
    with pytest.raises(DataError, match='differ in "1"'):
        adapter.collate([(1, [1, 2]), (1, [1])])
    with pytest.raises(DataError, match=r"row 1 has \['b'\]"):
        adapter.collate([{"a": 1}, {"b": 1}])


def test_what_torch_cannot_collate_is_said_by_torch() -> None:
    """Its own error stands where ours would add nothing."""
    with pytest.raises(TypeError, match="default_collate"):
        adapter.collate([{"a": object()}, {"a": object()}])


def test_without_an_accelerator_pinning_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batch, not a copy."""
    monkeypatch.setattr(adapter, "_can_pin", lambda: False)
    batch = {"a": torch.zeros(1)}

    assert adapter.pin(batch) is batch


def test_pinning_reaches_every_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """In dicts, lists, tuples, named tuples and objects that pin themselves."""

    class Own:
        def pin_memory(self) -> str:
            return "own"

    class Pair(NamedTuple):
        left: Any
        right: Any

    monkeypatch.setattr(adapter, "_can_pin", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda _: "pinned")
    tensor = torch.zeros(1)
    batch = {"a": tensor, "b": [tensor, "x"], "c": (tensor, 1), "d": Pair(tensor, None), "e": Own()}

    assert adapter.pin(batch) == {
        "a": "pinned",
        "b": ["pinned", "x"],
        "c": ("pinned", 1),
        "d": Pair("pinned", None),
        "e": "own",
    }
