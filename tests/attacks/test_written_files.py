"""Nothing that we write can be turned against its owner: planted links, pipes, files and folders in every place."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze import ConfigError, DataLoader, StreamingDataLoader, StreamingDataset, index_parquet_dataset
from antifreeze.core import PrivateFolder, UnsafeFile, create_file, open_to_append
from antifreeze.diagnosis import Skip, SkipLog
from antifreeze.storage import MANIFEST_NAME

OTHER_USER = 65534
PRIVATE_FILES = ("seen.json", "fixes.json", "diagnosis.txt")
KINDS = ("link", "link to nothing", "link to a folder", "hard link", "pipe", "folder", "file", "link to a link")


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder that every user may enter. Not ``tmp_path``: each run of pytest closes the one above it to others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def victim(top: Path) -> Path:
    """A folder with files that must not change, which another user would like to."""
    folder = top / "victim"
    folder.mkdir(mode=0o700)
    (folder / "precious").write_text("precious")
    return folder


@pytest.fixture
def shared(top: Path) -> Path:
    """A folder that everybody may write to, as /tmp."""
    folder = top / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return all files of a folder, with their modes and contents."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in files}


def as_other_user(action: Callable[[], None]) -> None:
    """Do something as another user or, as only root can become one, as this one: links are refused all the same."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(OTHER_USER)
                os.setuid(OTHER_USER)
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def plant(kind: str, path: Path, victim: Path) -> None:
    """Put something where a file or folder of ours is expected."""
    if kind == "link":
        path.symlink_to(victim / "precious")
    elif kind == "link to nothing":
        path.symlink_to(victim / "new")
    elif kind == "link to a folder":
        path.symlink_to(victim, target_is_directory=True)
    elif kind == "link to a link":
        path.with_name(path.name + "~").symlink_to(victim)
        path.symlink_to(path.name + "~")
    elif kind == "hard link":
        other = path.with_name(path.name + "~")
        other.write_text("other")
        path.hardlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir(mode=0o777)
        path.chmod(0o777)
        for name in PRIVATE_FILES:
            (path / name).symlink_to(victim / "precious")
    else:
        path.write_text("mine")


# -- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_private_folder_is_new_whatever_was_planted(kind: str, shared: Path, victim: Path) -> None:
    as_other_user(lambda: plant(kind, shared / "evidence", victim))
    before = snapshot(victim)

    with PrivateFolder(shared / "evidence") as folder:
        for name in PRIVATE_FILES:
            folder.write(name, b"secret")

    assert snapshot(victim) == before
    assert folder.path.name.startswith("evidence-")
    assert not folder.path.is_symlink()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert {path.name for path in folder.path.iterdir()} == set(PRIVATE_FILES)
    for path in folder.path.iterdir():
        assert path.read_bytes() == b"secret"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_names_cannot_be_guessed(tmp_path: Path) -> None:
    folders = [PrivateFolder(tmp_path / "evidence") for _ in range(50)]
    for folder in folders:
        folder.close()

    assert len({folder.path for folder in folders}) == 50
    assert all(len(folder.path.name) == len("evidence-12345678") for folder in folders[1:])


def test_the_umask_does_not_open_a_private_folder(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with PrivateFolder(tmp_path / "evidence") as folder:
            folder.write("a", b"")
    finally:
        os.umask(before)

    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.path / "a").stat().st_mode) == 0o600


