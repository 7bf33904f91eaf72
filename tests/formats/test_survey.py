"""Many footers become one manifest, or the error of the first bad file."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze.core import ConfigError, CorruptFile, File, Manifest, SchemaMismatch
from antifreeze.formats import build_manifest, mismatch


def survey(root: Path, tables: dict[str, Any], **options: Any) -> Manifest:
    for name, table in tables.items():
        if isinstance(table, bytes):
            (root / name).write_bytes(table)
        else:
            pq.write_table(table, root / name, row_group_size=2)
    return build_manifest([File(path=name, size=1, mtime_ns=1) for name in tables], str(root), **options)


def schema_of(manifest: Manifest) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(manifest.schema))


def test_fragments_stand_in_file_and_group_order(tmp_path: Path) -> None:
    manifest = survey(tmp_path, {"a": pa.table({"x": [1, 2, 3]}), "b": pa.table({"x": [4]})})

    assert list(manifest.fragment_file) == [0, 0, 1]
    assert list(manifest.fragment_group) == [0, 1, 0]
    assert list(manifest.fragment_rows) == [2, 1, 1]
    assert schema_of(manifest) == pa.schema([("x", pa.int64())])


def test_groups_without_rows_are_left_out(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a", pa.schema([("x", pa.int64())])) as writer:
        for values in ([1], [], [2, 3]):
            writer.write_table(pa.table({"x": pa.array(values, pa.int64())}))
    assert pq.read_metadata(tmp_path / "a").num_row_groups == 3

    manifest = build_manifest([File(path="a", size=1, mtime_ns=1)], str(tmp_path))

    assert list(manifest.fragment_group) == [0, 2]
    assert list(manifest.fragment_rows) == [1, 2]


def test_columns_are_added_up_by_name(tmp_path: Path) -> None:
    one = pa.table({"x": pa.array([1, 2], pa.int32()), "y": [[1, 2], [3, 4]]})
    manifest = survey(tmp_path, {"a": one, "b": one.select(["y", "x"]), "c": one.slice(0, 0)})

    x, y = manifest.columns
    assert (x.name, x.nbytes, x.values, x.length) == ("x", 16, 4, 1)
    assert (y.name, y.nbytes, y.values, y.length) == ("y", 64, 8, 2)
    assert schema_of(manifest).names == ["x", "y"]


@pytest.mark.parametrize("threads", [None, 1, 7])
def test_all_files_are_counted_whatever_the_threads(tmp_path: Path, threads: int | None) -> None:
    counted: list[int] = []
    tables = {f"f{i}": pa.table({"x": [1] * (i % 3 + 1)}) for i in range(50)}

    manifest = survey(tmp_path, tables, advance=counted.append, threads=threads)

    assert sum(counted) == 50
    assert manifest.num_rows == sum(table.num_rows for table in tables.values())


@pytest.mark.parametrize("threads", [1, 8])
def test_the_first_bad_file_is_named(tmp_path: Path, threads: int) -> None:
    """Whichever thread is the fastest."""
    tables: dict[str, Any] = {f"f{i:02}": pa.table({"x": [1]}) for i in range(100)}
    for bad in (37, 38, 55, 99):
        tables[f"f{bad}"] = b"bad"

    for _ in range(5):
        with pytest.raises(CorruptFile) as caught:
            survey(tmp_path, tables, threads=threads)
        assert caught.value.file == str(tmp_path / "f37")


def test_nulls_may_be_allowed_in_some_files_only(tmp_path: Path) -> None:
    """The result allows them wherever one file does."""

    def table(nullable: bool) -> pa.Table:
        inner = pa.struct([pa.field("a", pa.int64(), nullable=nullable)])
        kinds = [pa.list_(pa.field("item", pa.int32(), nullable=nullable)), inner, pa.map_(pa.int8(), inner)]
        kinds += [pa.large_list(inner), pa.list_(inner, 1)]
        values = [[1]], [{"a": 1}], [[(1, {"a": 1})]], [[{"a": 1}]], [[{"a": 1}]]
        schema = pa.schema([pa.field(f"c{i}", kind, nullable=nullable) for i, kind in enumerate(kinds)])
        return pa.table({f"c{i}": value for i, value in enumerate(values)}, schema=schema)

    strict = schema_of(survey(tmp_path, {"a": table(nullable=False), "b": table(nullable=False)}))
    mixed = schema_of(survey(tmp_path, {"a": table(nullable=False), "b": table(nullable=True)}))

    assert not strict.field("c0").nullable
    assert mixed.field("c0").nullable
    assert mixed.field("c0").type == pa.list_(pa.int32())
    assert mixed.field("c1").type == pa.struct([("a", pa.int64())])


@pytest.mark.parametrize("names", [("empty", "full"), ("full", "empty")])
def test_a_file_without_rows_may_have_columns_of_no_type(tmp_path: Path, names: tuple[str, str]) -> None:
    """Writers make a null column of an empty one; the type is that of the files with rows, the order of the first."""
    tables = {
        "empty": pa.table({"s": pa.array([], pa.null()), "x": pa.array([], pa.int64())}),
        "full": pa.table({"x": [1], "s": ["a"]}),
    }
    manifest = survey(tmp_path, {name: tables[name] for name in names})

    schema = schema_of(manifest)
    assert schema.names == tables[names[0]].column_names
    assert schema.field("s").type == pa.string()
    assert manifest.num_rows == 1


def test_a_dataset_without_rows_is_a_manifest(tmp_path: Path) -> None:
    manifest = survey(tmp_path, {"a": pa.table({"x": pa.array([], pa.int64())})})

    assert (manifest.num_rows, manifest.columns[0].length) == (0, None)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (pa.table({"x": [1]}), "'y' is missing"),
        (pa.table({"x": [1], "y": [1.0], "z": ["a"]}), "'z' (string) is extra"),
        (pa.table({"x": ["1"], "y": [1.0]}), "'x' is string, not int64"),
        (pa.table({"x": pa.nulls(1), "y": [1.0]}), "'x' is null, not int64"),
        (pa.table({"c": [1], "d": [1.0]}), "'x' is missing, 'y' is missing, 'c' (int64) is extra"),
        (pa.table([[1], [1.0], [2.0]], ["x", "y", "y"]), "'y' occurs 2 times"),
    ],
)
def test_files_with_other_columns_are_named(tmp_path: Path, other: pa.Table, text: str) -> None:
    """If one of these columns is asked for, that is, or all; what files have in common can be read."""
    tables = {"a": pa.table({"x": [1], "y": [1.0], "same": [0]}), "b": other.append_column("same", [[0]])}
    manifest, paths = survey(tmp_path, tables), [f"{tmp_path}/a", f"{tmp_path}/b"]

    contested = {name for difference in manifest.differences for name in difference}
    assert [column.name for column in manifest.columns] == schema_of(manifest).names
    assert set(schema_of(manifest).names) == {"x", "y", "same"} - contested
    assert mismatch(manifest, paths, {"same"}) is None
    for columns in (None, contested):
        error = mismatch(manifest, paths, columns)
        assert error is not None
        assert text in error.message
        assert f"1 of 2 files do not have the columns of {tmp_path}/a:" in error.message
        assert error.file == f"{tmp_path}/b"
        assert error.hint


def test_only_columns_that_are_asked_for_are_spoken_of(tmp_path: Path) -> None:
    """And only files that differ in them."""
    tables = {
        "a": pa.table({"x": [1], "y": [1.0], "same": [0]}),
        "b": pa.table({"x": ["1"], "y": [1.0], "same": [0]}),
        "c": pa.table({"x": [1], "y": ["1"], "same": [0]}),
    }
    error = mismatch(survey(tmp_path, tables), [f"{tmp_path}/{name}" for name in tables], {"y", "same"})

    assert error is not None
    assert error.facts["files"] == (f"{tmp_path}/c",)
    assert "'x'" not in error.message


def test_files_that_share_no_column_are_refused(tmp_path: Path) -> None:
    """No choice of columns could help."""
    with pytest.raises(SchemaMismatch, match="'x' is missing, 'y'"):
        survey(tmp_path, {"a": pa.table({"x": [1]}), "b": pa.table({"y": [1]})})


def test_only_a_few_of_many_are_listed(tmp_path: Path) -> None:
    tables = {"a": pa.table({"x": [1]})} | {f"b{i}": pa.table({f"y{i}": [1]}) for i in range(20)}

    with pytest.raises(SchemaMismatch, match="20 of 21 files") as caught:
        survey(tmp_path, tables)

    assert "b4:" in caught.value.message
    assert "b5:" not in caught.value.message
    assert "and 15 more files" in caught.value.message
    assert len(caught.value.facts["files"]) == 20


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """A batch is a dict: one of them would be lost."""
    with pytest.raises(SchemaMismatch, match="a has more than one column named 'x'"):
        survey(tmp_path, {"a": pa.table([[1], [2]], ["x", "x"])})
    manifest = survey(tmp_path, {"a": pa.table([[1], [2], [3]], ["x", "x", "y"])})
    assert mismatch(manifest, [f"{tmp_path}/a"], {"y"}) is None
    assert "has more than one column named 'x'" in str(mismatch(manifest, [f"{tmp_path}/a"]))


def test_senseless_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="invalid threads: expected an integer >= 1, got 0"):
        survey(tmp_path, {"a": pa.table({"x": [1]})}, threads=0)
    with pytest.raises(ConfigError, match="there are no files"):
        build_manifest([], str(tmp_path))
