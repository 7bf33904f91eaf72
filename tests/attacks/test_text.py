"""Hostile names in every text that a person sees: no escape, no forged line, no megabyte."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile_names import ESCAPES, ORDINARY, assert_clean, fit_for_files, generated
from hypothesis import given
from hypothesis import strategies as st

import antifreeze as af
from antifreeze.core import HIDDEN, Location, clean_block, get_logger, one_line
from antifreeze.core._text import is_clean
from antifreeze.diagnosis import Cause, Finding, Frame, Report, Restart, Skip
from antifreeze.distributed import RankStatus
from antifreeze.distributed._rank_judge import Change, RankEvent, RankProblem, RankVerdict, say
from antifreeze.distributed._record import RankRecord, decode, encode, from_json, make_record, to_json
from antifreeze.doctor._terminal import Paper
from antifreeze.doctor.command import main
from antifreeze.doctor.job._fix import Fix
from antifreeze.doctor.job._job_report import as_text, as_values, keep
from antifreeze.doctor.job._observation import Observation, Process, Snapshot, Stack, Thread
from antifreeze.doctor.job._verdict import judge
from antifreeze.pool._failures import fault_error, lines_of

names = pytest.mark.parametrize("name", ESCAPES.values(), ids=ESCAPES)


# -- the sanitiser -------------------------------------------------------------------------------------------------


@given(st.text(max_size=300))
def test_any_text_becomes_one_clean_line(text: str) -> None:
    """And cleaning it again changes nothing."""
    shown = one_line(text, 200)

    assert is_clean(shown)
    assert "\n" not in shown
    assert len(shown) <= 200
    assert one_line(shown, 200) == shown


@given(st.text(max_size=300))
def test_any_block_keeps_its_lines_and_nothing_else(text: str) -> None:
    """A traceback has lines by its nature."""
    shown = clean_block(text)

    assert is_clean(shown.replace("\n", "").replace("\t", "").replace("\r", ""))
    assert shown.count("\n") == text.count("\n")
    assert clean_block(shown) == shown


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_names_stay_as_they_are(text: str) -> None:
    """Letters, marks, emoji and spaces of every script."""
    assert one_line(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\u202e", r"\u202e"),
        ("\u2028", r"\u2028"),
        ("\udcff", r"\udcff"),
        ("\x85", r"\x85"),
        ("\x7f", r"\x7f"),
        ("\U000e0041", r"\U000e0041"),
        ("C:\\new", "C:\\new"),
    ],
)
def test_what_is_replaced_is_seen(text: str, shown: str) -> None:
    """A person must see that something was there, and what."""
    assert one_line(text) == shown


def test_what_is_cut_is_counted() -> None:
    """Both ends stay: a path says most at its end."""
    shown = one_line("/data/" + "x" * 10_000 + "/part-3.parquet", 200)

    assert len(shown) <= 200
    assert shown.startswith("/data/xxx")
    assert shown.endswith("/part-3.parquet")
    assert "9,821 characters cut" in shown


def test_a_secret_is_not_cut_in_two() -> None:
    """Half of a secret that is at the end of what is shown would not look like one."""
    canary = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB0cDeF1hI4kL7nO0"
    for at in range(0, 500, 7):
        shown = one_line("y " * (at // 2) + canary + " z" * 5_000, 250)
        assert canary[:8] not in shown or HIDDEN in shown


def test_an_object_that_cannot_be_printed_is_named() -> None:
    """Rendering a fact must not fail."""

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert one_line(Broken()) == "(Broken that cannot be printed)"


# -- errors --------------------------------------------------------------------------------------------------------


@names
@pytest.mark.parametrize("kind", [af.ConfigError, af.UnknownColumn, af.CorruptFile, af.UnreadableFile, af.WorkerDied])
def test_an_error_is_clean_whatever_it_names(name: str, kind: type[af.AntifreezeError]) -> None:
    """In its message, hint and lines; its facts are what was found."""
    error = kind(f"{name} is damaged", hint=f"look at {name}", lines=[name, "at row 3"], file=name)

    for text in (str(error), error.message, error.hint, "".join(error.args)):
        assert_clean(text, most=12_000)
    assert_clean(repr(error), most=40_000)
    assert str(error).count("\n") == 3
    assert error.facts["file"] == name
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


def test_the_check_can_fail() -> None:
    """What is not cleaned is found."""
    with pytest.raises(AssertionError):
        assert_clean(f"{ESCAPES['colour']} is damaged")
    with pytest.raises(AssertionError):
        assert_clean(ESCAPES["log"])
    with pytest.raises(AssertionError):
        assert_clean(ESCAPES["long"])


def errors_of(do: Callable[[], Any]) -> str:
    """Return the text of the error that something raises."""
    with pytest.raises(af.AntifreezeError) as caught:
        do()
    return str(caught.value)


@pytest.mark.parametrize(
    "key", ["colour", "line", "log", "return", "bidi", "separators", "surrogate", "c1", "invisible"]
)
def test_hostile_files_folders_and_columns_are_named_cleanly(key: str, tmp_path: Path) -> None:
    """Read, not read, missing, damaged; in the name of a file, a column, a hive folder and an argument."""
    name = fit_for_files(ESCAPES[key])
    folder = tmp_path / "data"
    (folder / f"k={name}").mkdir(parents=True)
    with (folder / f"k={name}" / f"{name}.parquet").open("wb") as file:  # Arrow itself opens no such path
        pq.write_table(pa.table({"x": [1, 2]}), file)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / f"{name}.parquet").write_bytes(b"\x1b[31mnot parquet" * 40)
    column = name.encode("utf-8", "replace").decode()
    pq.write_table(pa.table({column: pa.array([1, None])}), tmp_path / "nulls.parquet")
    texts = [
        errors_of(lambda: af.StreamingDataset(str(tmp_path / name))),
        errors_of(lambda: af.StreamingDataset(str(folder), columns=[name])),
        errors_of(lambda: list(af.StreamingDataset(str(tmp_path / "bad"), format="numpy"))),
        errors_of(lambda: list(af.StreamingDataset(str(tmp_path / "nulls.parquet"), format="numpy"))),
        errors_of(lambda: af.StreamingDataset(str(folder), format=name)),  # type: ignore[arg-type]
        errors_of(lambda: af.StreamingDataset(f"{name}://bucket/x")),
        errors_of(lambda: af.DataLoader([1], on_error=name)),
    ]

    for text in texts:
        assert_clean(text, most=5_000)


def test_the_first_bytes_of_a_foreign_file_are_not_shown(tmp_path: Path) -> None:
    """They may be anything, a private key too."""
    (tmp_path / "a.parquet").write_bytes(b"hunter2Z password file\n" * 10)
    text = errors_of(lambda: af.StreamingDataset(str(tmp_path)))

    assert "is not a Parquet file" in text
    assert "hunter" not in text


@names
def test_a_manifest_cannot_write_into_the_terminal(name: str, tmp_path: Path) -> None:
    """Paths in a manifest are chosen by its author."""
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    af.index_parquet_dataset(str(tmp_path))
    manifest = next(path for path in tmp_path.iterdir() if path.suffix != ".parquet")
    manifest.write_bytes(manifest.read_bytes().replace(b"a.parquet", json.dumps(name[:2000])[1:-1].encode()))
    with contextlib.suppress(af.AntifreezeError):
        list(af.StreamingDataset(str(tmp_path), format="numpy"))
        return
    with pytest.raises(af.AntifreezeError) as caught:
        list(af.StreamingDataset(str(tmp_path), format="numpy"))

    assert_clean(str(caught.value), most=9_000)


class Hostile:
    """A dataset whose class, samples and errors have hostile names."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> int:
        raise type(self.name[:100].replace("\0", "") or "x", (ValueError,), {})(self.name)


