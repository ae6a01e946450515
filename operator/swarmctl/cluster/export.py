"""`swarmctl export`: a checkpoint out of the coordinator's volume into a folder here. May import: ``training``."""

import io
import re
import tarfile
from pathlib import Path, PurePosixPath

from ..console import Story
from ..errors import SwarmctlError, UsageError
from ..schema import did_you_mean
from .training import Coordinator

FOLDER = "/checkpoints"
NEWEST = "newest"
_NAME = re.compile(r"ckpt-\d+")  # not those that are half written, or were found damaged


def export(coordinator: Coordinator, checkpoint: str, folder: Path, story: Story) -> Path:
    """Copy a checkpoint.

    Args:
        coordinator: Whose volume it is in.
        checkpoint: Its name, or ``newest``.
        folder: Where to put it; made where it is not there.
        story: Where to tell.

    Returns:
        The checkpoint's folder.

    Raises:
        UsageError: There is no such checkpoint, or something of that name is in `folder` already.
        UnreachableError: The coordinator does not run.
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
    folder.mkdir(parents=True, exist_ok=True)
    with story.waiting(f"copies {name}"):
        unpack(coordinator.archive(str(PurePosixPath(FOLDER) / name)), folder)
    story.done(f"{name} copied to {target}")
    return target


def unpack(archive: bytes, folder: Path) -> None:
    """Unpack what an engine sent; nothing of it may land outside of the folder."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
