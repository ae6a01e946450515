"""`swarmctl export`: a checkpoint out of the coordinator's volume into a folder here. May import: ``training``."""

import io
import re
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ..console import Story, number
from ..errors import SwarmctlError, UnreachableError, UsageError
from ..schema import did_you_mean
from .training import Coordinator

FOLDER = "/checkpoints"
NEWEST = "newest"
_NAME = re.compile(r"ckpt-\d+")  # not those that are half written, or were found damaged


def export(coordinator: Coordinator, checkpoint: str, folder: Path, story: Story) -> Path:
    """Copy a checkpoint, whole or not at all.

    Args:
        coordinator: Whose volume it is in.
        checkpoint: Its name, or ``newest``.
        folder: Where to put it; made where it is not there.
        story: Where to tell.

    Returns:
        The checkpoint's folder.

    Raises:
        UsageError: There is no such checkpoint, or something of that name is in `folder` already.
        UnreachableError: The coordinator does not run, or stops in the middle.
        SwarmctlError: The folder can't be written to, or its disk is full.
    """
    there = [name for name in coordinator.listed(FOLDER) if _NAME.fullmatch(name)]
    if not there:
        raise SwarmctlError("there is no checkpoint yet", "swarmctl checkpoint   # writes one")
    name = there[-1] if checkpoint == NEWEST else checkpoint
    if name not in there:
        raise UsageError(
            f"there is no checkpoint {name!r}{did_you_mean(name, there)}", f"one of {', '.join(there)}, or {NEWEST}"
        )
    target = folder / name
    if target.exists():
        raise UsageError(f"{target} is there already", f"swarmctl export {checkpoint} ANOTHER-FOLDER")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        with story.waiting(f"copies {name}") as show, coordinator.archive(str(PurePosixPath(FOLDER) / name)) as read:
            _unpack(_Told(read, lambda count: show(f"copies {name}: {number(count, 'B')}")), unfinished)
        (unfinished / name).rename(target)
    except tarfile.TarError as error:
        raise UnreachableError(
            f"the copy of {name} broke off: {error}; nothing of it was kept",
            f"swarmctl export {checkpoint} {folder}",
        ) from error
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    story.done(f"{name} copied to {target}")
    return target


class _Told(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, read: Callable[[int], bytes], tell: Callable[[int], None]) -> None:
        super().__init__()
        self._read = read
        self._tell = tell
        self._count = 0

    def read(self, size: int = -1) -> bytes:
        data = self._read(size)
        self._count += len(data)
        self._tell(self._count)
        return data


def _unpack(source: _Told, folder: Path) -> None:
    """Unpack what an engine sends, as it comes; nothing of it may land outside of the folder."""
    with tarfile.open(fileobj=source, mode="r|") as tar:
        tar.extractall(folder, filter="data")


def _cannot_write(folder: Path, error: OSError) -> SwarmctlError:
    return SwarmctlError(
        f"{folder} can't take the checkpoint: {error.strerror or error}; nothing of it was kept",
        f"df -h {shlex.quote(str(folder))}   # its disk; or name another folder",
    )
