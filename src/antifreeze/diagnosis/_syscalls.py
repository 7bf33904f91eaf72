"""The numbers of system calls in which a process can be found waiting."""

from __future__ import annotations

_X86_64 = """
read 0  write 1  open 2  close 3  stat 4  fstat 5  lstat 6  poll 7  lseek 8  mmap 9  munmap 11  ioctl 16
pread64 17  pwrite64 18  readv 19  writev 20  access 21  select 23  sched_yield 24  msync 26  madvise 28
pause 34  nanosleep 35  sendfile 40  connect 42  accept 43  sendto 44  recvfrom 45  sendmsg 46  recvmsg 47
clone 56  fork 57  vfork 58  execve 59  exit 60  wait4 61  semop 65  msgsnd 69  msgrcv 70  fcntl 72  flock 73
fsync 74  fdatasync 75  truncate 76  ftruncate 77  getdents 78  rename 82  mkdir 83  rmdir 84  unlink 87
readlink 89  rt_sigtimedwait 128  rt_sigsuspend 130  statfs 137  fstatfs 138  futex 202  io_getevents 208
getdents64 217  restart_syscall 219  semtimedop 220  fadvise64 221  clock_nanosleep 230  exit_group 231
epoll_wait 232  waitid 247  openat 257  mkdirat 258  newfstatat 262  unlinkat 263  renameat 264
readlinkat 267  faccessat 269  pselect6 270  ppoll 271  epoll_pwait 281  fallocate 285  accept4 288
preadv 295  pwritev 296  recvmmsg 299  sendmmsg 307  renameat2 316  getrandom 318  copy_file_range 326
preadv2 327  pwritev2 328  statx 332  io_uring_enter 426  clone3 435  openat2 437  faccessat2 439  epoll_pwait2 441
futex_waitv 449  futex_wait 455
"""
_AARCH64 = """
io_getevents 4  epoll_pwait 22  fcntl 25  ioctl 29  flock 32  mkdirat 34  unlinkat 35  renameat 38  statfs 43
fstatfs 44  truncate 45  ftruncate 46  fallocate 47  faccessat 48  openat 56  close 57  getdents64 61
lseek 62  read 63  write 64  readv 65  writev 66  pread64 67  pwrite64 68  preadv 69  pwritev 70  sendfile 71
pselect6 72  ppoll 73  readlinkat 78  newfstatat 79  fstat 80  fsync 82  fdatasync 83  exit 93  exit_group 94
waitid 95  futex 98  nanosleep 101  clock_nanosleep 115  sched_yield 124  restart_syscall 128
rt_sigsuspend 133  rt_sigtimedwait 137  msgrcv 188  msgsnd 189  semtimedop 192  semop 193  accept 202
connect 203  sendto 206  recvfrom 207  sendmsg 211  recvmsg 212  munmap 215  clone 220  execve 221  mmap 222
fadvise64 223  msync 227  madvise 233  accept4 242  recvmmsg 243  wait4 260  sendmmsg 269  renameat2 276
getrandom 278  copy_file_range 285  preadv2 286  pwritev2 287  statx 291  io_uring_enter 426  clone3 435  openat2 437
faccessat2 439  epoll_pwait2 441  futex_waitv 449  futex_wait 455
"""


def _table(text: str) -> dict[int, str]:
    words = text.split()
    return {int(number): name for name, number in zip(words[::2], words[1::2], strict=True)}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TABLES = {"x86_64": _table(_X86_64), "aarch64": _table(_AARCH64)}

EPOLL = _words("epoll_wait epoll_pwait epoll_pwait2")
TAKES_FD = EPOLL | _words(
    """read write close fstat lseek ioctl pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 connect accept
    accept4 sendto recvfrom sendmsg recvmsg recvmmsg sendmmsg fcntl flock fsync fdatasync ftruncate getdents getdents64
    fstatfs fadvise64 fallocate copy_file_range io_uring_enter"""
)
"""Calls whose first argument is the descriptor that is waited for."""


def syscall_name(number: int, machine: str) -> str:
    """Return the name of a system call, or its number where that is not known."""
    return _TABLES.get(machine, {}).get(number, str(number))
