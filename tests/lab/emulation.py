"""Programs of another architecture on this machine: QEMU's user mode, registered with the kernel (binfmt_misc).

The registration holds for the whole machine. It is made while it is needed and taken back by whoever made it, once
nobody needs it any more. Imports `packages` of the lab.
"""

import fcntl
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.lab import packages
from tests.lab.packages import LabError
from tests.lab.system import run

_REGISTER = Path("/proc/sys/fs/binfmt_misc")
_PROGRAMS = {"arm64": "qemu-aarch64"}
_NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}


@contextmanager
def of(*architectures: str) -> Iterator[None]:
    """Let programs of these architectures run, as Docker names them.

    Raises:
        LabError: QEMU is not to be had, or the kernel has no binfmt_misc.
    """
    foreign = [arch for arch in architectures if arch != _NATIVE.get(platform.machine())]
    with ExitStack() as held:
        for arch in foreign:
            held.enter_context(_one(arch))
        yield


@contextmanager
def _one(arch: str) -> Iterator[None]:
    if arch not in _PROGRAMS:
        raise LabError(f"the lab emulates {', '.join(_PROGRAMS)}, not {arch}")
    name = _PROGRAMS[arch]
    folder = packages.cache() / "emulation"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.users").open("w") as users:
        with _alone(folder):
            fcntl.flock(users, fcntl.LOCK_SH)  # held while it is used
            ours = folder / f"{name}.registered"
            if not (_REGISTER / name).exists():
                ours.write_text(_register(name, _program(name, folder)))
        try:
            yield
        finally:
            with _alone(folder):
                if ours.exists() and _last(users):
                    _forget(name, ours.read_text())
                    ours.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _last(users: object) -> bool:
    """Whether nobody else holds the file of users."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
    except BlockingIOError:
        return False
    return True


def _register(name: str, program: Path) -> str:
    """Returns what was done, for `_forget`."""
    mounted = not (_REGISTER / "register").exists()
    if mounted:
        run("mount", "-t", "binfmt_misc", "binfmt_misc", _REGISTER)
    there = (_REGISTER / name).exists()  # it was only not to be seen
    if not there:
        parts = (packages.cache() / "emulation" / f"{name}.conf").read_text().strip().split(":")
        parts[6] = str(program)
        (_REGISTER / "register").write_text(":".join(parts))
    return f"{'mounted' if mounted else ''} {'' if there else 'registered'}"


def _forget(name: str, done: str) -> None:
    if "registered" in done:
        (_REGISTER / name).write_text("-1")
    if "mounted" in done:
        run("umount", _REGISTER)


def _program(name: str, folder: Path) -> Path:
    """The emulator, out of Debian's package; the kernel keeps it open, so every namespace has it (flag F)."""
    program = folder / f"{name}-static"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            options = packages._apt(packages._codename())
            packages._run("apt-get", "-q", "download", "qemu-user-static", *options, folder=Path(scratch))
            root = Path(scratch) / "root"
            for archive in Path(scratch).glob("*.deb"):
                run("dpkg", "-x", archive, root)
            shutil.copyfile(root / "usr/lib/binfmt.d" / f"{name}.conf", folder / f"{name}.conf")
            shutil.copy(root / "usr/bin" / f"{name}-static", program)
    return program
