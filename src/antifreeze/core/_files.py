"""How files are opened, and how they are written: the only two ways in this project.

**Reading.** A path that comes from a user, from a folder or from data may lead to a named pipe, a terminal, a device
or a sparse file of many gigabytes. ``open_regular`` and ``read_regular`` wait for none of them: regular files only,
of a bounded size.

**Writing.** A folder may be shared with other users, who can put their links, pipes and files where ours are
expected. Nothing is written through a link, into a file that another user owns or has a second name for, or into a
folder that was there before: new names only, or files that are provably our own.

Invariant: what is checked is the open descriptor, not the path. Between a look at a path and its opening, a path can
be made to lead elsewhere; a descriptor cannot.

What is refused is an ``UnsafeFile``. It is an ``OSError`` with ``strerror``, so that callers which name a file
that cannot be read or written name these as well.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

_OPEN = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_SLICE_NBYTES = 16 << 20
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
}


class UnsafeFile(OSError):
    """A path that is not opened or written: no regular file, too large, a link, or another user's."""


def _refused(path: str | os.PathLike[str], number: int, reason: str) -> UnsafeFile:
    return UnsafeFile(number, reason, os.fspath(path))


# -- reading -----------------------------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str]) -> int:
    """Return a descriptor for reading a regular file; links are followed. Never waits for another process.

    Raises:
        UnsafeFile: the path leads to a pipe, a device, a socket or a folder.
        OSError: the file cannot be opened.
    """
    # Order: before it is opened, because opening some devices has effects; and again once it is open, because the
    # path may lead elsewhere by then.
    _check_kind(path, os.stat(path))  # noqa: PTH116
    return _checked(path, os.open(path, os.O_RDONLY | _OPEN), _check_kind)


def regular_opener(path: str, flags: int) -> int:
    """Open a regular file for ``open(..., opener=regular_opener)``, in any mode."""
    return _checked(path, os.open(path, flags | _OPEN, 0o666), _check_kind)


def read_regular(path: str | os.PathLike[str], max_nbytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        UnsafeFile: the path leads to no regular file, or to one of more than ``max_nbytes``.
        OSError: the file cannot be read.
    """
    handle = open_regular(path)
    try:
        size = os.fstat(handle).st_size
        parts: list[bytes] = []
        total = 0
        # Files of the kernel have size 0 and content all the same, so the end is where reading ends.
        while size <= max_nbytes and (part := os.read(handle, min(_SLICE_NBYTES, max_nbytes + 1 - total))):
            parts.append(part)
            total += len(part)
            size = max(size, total)
    finally:
        os.close(handle)
    if size > max_nbytes:
        raise _refused(path, errno.EFBIG, f"it has {size:,} bytes, expected at most {max_nbytes:,}")
    return b"".join(parts)


def _checked(
    path: str | os.PathLike[str], handle: int, check: Callable[[str | os.PathLike[str], os.stat_result], None]
) -> int:
    """Return a descriptor that passes a check; one that does not is closed."""
    try:
        check(path, os.fstat(handle))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_kind(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise _refused(path, errno.EINVAL, f"it is {kind}, expected a regular file")


# -- writing -----------------------------------------------------------------------------------------------------------


def create_file(path: str | os.PathLike[str], mode: int, *, folder: int | None = None) -> int:
    """Create a file and return a descriptor for writing it; whatever has the name already is left as it is.

    Args:
        path: the new file, relative to ``folder`` if that is given.
        mode: permissions, before the umask: 0o600 for what is private, 0o666 for what is shared.
        folder: a descriptor of the folder that the file is created in.

    Raises:
        FileExistsError: the name is taken, be it by a link to nothing.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | _OPEN, mode, dir_fd=folder)


def open_to_append(path: str | os.PathLike[str]) -> int:
    """Return a descriptor for appending to a file of this user, which is created (0600) if it does not exist.

    Raises:
        UnsafeFile: the path is a link, no regular file, another user's file, or a file with a second name.
        OSError: the file cannot be opened.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | _OPEN, 0o600)
    except OSError:
        # The kernel has refused it: a link, a pipe that nobody reads, or, in a shared folder, any file of another user.
        with suppress(FileNotFoundError, NotADirectoryError):
            _check_ours(path, os.lstat(path))
        raise
    return _checked(path, handle, _check_ours)


def _check_ours(path: str | os.PathLike[str], status: os.stat_result) -> None:
    _check_kind(path, status)
    if status.st_uid != os.geteuid():
        raise _refused(path, errno.EPERM, f"it belongs to another user (uid {status.st_uid})")
    # A second name may be one that another user has put here, of a file that is elsewhere.
    if status.st_nlink != 1:
        raise _refused(path, errno.EPERM, f"it has {status.st_nlink} names (hard links), expected one")


def write_all(handle: int, data: bytes) -> None:
    """Write all bytes, or raise."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


class PrivateFolder:
    """A new folder that only this user can enter (0700), for files that only this user can read (0600).

    The name is ``path``, or if that is taken ``path-RANDOM``: a folder, file or link that is there already is neither
    entered nor changed. Folders above are created as needed.

    Example:
        >>> with PrivateFolder(Path("evidence")) as folder:  # doctest: +SKIP
        ...     folder.write("seen.json", b"{}")
        ...     print(folder.path)
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = _new_folder(path)
        # In a world-writable directory, another user can have moved it away and replaced it.
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            os.close(handle)
            raise _refused(self.path, errno.EPERM, "another user has replaced the folder that was created")
        self._handle = handle

    def write(self, name: str, data: bytes) -> None:
        """Create a file and write it.

        Raises:
            FileExistsError: there is one of this name.
        """
        handle = create_file(name, 0o600, folder=self._handle)
        try:
            write_all(handle, data)
        finally:
            os.close(handle)

    def close(self) -> None:
        """Close the directory. May be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def with_random_suffix(path: Path) -> Path:
    """Return a name that nobody can guess, and so nobody can take before it is used."""
    return path.with_name(f"{path.name}-{secrets.token_hex(4)}")


def _new_folder(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        path = with_random_suffix(path)
        path.mkdir(mode=0o700)
    return path
