"""Files that are not those that were indexed are found, and a copy of them is the same dataset."""

from array import array
from dataclasses import replace

import pyarrow as pa
import pytest

from antifreeze.core import ColumnFacts, File, Manifest, SourceChanged
from antifreeze.storage import Listing, check_unchanged, fingerprint


def file(path: str, size: int = 10, mtime_ns: int = 5) -> File:
    return File(path=path, size=size, mtime_ns=mtime_ns)


def listing(*files: File) -> Listing:
    return Listing(root="/data", files=files, is_folder=True)


def manifest(*files: File, kind: pa.DataType = pa.int64(), rows: int = 3) -> Manifest:  # noqa: B008 - types are values
    return Manifest(
        files=files,
        schema=pa.schema([("x", kind)]).serialize().to_pybytes(),
        columns=(ColumnFacts(name="x", nbytes=8, values=1, length=1),),
        fragment_file=array("q", range(len(files))),
        fragment_group=array("q", [0] * len(files)),
        fragment_rows=array("q", [rows] * len(files)),
    )


def test_equal_files_have_no_difference() -> None:
    check_unchanged(manifest(file("a")), listing(file("a")), "m.json")


def test_each_kind_of_difference_is_found() -> None:
    before = manifest(file("same"), file("larger"), file("newer"), file("gone"))
    after = listing(file("same"), file("larger", size=11), file("newer", mtime_ns=6), file("new"))

    with pytest.raises(SourceChanged) as caught:
        check_unchanged(before, after, "m.json")

    error = caught.value
    assert (error.changed, error.vanished, error.appeared) == (("larger", "newer"), ("gone",), ("new",))


def test_the_error_names_a_few_of_each_kind_and_counts_all() -> None:
    before = manifest(*(file(f"gone-{i}") for i in range(7)), file("x"))
    after = listing(file("x", size=1), file("new"))

    with pytest.raises(SourceChanged) as caught:
        check_unchanged(before, after, "/data/m.json")

    text = str(caught.value)
    assert "the files in /data are not those of /data/m.json" in text
    assert "1 changed (x)" in text
    assert "7 vanished (gone-0, gone-1, gone-2, gone-3, gone-4 and 2 more)" in text
    assert "1 appeared (new)" in text
    assert "index_parquet_dataset again" in caught.value.hint
    assert len(caught.value.vanished) == 7


def test_a_list_in_another_order_is_refused() -> None:
    """The manifest would silently win over the order that was asked for."""
    with pytest.raises(SourceChanged, match="the same files were indexed in another order"):
        check_unchanged(manifest(file("a"), file("b")), listing(file("b"), file("a")), "m.json")


def test_a_copy_has_the_same_fingerprint() -> None:
    assert fingerprint(manifest(file("a"))) == fingerprint(manifest(file("a", mtime_ns=99)))


def test_a_fingerprint_does_not_depend_on_metadata() -> None:
    """Another version of Arrow may write the same schema in other bytes."""
    one = manifest(file("a"))
    schema = pa.schema([("x", pa.int64())], metadata={"written by": "another"})
    other = replace(one, schema=schema.serialize().to_pybytes())

    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    "other",
    [
        manifest(file("b")),
        manifest(file("a", size=11)),
        manifest(file("a"), kind=pa.int32()),
        manifest(file("a"), rows=4),
        manifest(file("a"), file("b")),
    ],
)
def test_another_dataset_has_another_fingerprint(other: Manifest) -> None:
    assert fingerprint(other) != fingerprint(manifest(file("a")))
