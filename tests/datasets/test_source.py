"""A source is opened from its manifest or its footers, and its folders may be columns."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze.core import ConfigError, CorruptFile, ManifestError, SchemaMismatch, SourceChanged, SourceNotFound
from antifreeze.datasets import index_parquet_dataset, open_source
from antifreeze.storage import MANIFEST_NAME


def make(root: Path, *names: str, **columns: Any) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns or {"x": [1, 2]}), root / name)


def test_footers_are_read_if_there_is_no_manifest(tmp_path: Path) -> None:
    make(tmp_path, "a/10.parquet", "a/9.parquet")

    source = open_source(tmp_path)

    assert source.root == str(tmp_path)
    assert source.paths == (f"{tmp_path}/a/9.parquet", f"{tmp_path}/a/10.parquet")
    assert source.schema == pa.schema([("x", pa.int64())])
    assert (source.manifest.num_rows, source.partitions) == (4, ())
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_manifest_saves_the_reading_of_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.parquet", "b.parquet")
    before = open_source(tmp_path)
    index_parquet_dataset(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("antifreeze.datasets._source.build_manifest", refuse)
    source = open_source(tmp_path)

    assert (source.paths, source.schema) == (before.paths, before.schema)
    assert source.manifest.columns == before.manifest.columns


@pytest.mark.parametrize("change", ["changed", "vanished", "appeared"])
def test_a_manifest_of_other_files_is_refused(tmp_path: Path, change: str) -> None:
    """The peers ignore new files in silence and call a smaller one a hung download."""
    make(tmp_path, "a.parquet", "b.parquet")
    index_parquet_dataset(tmp_path)
    if change == "changed":
        os.utime(tmp_path / "b.parquet", ns=(1, 1))
    elif change == "vanished":
        (tmp_path / "b.parquet").unlink()
    else:
        make(tmp_path, "sub/c.parquet")

    with pytest.raises(SourceChanged, match=f"1 {change}") as caught:
        open_source(tmp_path)
    assert len(getattr(caught.value, change)) == 1

    index_parquet_dataset(tmp_path)
    open_source(tmp_path)


def test_a_manifest_can_stand_elsewhere(tmp_path: Path) -> None:
    make(tmp_path, "data/a.parquet", "data/b.parquet", "data/c.parquet")
    (tmp_path / "index").mkdir()
    pattern = f"{tmp_path}/data/[ab].parquet"

    written = index_parquet_dataset(pattern, index_path=tmp_path / "index")

    assert written == f"{tmp_path}/index/{MANIFEST_NAME}"
    assert open_source(pattern, index_path=f"{tmp_path}/index").manifest.num_rows == 4
    assert open_source(pattern, index_path=written).manifest.num_rows == 4
    with pytest.raises(SourceChanged, match=r"1 appeared \(c\.parquet\)"):
        open_source(tmp_path / "data", index_path=written)


def test_a_manifest_that_is_named_must_exist(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet")

    with pytest.raises(SourceNotFound, match="there is no manifest") as caught:
        open_source(tmp_path, index_path=f"{tmp_path}/none.json")
    assert "index_parquet_dataset" in caught.value.hint
    with pytest.raises(ConfigError, match="index_path cannot be ''"):
        open_source(tmp_path, index_path="")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "AAAA"}, "has a damaged schema"),
        ({"schema": ""}, "has a damaged schema"),
        ({"column_names": ["y"]}, "contradicts itself on its columns"),
    ],
)
def test_a_forged_schema_is_refused(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    make(tmp_path, "a.parquet")
    path = Path(index_parquet_dataset(tmp_path))
    payload = json.dumps(json.loads(path.read_bytes())["payload"] | change).encode()
    head = b'{"antifreeze_manifest":1,"crc32":"%08x","payload":' % zlib.crc32(payload)
    path.write_bytes(head + payload + b"}\n")

    with pytest.raises(ManifestError, match=text):
        open_source(tmp_path)


def test_a_damaged_manifest_is_not_passed_over(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet")
    (tmp_path / MANIFEST_NAME).write_text("{}")

    with pytest.raises(ManifestError, match="is not an antifreeze manifest"):
        open_source(tmp_path)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"")

    with pytest.raises(CorruptFile, match=r"b\.parquet has zero bytes"):
        open_source(tmp_path)


def test_folders_are_just_folders_by_default(tmp_path: Path) -> None:
    make(tmp_path, "year=2024/a.parquet", "b.parquet")

    assert open_source(tmp_path).partitions == ()


def test_folders_can_be_columns(tmp_path: Path) -> None:
    make(tmp_path, "year=2023/lang=de/a.parquet", "year=2024/lang=pt%2Fbr/a.parquet")

    year, lang = open_source(tmp_path, hive=True).partitions

    assert (year.name, year.type, year.values) == ("year", pa.int64(), (2023, 2024))
    assert (lang.name, lang.type, lang.values) == ("lang", pa.string(), ("de", "pt/br"))


@pytest.mark.parametrize("form", ["{}/year=2024/a.parquet", "{}/year=2024/*.parquet", "{}/*/a.parquet"])
def test_a_file_that_is_named_tells_its_partitions_by_its_whole_path(tmp_path: Path, form: str) -> None:
    make(tmp_path, "year=2024/a.parquet")

    (year,) = open_source(form.format(tmp_path), hive=True).partitions

    assert (year.name, year.values) == ("year", (2024,))


def test_a_directory_says_where_its_partitions_begin(tmp_path: Path) -> None:
    make(tmp_path, "user=me/data/year=2024/a.parquet")

    partitions = open_source(tmp_path / "user=me/data", hive=True).partitions

    assert [partition.name for partition in partitions] == ["year"]


def test_a_folder_and_a_column_cannot_have_one_name(tmp_path: Path) -> None:
    """Neither may win in silence."""
    make(tmp_path, "x=7/a.parquet")

    with pytest.raises(SchemaMismatch, match="'x' is a column of the files and a folder name") as caught:
        open_source(tmp_path, hive=True)
    assert caught.value.file == f"{tmp_path}/x=7/a.parquet"
