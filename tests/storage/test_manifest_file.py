"""A manifest on disk is whole, verified, and replaced at once."""

import base64
import json
import os
import zlib
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.core import ColumnFacts, File, InputError, Manifest, ManifestError, SourceNotFound
from antifreeze.storage import read_manifest, write_manifest

SCHEMA = pa.schema([("ids", pa.list_(pa.int32())), ("text", pa.string())])


def manifest_of(*paths: str) -> Manifest:
    count = len(paths)
    return Manifest(
        files=tuple(File(path=path, size=100 + i, mtime_ns=10**18 + i) for i, path in enumerate(paths)),
        schema=SCHEMA.serialize().to_pybytes(),
        columns=(
            ColumnFacts(name="ids", nbytes=400, values=100, length=10),
            ColumnFacts(name="text", nbytes=700, values=10, length=None),
        ),
        fragment_file=array("q", [i for i in range(count) for _ in range(2)]),
        fragment_group=array("q", [0, 2] * count),
        fragment_rows=array("q", [5, 1] * count),
    )


def same(one: Manifest, other: Manifest) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in Manifest.__dataclass_fields__)


@given(st.lists(st.text('a/bé\udce9 "\\\n', min_size=1).filter(lambda text: "/" not in text), unique=True))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, paths: list[str]) -> None:
    path = str(tmp_path_factory.getbasetemp() / "round-trip.json")
    manifest = manifest_of(*paths)

    write_manifest(manifest, path)

    assert same(read_manifest(path), manifest)
    assert isinstance(json.loads(Path(path).read_bytes()), dict)


def test_differences_between_files_are_written_in_another_version(tmp_path: Path) -> None:
    """One that knows nothing of them would read fewer columns, and say nothing."""
    path = tmp_path / "m.json"
    write_manifest(manifest_of("a", "b"), str(path))
    assert path.read_bytes().startswith(b'{"antifreeze_manifest":1,')
    differing = replace(
        manifest_of("a", "b"),
        differences=({"c": "'c' is missing"},),
        file_difference=array("q", [-1, 0]),
        model=0,
    )
    write_manifest(differing, str(path))

    assert path.read_bytes().startswith(b'{"antifreeze_manifest":2,')
    assert same(read_manifest(str(path)), differing)


_GOOD: dict[str, bytes] = {}


def good_bytes(folder: Path) -> bytes:
    if "data" not in _GOOD:
        write_manifest(manifest_of("a.parquet", "d/b.parquet"), str(folder / "good.json"))
        _GOOD["data"] = (folder / "good.json").read_bytes()
    return _GOOD["data"]


def read_damaged(folder: Path, data: bytes) -> None:
    path = folder / "damaged.json"
    path.write_bytes(data)
    try:
        found = read_manifest(str(path))
    except ManifestError as raised:
        error = raised
    else:
        assert same(found, manifest_of("a.parquet", "d/b.parquet"))
        return
    assert str(path) in error.message
    assert "index_parquet_dataset again" in error.hint
    assert error.path == str(path)


