"""Which local stack a command means. May import: ``local.state``, ``stack``, ``errors``."""

import os
from pathlib import Path

from . import stack
from .errors import UnreachableError, UsageError
from .local.state import Folder, deployed_folders, local_folder, state_root
from .schema import did_you_mean


def root() -> Path:
    """The folder of swarmctl's state, as the environment says."""
    return state_root(os.environ)


def deployed(name_or_path: str | None) -> Folder:
    """The folder of a local stack that is deployed; without a name, of the only one.

    Raises:
        UsageError: There are several and none was named, or the name is no stack's.
        UnreachableError: It is not deployed.
    """
    folders = {folder.name: folder for folder in deployed_folders(root())}
    if name_or_path is None:
        if len(folders) == 1:
            return next(iter(folders.values()))
        if folders:
            raise UsageError(
                "several stacks are deployed on this machine; say which", *(f"--stack {name}" for name in folders)
            )
        raise UnreachableError(
            f"no stack is deployed on this machine (its state would be in {root() / 'local'})",
            "swarmctl deploy --stack rwkv-tiny --local",
        )
    if name_or_path in folders:
        return folders[name_or_path]
    name = stack.load(name_or_path).name
    if name in folders:
        return folders[name]
    nearest = did_you_mean(name, folders) if folders else ""
    raise UnreachableError(
        f"{name} is not deployed on this machine{nearest}", f"swarmctl deploy --stack {name_or_path} --local"
    )


def known(name_or_path: str | None) -> Folder:
    """As `deployed`, but a stack that was removed and left its checkpoints will also do."""
    left = sorted(path.parent.name for path in (root() / "local").glob("*/checkpoints") if any(path.iterdir()))
    if name_or_path in left:
        return local_folder(root(), name_or_path)
    if name_or_path is None and len(left) == 1 and not deployed_folders(root()):
        return local_folder(root(), left[0])
    return deployed(name_or_path)