def test_a_folder_that_was_replaced_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its opening, by one that others can write to, or by a link."""
    real = Path.mkdir
    (tmp_path / "far").mkdir()

    def replace_by(put: Callable[[Path], None]) -> Callable[..., None]:
        def mkdir(path: Path, *given: Any, **named: Any) -> None:
            real(path, *given, **named)
            if path.name == "evidence":
                path.rmdir()
                put(path)

        return mkdir

    monkeypatch.setattr(Path, "mkdir", replace_by(lambda path: real(path) or path.chmod(0o777)))
    with pytest.raises(UnsafeFile, match="another user has replaced the folder"):
        PrivateFolder(tmp_path / "evidence")
    (tmp_path / "evidence").rmdir()
    monkeypatch.setattr(Path, "mkdir", replace_by(lambda path: path.symlink_to(tmp_path / "far")))
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        PrivateFolder(tmp_path / "evidence")


def test_a_file_is_created_or_refused(tmp_path: Path, victim: Path) -> None:
    before = snapshot(victim)
    for kind in KINDS:
        path = tmp_path / f"a {kind}"
        plant(kind, path, victim)
        with pytest.raises(FileExistsError):
            create_file(path, 0o600)

    assert snapshot(victim) == before


# -- the doctor ------------------------------------------------------------------------------------------------------

SLEEPS = "import sys, time; print('up', flush=True); time.sleep(1e6)"


@pytest.mark.parametrize("kind", ["link to a folder", "folder", "pipe"])
def test_the_doctor_keeps_evidence_in_a_folder_of_its_own(kind: str, shared: Path, victim: Path) -> None:
    """In a directory where another user has foreseen its name."""
    as_other_user(lambda: plant(kind, shared / "evidence", victim))
    before = snapshot(victim)
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "up\n"
            words = [sys.executable, "-m", "antifreeze", "doctor", str(job.pid), "--keep", "evidence"]
            done = subprocess.run(words, cwd=shared, capture_output=True, text=True, timeout=100, check=False)
        finally:
            job.kill()

    assert snapshot(victim) == before
    (kept,) = shared.glob("evidence-*")
    assert f"evidence exists; kept in {kept.name}" in done.stderr
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in kept.iterdir()} == dict.fromkeys(
        PRIVATE_FILES, 0o600
    )


# -- manifests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "link to nothing", "hard link", "pipe", "file", "link to a link"])
def test_a_manifest_replaces_what_was_planted(kind: str, shared: Path, victim: Path) -> None:
    """It is put in its place as a whole, never written through it, and others can read it."""
    pq.write_table(pa.table({"x": [1, 2]}), shared / "a.parquet")
    as_other_user(lambda: plant(kind, shared / MANIFEST_NAME, victim))
    before = snapshot(victim)
    umask = os.umask(0o022)
    try:
        index_parquet_dataset(shared, progress=False)
    finally:
        os.umask(umask)

    status = (shared / MANIFEST_NAME).lstat()
    assert snapshot(victim) == before
    assert stat.S_ISREG(status.st_mode)
    assert (stat.S_IMODE(status.st_mode), status.st_nlink, status.st_uid) == (0o644, 1, os.geteuid())
    assert len(StreamingDataset(shared)) == 2


# -- the log of skipped samples --------------------------------------------------------------------------------------

SKIP = Skip(sample="sample 1", reason="bad", epoch=0, step=0)


class Bad:
    """Every second sample fails."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index % 2:
            raise ValueError(f"bad {index}")
        return index


def loader_of(path: Path, **options: Any) -> Any:
    return DataLoader(Bad(), batch_size=4, on_error="skip", skip_log=path, **options)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "file"])
def test_a_skip_log_that_was_planted_is_refused(kind: str, shared: Path, victim: Path) -> None:
    as_other_user(lambda: plant(kind, shared / "skips.jsonl", victim))
    before = snapshot(victim)

    with pytest.raises(ConfigError, match=r"cannot write skip_log '.*skips\.jsonl': it ") as caught:
        loader_of(shared / "skips.jsonl")
    assert caught.value.argument == "skip_log"
    assert caught.value.hint
    assert snapshot(victim) == before


def test_a_skip_log_of_another_user_is_refused(shared: Path, victim: Path) -> None:
    as_other_user(lambda: plant("file", shared / "skips.jsonl", victim))
    if os.geteuid() == 0:
        with pytest.raises(ConfigError, match=f"it belongs to another user \\(uid {OTHER_USER}\\)"):
            loader_of(shared / "skips.jsonl")
        assert (shared / "skips.jsonl").read_text() == "mine"
    else:
        loader_of(shared / "skips.jsonl")  # it is this user's own