@names
def test_user_exceptions_are_shown_cleanly_and_chained_untouched(name: str) -> None:
    """In this process."""
    if "\ud800" in name:  # no class can have such a name
        name = name.replace("\ud800", "").replace("\udcff", "") + "x"
    with pytest.raises(af.UserCodeError) as caught:
        list(af.DataLoader(Hostile(name), num_workers=0))

    assert_clean(str(caught.value), most=9_000)
    assert caught.value.__cause__ is not None
    assert str(caught.value.__cause__) == name


def test_user_exceptions_of_workers_are_shown_cleanly() -> None:
    """Through a pickle, with the worker's traceback as text."""
    name = ESCAPES["colour"] + ESCAPES["log"] + ESCAPES["bidi"] + "x" * 100_000
    with pytest.raises(af.UserCodeError) as caught:
        list(af.DataLoader(Hostile(name), num_workers=1))
    error: BaseException | None = caught.value
    assert_clean(str(error), most=9_000)
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__

    assert_clean(str(chain[-1]).replace("\nERROR", ""), most=50_000)
    assert type(chain[-1]).__name__ == "WorkerTraceback"


# -- logs, reports, ranks ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def logged() -> Iterator[io.StringIO]:
    """Collect what the package's logger writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    get_logger().addHandler(handler)
    try:
        yield stream
    finally:
        get_logger().removeHandler(handler)


@names
def test_log_lines_are_clean(name: str) -> None:
    """Arguments are facts; the template is ours, and its line breaks stay."""
    with logged() as stream:
        get_logger().warning("antifreeze: %s waits for %r, %d times\n  hint: %s", name, [name], 3, name)
        get_logger().error("antifreeze: %s", af.ConfigError(name, hint=name))
    assert_clean(stream.getvalue())
    assert stream.getvalue().count("\n") == 4
    assert ", 3 times\n  hint: " in stream.getvalue()


@pytest.mark.parametrize("key", [key for key in ESCAPES if key not in ("line", "log")])
def test_tracebacks_in_logs_are_clean(key: str) -> None:
    """They have lines by their nature; nothing else of a message gets through."""
    with logged() as stream:
        get_logger().error("antifreeze: it failed", exc_info=ValueError(ESCAPES[key]))

    assert_clean(stream.getvalue())
    assert "ValueError" in stream.getvalue()


@names
def test_reports_are_clean(name: str) -> None:
    """Samples, reasons, evidence."""
    report = Report(
        delivered_batches=9,
        wall_s=9.0,
        skipped=(Skip(sample=name, reason=name, epoch=0, step=0),),
        num_skipped=1,
        restarts=(Restart(worker=0, pid=1, cause="killed", sample=name, after_s=1.0, evidence=(name,)),),
        slowest_sample=(name, 1.0),
        slow=(name,),
        per_worker_load=name,
        carried=(name,),
    )

    assert_clean(str(report), most=9_000)
    assert all(len(line) <= 100 for line in str(report).splitlines())


@names
def test_messages_about_ranks_are_clean(name: str) -> None:
    """Whatever another process has written into the store, and whatever is seen here."""
    place = Location(name, name, name, 3.0, name)
    record = make_record(RankRecord(rank=1, host=name, pid=7), 1, RankStatus(0, 0, 20.0, 20.0, place))
    read = from_json(decode(encode(to_json(record)).encode("utf-8", "replace"), most=1 << 30), 1)
    assert read is not None
    for each in (record, read, record._replace(cause=name, title=name)):
        for kind in RankProblem:
            for change in Change:
                text = say(
                    RankEvent(change, RankVerdict(kind, each, 40.0)), rank=0, world_size=2, idle_s=30.0, store=name
                )
                assert_clean(text, most=9_000)
                assert text.count("\n") <= 1


# -- the doctor ----------------------------------------------------------------------------------------------------


def seen_with(name: str) -> Observation:
    """Return a job in which everything that has a name has this one."""
    frame = Frame(file=f"/home/{name}.py", line=1, function=name)
    loads = Frame(file="/x/torch/utils/data/dataloader.py", line=1, function="_try_get_data")

    def process(pid: int, parent: int, frames: tuple[Frame, ...]) -> Process:
        return Process(
            pid=pid,
            parent=parent,
            name=name,
            program="python3",
            command=("python", name),
            folder=f"/{name}",
            state="S",
            threads=(
                Thread(tid=pid, name=name, state="S", wchan=name, syscall="read", target=name, path=name, mount=name),
            ),
            stacks=(Stack(tid=pid, name=name, frames=frames, sample=name),),
            stacks_error=name,
        )

    processes = (process(100, 1, (loads, frame)), process(101, 100, (frame,)))
    looks = tuple(Snapshot(at_s=float(at), processes=processes) for at in range(8))
    return Observation(root=100, snapshots=looks, still_s=60.0)


def fix_with(name: str) -> Fix:
    return Fix(words=name, diff=f"--- a\n+++ b\n-{name}\n", command=name)


@names
def test_what_the_doctor_prints_is_clean(name: str) -> None:
    """As text and as values for JSON."""
    diagnosis = judge(seen_with(name)).with_lines((name,))
    fixes = (fix_with("y"), Fix(words=name, command=name))

    assert_clean(as_text(diagnosis, fixes, Paper(80)))
    assert_clean(json.dumps(as_values(diagnosis, fixes, 1), ensure_ascii=False, indent=1), most=500_000)
    assert_clean(diagnosis.summary, most=3_000)


@names
def test_a_diff_cannot_steer_the_terminal(name: str) -> None:
    """It has lines by its nature, and comes from a file of the user, or from a folder."""
    text = as_text(judge(seen_with("x")), (fix_with(name),), Paper(80))

    assert_clean(text.replace("\nERROR antifreeze", "\n-").replace("\n  hint: run", "\n-"))


@names
def test_doctor_report_is_clean_and_says_whose_advice_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder may come from anybody."""
    folder = tmp_path / "kept"
    keep(folder, seen_with(name), (Fix(words=name, command=name),), "")
    main(["doctor", "report", str(folder)])
    printed = capsys.readouterr().out

    assert_clean(printed)
    assert "was read from" in " ".join(printed.split())
    assert "Review a command or a diff before you run or apply it." in " ".join(printed.split())
    main(["doctor", "report", "--json", str(folder)])
    values = json.loads(capsys.readouterr().out)
    assert values["folder"] == str(folder)


