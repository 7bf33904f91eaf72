"""What the user names becomes the same files in the same order everywhere."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.core import ConfigError, InputError, SourceNotFound
from antifreeze.storage import MANIFEST_NAME, list_files
from antifreeze.storage._listing import natural_key


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names_of(source: object) -> list[str]:
    return [file.path for file in list_files(source).files]  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 10**6), unique=True, min_size=2), st.randoms(use_true_random=False))
def test_numbers_in_names_are_ordered_as_numbers(numbers: list[int], rng: random.Random) -> None:
    """part-2 stands before part-10, whatever order the file system gives."""
    names = [f"part-{number}.parquet" for number in numbers]
    rng.shuffle(names)

    assert sorted(names, key=natural_key) == [f"part-{number}.parquet" for number in sorted(numbers)]


@given(st.lists(st.text("ab019-_/.", min_size=1), unique=True), st.randoms(use_true_random=False))
def test_the_order_is_total(names: list[str], rng: random.Random) -> None:
    """Names with equal numbers (1, 01) have a fixed order too, and any two names can be compared."""
    shuffled = names.copy()
    rng.shuffle(shuffled)

    assert sorted(shuffled, key=natural_key) == sorted(names, key=natural_key)


def test_a_directory_is_searched_with_all_below_it(tmp_path: Path) -> None:
    make(tmp_path, "b/part-10.parquet", "b/part-2.PARQUET", "a.pq", "c.parq", "notes.txt", "x.parquet.crc")

    listing = list_files(tmp_path)

    assert listing.root == str(tmp_path)
    assert listing.is_folder
    assert [file.path for file in listing.files] == ["a.pq", "b/part-2.PARQUET", "b/part-10.parquet", "c.parq"]


def test_names_with_a_dot_or_an_underscore_are_skipped(tmp_path: Path) -> None:
    """Spark and others write markers and unfinished work under such names."""
    make(tmp_path, "a.parquet", "_b.parquet", ".c.parquet", "_temporary/d.parquet", ".git/e.parquet")

    assert names_of(tmp_path) == ["a.parquet"]


def test_size_and_time_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"12345")
    os.utime(tmp_path / "a.parquet", ns=(1, 1_234_567_891))
    (tmp_path / "empty.parquet").write_bytes(b"")

    one, empty = list_files(str(tmp_path)).files

    assert (one.size, one.mtime_ns) == (5, 1_234_567_891)
    assert empty.size == 0


def test_one_file_may_have_any_name(tmp_path: Path) -> None:
    make(tmp_path, "_data.bin")

    listing = list_files(tmp_path / "_data.bin")

    assert (listing.root, listing.is_folder) == (str(tmp_path), False)
    assert names_of(tmp_path / "_data.bin") == ["_data.bin"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*/part-*.parquet", ["x/part-2.parquet", "x/part-10.parquet", "y/part-1.parquet"]),
        ("**/part-1*", ["x/part-10.parquet", "y/part-1.parquet", "y/z/part-1.csv"]),
        ("x/part-?.parquet", ["part-2.parquet"]),
        ("[xy]/*0.parquet", ["part-10.parquet"]),
        ("**/**/part-2.parquet", ["part-2.parquet"]),
        ("x/**", ["_c.parquet", "part-2.parquet", "part-10.parquet"]),
        ("?", ["x/part-2.parquet", "x/part-10.parquet", "y/part-1.parquet"]),
    ],
)
def test_a_glob_takes_what_it_matches(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    """Of any suffix; a folder that matches is searched, for Spark calls its folders name.parquet."""
    make(tmp_path, "x/part-10.parquet", "x/part-2.parquet", "x/_c.parquet", "x/.h/part-2.parquet")
    make(tmp_path, "y/part-1.parquet", "y/z/part-1.csv")

    assert sorted(names_of(f"{tmp_path}/{pattern}")) == sorted(expected)
    assert names_of(f"{tmp_path}/{pattern}") == sorted(expected, key=natural_key)


def test_a_glob_leaves_the_manifest_out(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet", MANIFEST_NAME)

    assert names_of(f"{tmp_path}/*") == ["a.parquet"]


def test_a_name_that_exists_is_no_pattern(tmp_path: Path) -> None:
    make(tmp_path, "run[1]/a.parquet", "run1/b.parquet")

    assert names_of(tmp_path / "run[1]") == ["a.parquet"]


def test_a_list_keeps_the_order_of_its_items(tmp_path: Path) -> None:
    make(tmp_path, "b/2.parquet", "b/10.parquet", "a/1.parquet", "a/c/0.parquet")

    listing = list_files([tmp_path / "b", f"{tmp_path}/a/*.parquet", str(tmp_path / "a/c/0.parquet")])

    assert listing.root == str(tmp_path)
    assert [file.path for file in listing.files] == ["b/2.parquet", "b/10.parquet", "a/1.parquet", "a/c/0.parquet"]


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet")

    with pytest.raises(ConfigError, match=r"a\.parquet is named twice") as caught:
        list_files([tmp_path, tmp_path / "." / "a.parquet"])
    assert caught.value.facts["path"] == str(tmp_path / "a.parquet")


def test_links_are_followed_and_cycles_end(tmp_path: Path) -> None:
    """Two links that lead back could be followed in 2**40 ways."""
    make(tmp_path, "data/a.parquet", "far/b.parquet")
    (tmp_path / "data/link").symlink_to(tmp_path / "far")
    (tmp_path / "far/back").symlink_to(tmp_path / "data")
    (tmp_path / "data/self").symlink_to(".")
    (tmp_path / "data/loop").symlink_to("loop")
    expected = ["a.parquet", "link/b.parquet"]

    assert names_of(tmp_path / "data") == expected
    assert names_of(f"{tmp_path}/data/**/*.parquet") == expected


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    """Passing it over would lose rows in silence."""
    make(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").symlink_to("gone")

    with pytest.raises(SourceNotFound, match=r"b\.parquet is a link to nothing"):
        list_files(tmp_path)


@pytest.mark.parametrize("form", ["{}/pipe.parquet", "{}", "{}/*"])
def test_a_pipe_is_refused(tmp_path: Path, form: str) -> None:
    """Opening it would wait for ever."""
    os.mkfifo(tmp_path / "pipe.parquet")

    with pytest.raises(InputError, match=r"pipe\.parquet is neither a file nor a directory"):
        list_files(form.format(tmp_path))


def test_the_home_directory_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "data/a.parquet")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert list_files("~/data").root == str(tmp_path / "data")


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "data/a.parquet", "other/b.parquet")
    monkeypatch.chdir(tmp_path / "other")

    assert list_files("../data/").root == str(tmp_path / "data")
    assert names_of("../data/*.parquet") == ["a.parquet"]
    assert names_of("*.parquet") == ["b.parquet"]


def test_upwards_through_a_link_goes_where_the_system_goes(tmp_path: Path) -> None:
    make(tmp_path, "far/deep/x.parquet", "far/a.parquet", "near/b.parquet")
    (tmp_path / "near/link").symlink_to(tmp_path / "far/deep")

    assert list_files(f"{tmp_path}/near/link/..").root == str(tmp_path / "far")


def test_a_path_that_litdata_marks_as_local_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute or not, in a list or alone; a folder that has the mark in its name is that folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.parquet").write_bytes(b"1")

    for source in (f"local:{tmp_path}/d", "local:d", ["local:d"], "local:d/*.parquet"):
        assert [file.path for file in list_files(source).files] == ["a.parquet"]
    (tmp_path / "local:d").mkdir()
    (tmp_path / "local:d/b.parquet").write_bytes(b"1")
    assert [file.path for file in list_files("local:d").files] == ["b.parquet"]


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    make(tmp_path, "my data/part-1.parquet", "my data/part-22.parquet")

    assert names_of(f"file://{tmp_path}/my%20data") == ["part-1.parquet", "part-22.parquet"]
    assert names_of(f"file://localhost{tmp_path}/my%20data/part-?.parquet") == ["part-1.parquet"]


@pytest.mark.parametrize("name", [b"caf\xe9.parquet", "日本.parquet".encode()])
def test_names_of_any_bytes_are_listed(tmp_path: Path, name: bytes) -> None:
    (tmp_path / os.fsdecode(name)).write_bytes(b"")

    assert [os.fsencode(path) for path in names_of(tmp_path)] == [name]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"data", "input_dir cannot be of type bytes"),
        (None, "input_dir cannot be of type NoneType"),
        (7, "input_dir cannot be of type int"),
        ({"a"}, "input_dir cannot be of type set"),
        (["a", 3], "input_dir cannot be of type int"),
        ([], "input_dir is an empty list"),
        ("", "input_dir is an empty string"),
        ("a\0b", "null character"),
        ("s3://bucket/data", "s3:// is not supported"),
        ("hf://datasets/x", "only local files are supported in this version"),
        ("file://server/data", "does not name a local file"),
        ("/data/*/../x", "goes upwards"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path: Path, source: object, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError) as caught:
        list_files(source)  # type: ignore[arg-type]
    assert text in str(caught.value)
    assert caught.value.argument == "input_dir"
    assert caught.value.hint
    assert "path" in caught.value.facts


@pytest.mark.parametrize(
    ("source", "text", "hint"),
    [
        ("tran", "there is no file or directory {}/tran", "did you mean {}/train?"),
        ("train/zzz/qqq", "there is no file or directory {}/train/zzz/qqq", "{}/train exists, but has no zzz"),
        ("train/a.csv/b", "there is no file or directory {}/train/a.csv/b", "did you mean {}/train/a.csv?"),
        ("train", "no Parquet files in {}/train: it holds 3 files, such as a.csv", "must end in .parquet"),
        ("one", "no Parquet files in {}/one: it holds 1 file, such as x/y.txt", ""),
        ("empty", "no Parquet files in {}/empty: it is empty", ""),
        ("hidden", "it holds only empty folders and names that start with '.' or '_'", ""),
        ("train/*.parquet", "nothing matches {}/train/*.parquet", "matched below {}/train"),
        ("gone/*.parquet", "there is no folder {}/gone", ""),
        ("emp*", "matches only folders without Parquet files (1)", ""),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, source: str, text: str, hint: str) -> None:
    make(tmp_path, "train/a.csv", "train/b.csv", "train/c.csv", "one/x/y.txt", "hidden/_a.parquet")
    (tmp_path / "empty").mkdir()

    with pytest.raises(SourceNotFound) as caught:
        list_files(tmp_path / source)
    assert text.format(tmp_path) in caught.value.message
    assert hint.format(tmp_path) in caught.value.hint
    assert caught.value.path == str(tmp_path / source)


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passing it over would lose rows in silence."""
    make(tmp_path, "a.parquet", "locked/b.parquet")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(InputError, match="locked cannot be read: Permission denied"):
        list_files(tmp_path)