@pytest.mark.parametrize("place", ["missing/skips.jsonl", "file/skips.jsonl", "", "/dev/full", "/dev/tty", "a\0b"])
def test_a_skip_log_that_cannot_be_written_is_refused_when_the_loader_is_made(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")

    for make in (loader_of, lambda path: StreamingDataLoader(StreamingDataset(tmp_path), skip_log=path)):
        with pytest.raises(ConfigError, match="cannot write skip_log ") as caught:
            make(tmp_path / place)
        assert caught.value.argument == "skip_log"


def test_a_skip_log_is_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "skips.jsonl"
    for _ in range(2):
        loader = loader_of(path)
        assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6], [8, 10], [12, 14], [16, 18]]

    assert len(path.read_text().splitlines()) == 20
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_skip_log_that_fails_later_warns_once(
    num_workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training continues."""
    (tmp_path / "logs").mkdir()
    loader = loader_of(tmp_path / "logs" / "skips.jsonl", num_workers=num_workers)
    shutil.rmtree(tmp_path / "logs")
    caplog.set_level(logging.WARNING)

    assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6], [8, 10], [12, 14], [16, 18]]
    said = [record.getMessage() for record in caplog.records if "skips.jsonl" in record.getMessage()]
    assert len(said) == 1
    assert "skips.jsonl: No such file or directory; training continues" in said[0]
    assert loader._history.num_skipped == 10


def test_a_disk_that_is_full_for_a_while_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A part of a line is written, then none, then there is room again."""
    log = SkipLog(tmp_path / "skips.jsonl")
    log.add(SKIP)
    real = os.write
    room = [10]

    def write(handle: int, data: Any) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, bytes(data)[: room.pop()])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        for _ in range(3):
            log.add(SKIP)
    log.add(SKIP)
    lines = (tmp_path / "skips.jsonl").read_text().splitlines()

    assert [len(line) for line in lines] == [len(lines[0]), 10, len(lines[0])]
    assert lines[0] == lines[2]
    assert [record.getMessage().count("No space left on device") for record in caplog.records] == [1]


@pytest.mark.parametrize("seed", range(40))
def test_planted_things_in_any_mixture(seed: int, shared: Path, victim: Path) -> None:
    """In all places at once: each is used if it is new, and left alone if not."""
    check_mixture(seed, shared, victim)


@pytest.mark.soak
def test_planted_things_in_thousands_of_mixtures(tmp_path: Path, shared: Path, victim: Path) -> None:
    for seed in range(1000, 11_000):
        check_mixture(seed, shared, victim)
        for path in list(shared.iterdir()):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def check_mixture(seed: int, shared: Path, victim: Path) -> None:
    chance = random.Random(seed)  # noqa: S311
    planted = {name: chance.choice((*KINDS, "nothing")) for name in ("evidence", "skips.jsonl", "report")}

    def put() -> None:
        for name, kind in planted.items():
            if kind != "nothing":
                plant(kind, shared / name, victim)

    as_other_user(put)
    before = snapshot(victim)
    with PrivateFolder(shared / "evidence") as folder:
        folder.write("a", b"a")
    assert (folder.path == shared / "evidence") == (planted["evidence"] == "nothing")
    for name, action in (("skips.jsonl", open_to_append), ("report", lambda path: create_file(path, 0o600))):
        is_fine = planted[name] == "nothing"
        is_fine |= planted[name] == "file" and name == "skips.jsonl" and os.geteuid() != 0
        try:
            os.close(action(shared / name))
        except OSError:
            assert not is_fine, (seed, name)
        else:
            assert is_fine, (seed, name)
    assert snapshot(victim) == before, seed


# -- the interpreter's own options -----------------------------------------------------------------------------------

ISOLATED = """
import sys
import antifreeze as af
class Numbers:
    def __len__(self): return 4
    def __getitem__(self, index): return (index, sys.flags.isolated, sys.flags.ignore_environment, sys.flags.optimize)
if __name__ == "__main__":
    print([part.tolist() for batch in af.DataLoader(Numbers(), batch_size=4, num_workers=1) for part in batch])
"""


@pytest.mark.parametrize(
    ("options", "num_ran", "flags"),
    [([], 2, (0, 0, 0)), (["-I"], 0, (1, 1, 0)), (["-E"], 0, (0, 1, 0)), (["-O", "-s", "-X", "utf8"], 2, (0, 0, 1))],
    ids=["plain", "isolated", "without environment", "optimized"],
)
def test_the_fork_server_runs_no_code_that_the_trainer_does_not(
    options: list[str], num_ran: int, flags: tuple[int, ...], tmp_path: Path
) -> None:
    """A sitecustomize that PYTHONPATH leads to runs in the trainer and in the fork server, or in neither."""
    (tmp_path / "evil").mkdir()
    marks = tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "evil" / "sitecustomize.py").write_text(
        f"import os\nos.close(os.open(f'{marks}/{{os.getpid()}}', os.O_CREAT | os.O_WRONLY))\n"
    )
    (tmp_path / "script.py").write_text(ISOLATED)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "evil")}
    words = [sys.executable, *options, str(tmp_path / "script.py")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=100, check=False)

    assert done.stdout.strip() == str([[0, 1, 2, 3], *([flag] * 4 for flag in flags)]), done.stderr
    assert len(list(marks.iterdir())) == num_ran
