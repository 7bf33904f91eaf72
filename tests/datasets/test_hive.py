"""Names of folders become values, and what is unclear is refused."""

import pyarrow as pa
import pytest

from antifreeze.core import SchemaMismatch
from antifreeze.datasets._source import partitions_of


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "20", "0", "-3"], pa.int64(), (1, 20, 0, -3)),
        (["01", "2"], pa.string(), ("01", "2")),
        (["-0", "2"], pa.string(), ("-0", "2")),
        (["9223372036854775807", "1"], pa.int64(), (2**63 - 1, 1)),
        (["9223372036854775808", "1"], pa.string(), ("9223372036854775808", "1")),
        (["1.5", "2"], pa.string(), ("1.5", "2")),
        (["", "2"], pa.string(), ("", "2")),
        (["٣", "2"], pa.string(), ("٣", "2")),
        (["a=b", "c%20d"], pa.string(), ("a=b", "c d")),
    ],
)
def test_values_are_numbers_if_nothing_is_lost(texts: list[str], kind: pa.DataType, values: tuple[object, ...]) -> None:
    """A leading zero is a part of a code."""
    (partition,) = partitions_of([f"/d/k={text}/f" for text in texts], "/d", [])

    assert (partition.type, partition.values) == (kind, values)


def test_other_folders_do_not_matter() -> None:
    paths = ["/d/k=1/part/f", "/d/other/k=2/f", "/d/=x/k=3/f=9"]

    (partition,) = partitions_of(paths, "/d", ["x"])

    assert (partition.name, partition.values) == ("k", (1, 2, 3))


def test_no_keys_are_no_columns() -> None:
    assert partitions_of(["/d/f", "/d/e/f"], "/d", ["x"]) == ()


@pytest.mark.parametrize("paths", [["/d/k=1/f", "/d/f"], ["/d/f", "/d/k=1/f"]])
def test_a_file_without_the_keys_of_the_others_is_named(paths: list[str]) -> None:
    with pytest.raises(SchemaMismatch, match=r"/d/f has no folder k=\.\.\., which /d/k=1/f has"):
        partitions_of(paths, "/d", [])


def test_null_partitions_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match="means null") as caught:
        partitions_of(["/d/k=__HIVE_DEFAULT_PARTITION__/f"], "/d", [])
    assert "null partitions are not supported" in caught.value.hint


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="two folders of /d/k=1/k=2/f name 'k'"):
        partitions_of(["/d/k=1/k=2/f"], "/d", [])