@names
def test_a_damaged_folder_is_refused_cleanly(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it holds in place of numbers, versions and lists is shown, but not as it is."""
    (tmp_path / "fixes.json").write_text("[]")
    for values in ({"version": name}, {"version": 1, "root": name}, {"version": 1, name: 1}, name):
        (tmp_path / "seen.json").write_text(json.dumps(values))
        assert main(["doctor", "report", str(tmp_path)]) == 2
        assert_clean(capsys.readouterr().err, most=2_000)


@pytest.mark.parametrize("key", ["colour", "line", "log", "return", "bidi", "surrogate"])
def test_doctor_check_names_scripts_cleanly(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts that are found, are no Python, or do not exist."""
    name = fit_for_files(ESCAPES[key])
    good, bad = tmp_path / f"{name}.py", tmp_path / f"bad{name}.py"
    good.write_text("from torch.utils.data import DataLoader\nprint(DataLoader([1], batch_size=1, num_workers=99))\n")
    bad.write_text("def (:\n")
    main(["doctor", "check", "--all", os.fspath(good), os.fspath(bad), os.fspath(tmp_path / f"none{name}")])
    captured = capsys.readouterr()
    assert_clean(captured.out)
    assert_clean(captured.err)
    main(["doctor", "check", "--json", os.fspath(good), os.fspath(bad)])
    assert_clean(json.dumps(json.loads(capsys.readouterr().out), ensure_ascii=False, indent=1))


@names
def test_findings_of_workers_are_clean(name: str) -> None:
    """Evidence names threads, files and functions."""
    finding = Finding(cause=Cause.NETWORK, evidence_lines=(name, str(Frame(file=name, line=1, function=name))))

    assert_clean(lines_of(finding), most=3_000)
    assert_clean(str(fault_error(finding, worker=name, step=1, place=name, attempts=2)), most=9_000)


@pytest.mark.parametrize("part", range(3))
def test_generated_names_are_clean_everywhere(part: int) -> None:
    """Names that nobody has thought of, in errors and in what the doctor prints."""
    for seed in range(part * 30, part * 30 + 30):
        attack_with(generated(seed))


@pytest.mark.soak
def test_thousands_of_generated_names_are_clean_everywhere() -> None:
    """The same, for longer."""
    for seed in range(3_000):
        attack_with(generated(seed))


def attack_with(name: str) -> None:
    assert_clean(str(af.CorruptFile(f"{name} is damaged", hint=name, lines=[name], file=name)), most=12_000)
    assert_clean(str(Frame(file=name, line=1, function=name)))
    assert_clean(as_text(judge(seen_with(name)), (Fix(words=name, command=name),), Paper(80)))