@given(place=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_flipped_byte_is_found(tmp_path_factory: pytest.TempPathFactory, place: int, flip: int) -> None:
    folder = tmp_path_factory.getbasetemp()
    data = bytearray(good_bytes(folder))
    data[place % len(data)] ^= flip

    read_damaged(folder, bytes(data))


@given(start=st.integers(0, 10**6), stop=st.integers(0, 10**6))
def test_a_missing_piece_is_found(tmp_path_factory: pytest.TempPathFactory, start: int, stop: int) -> None:
    folder = tmp_path_factory.getbasetemp()
    data = good_bytes(folder)
    start, stop = sorted((start % (len(data) + 1), stop % (len(data) + 1)))

    read_damaged(folder, data[:start] + data[stop:])


@given(st.binary())
def test_any_other_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(data)

    with pytest.raises(ManifestError):
        read_manifest(str(path))


def forged(path: Path, payload: bytes, version: int = 1) -> str:
    path.write_bytes(
        b'{"antifreeze_manifest":%d,"crc32":"%08x","payload":' % (version, zlib.crc32(payload)) + payload + b"}\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"paths": ["/etc/passwd", "b"]}, "does not lie below the root"),
        ({"paths": ["../x", "b"]}, "does not lie below the root"),
        ({"paths": ["a/../../x", "b"]}, "does not lie below the root"),
        ({"paths": ["a/./x", "b"]}, "does not lie below the root"),
        ({"paths": ["", "b"]}, "does not lie below the root"),
        ({"paths": ["a\0", "b"]}, "does not lie below the root"),
        ({"paths": ["b", "b"]}, "it lists a file twice"),
        ({"paths": ["a", 1]}, "paths is missing or of a wrong type"),
        ({"paths": "ab"}, "paths is missing or of a wrong type"),
        ({"paths": None}, "paths is missing or of a wrong type"),
        ({"paths": ["a", "b", "c"]}, "sizes has 2 entries, not 3"),
        ({"sizes": [1, -1]}, "sizes has a number out of range"),
        ({"sizes": [1, 2**63]}, "sizes has a number out of range"),
        ({"sizes": [1, True]}, "sizes is missing or of a wrong type"),
        ({"sizes": [1, 1.5]}, "sizes is missing or of a wrong type"),
        ({"mtimes_ns": [1]}, "mtimes_ns has 1 entries, not 2"),
        ({"fragment_rows": [5, 0, 5, 1]}, "fragment_rows has a number out of range"),
        ({"fragment_file": [0, 0, 1, 2]}, "a file that is not listed"),
        ({"fragment_file": [0, 0, 1]}, "fragment_file has 3 entries, not 4"),
        ({"fragment_file": [1, 1, 0, 0]}, "not in order"),
        ({"fragment_group": [0, 0, 0, 2]}, "not in order"),
        ({"differences": [[["b", 1]]]}, "differences are of a wrong type"),
        ({"differences": [[["b"]]]}, "differences are of a wrong type"),
        ({"differences": ["b"]}, "differences is missing or of a wrong type"),
        ({"differences": [[["b", "x"]]]}, "file_difference is missing"),
        ({"differences": [], "file_difference": [0, -1], "model": [0]}, "files that are not listed"),
        ({"differences": [], "file_difference": [-1, -1], "model": [2]}, "files that are not listed"),
        ({"differences": [], "file_difference": [-1], "model": [0]}, "file_difference has 1 entries, not 2"),
        ({"column_names": ["ids"]}, "column_nbytes has 2 entries, not 1"),
        ({"column_lengths": [1, "2"]}, "column_lengths is missing or of a wrong type"),
        ({"column_lengths": [1, -2]}, "column_lengths has a number out of range"),
        ({"column_lengths": [1]}, "column_lengths has 1 entries, not 2"),
        ({"schema": 5}, "schema is missing or of a wrong type"),
        ({"schema": "%%%"}, "schema is not base64"),
    ],
)
def test_nothing_in_the_file_is_trusted(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    """The checksum is right here: it guards against accidents, not against intent."""
    data = good_bytes(tmp_path)
    payload = json.loads(data)["payload"] | change

    with pytest.raises(ManifestError) as caught:
        read_manifest(forged(tmp_path / "m.json", json.dumps(payload).encode()))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"[" * 100_000, "the manifest"),
        (b"[]", "has no payload"),
        (b"{,}", "does not parse"),
        (b'{"paths":[' + b"9" * 10_000 + b"]}", "does not parse"),
        (b"{}", "paths is missing"),
        (base64.b64encode(b"x"), "does not parse"),
    ],
)
def test_a_payload_that_is_no_manifest_is_refused(tmp_path: Path, payload: bytes, text: str) -> None:
    with pytest.raises(ManifestError, match=text):
        read_manifest(forged(tmp_path / "m.json", payload))


def test_another_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ManifestError, match="has version 7; this version of antifreeze supports versions up to 2"
    ) as caught:
        read_manifest(forged(tmp_path / "m.json", b"{}", version=7))
    assert "index_parquet_dataset again" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"", "is empty"), (b"PAR1", "is not an antifreeze manifest"), (b"{}", "is not an antifreeze manifest")],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "m.json").write_bytes(data)

    with pytest.raises(ManifestError, match=text):
        read_manifest(str(tmp_path / "m.json"))


def test_a_missing_or_unreadable_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="there is no manifest"):
        read_manifest(str(tmp_path / "m.json"))
    with pytest.raises(ManifestError, match="cannot be read: it is a folder, expected a regular file"):
        read_manifest(str(tmp_path))


@pytest.mark.parametrize("broken", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_leaves_the_old_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, error: BaseException
) -> None:
    path = tmp_path / "m.json"
    write_manifest(manifest_of("old.parquet"), str(path))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        write_manifest(manifest_of("new.parquet"), str(path))
    monkeypatch.undo()

    if isinstance(error, OSError):
        assert "cannot be written: No space left on device" in str(caught.value)
        assert caught.value.__cause__ is error
    assert same(read_manifest(str(path)), manifest_of("old.parquet"))
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file or directory") as caught:
        write_manifest(manifest_of("a"), str(tmp_path / "none" / "m.json"))
    assert "index_path=" in caught.value.hint


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    """Datasets are shared; a temporary file's usual rights would lock colleagues out."""
    old = os.umask(0o022)
    try:
        write_manifest(manifest_of("a"), str(tmp_path / "m.json"))
    finally:
        os.umask(old)

    assert (tmp_path / "m.json").stat().st_mode & 0o777 == 0o644


def test_the_same_manifest_gives_the_same_bytes(tmp_path: Path) -> None:
    write_manifest(manifest_of("a", "b"), str(tmp_path / "1"))
    write_manifest(manifest_of("a", "b"), str(tmp_path / "2"))

    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
