"""Who is at the other end of a socket, as the kernel's tables say."""

from __future__ import annotations

import re
import socket
import sys
from itertools import islice
from pathlib import Path

from antifreeze.diagnosis._evidence import Target, TargetKind

_HEX = re.compile("(?:[0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):[0-9A-Fa-f]{1,4}")
_MOST_LINES = 100_000  # a busy host lists more connections than a diagnosis should wait for


def find_socket(net: Path, inode: str) -> Target:
    """Return the socket with this inode. ``net`` is ``/proc/<pid>/net``: each process may have its own."""
    for name in ("tcp", "tcp6", "udp", "udp6"):
        row = _row(net / name, inode, column=9)
        if row is None:
            continue
        local, remote = _address(row[1]), _address(row[2])
        if remote.endswith(":0"):
            return Target(TargetKind.SOCKET, f"socket listening on {local}")
        return Target(TargetKind.PEER, f"socket to {remote}")
    row = _row(net / "unix", inode, column=6)
    if row is not None:
        path = f" at {row[7]}" if len(row) > 7 else ""
        return Target(TargetKind.SOCKET, f"socket to a process of this machine{path}")
    return Target(TargetKind.SOCKET, f"socket:[{inode}]")


def _row(table: Path, inode: str, column: int) -> list[str] | None:
    try:
        with table.open(encoding="utf-8", errors="replace") as lines:
            for line in islice(lines, _MOST_LINES):
                row = line.split()
                if len(row) > column and row[column] == inode:
                    return row
    except OSError:  # no such process, or no such protocol
        pass
    return None


def _address(text: str) -> str:
    """Return ``10.0.0.1:443`` for ``0100000A:01BB``: words of four bytes, each in the order of the machine."""
    if not _HEX.fullmatch(text):
        return "an address that cannot be read"
    host, _, port = text.partition(":")
    words = [int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8)]
    packed = b"".join(words)
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    mapped = packed[:12] == bytes(10) + b"\xff\xff"
    if mapped:
        return f"{socket.inet_ntop(socket.AF_INET, packed[12:])}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"
