"""Which local stack a command means. May import: ``local.state``, ``stack``, ``errors``."""

import os
import shlex
from pathlib import Path

from . import stack
from .errors import UnreachableError, UsageError
from .local.state import Folder, deployed_folders, local_folder, state_root
from .schema import did_you_mean


def root() -> Path:
    """The folder of swarmctl's state, as the environment says.

    Raises:
        UsageError: There is something else than a folder.
    """
    found = state_root(os.environ)
    existing = _nearest_existing(found)
    if not existing.is_dir():
        raise UsageError(f"swarmctl can't keep its state in {found}: {existing} is not a folder", *_other_root())
    return found


def writable_root() -> Path:
    """As `root`, where something is to be written.

    Raises:
        UsageError: Nothing can be written there.
    """
    found = root()
    existing = _nearest_existing(found)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"swarmctl can't keep its state in {found}: {existing} can't be written to", *_other_root())
    return found


def deployed(name_or_path: str | None) -> Folder:
    """The folder of a local stack that is deployed; without a name, of the only one.

    Raises:
        UsageError: There are several and none was named, or the path is no stack's.
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
    name = _name_of(name_or_path)
    if name in folders:
        return folders[name]
    others = f"; deployed are {', '.join(folders)}" if folders else ", nor is any other stack"
    can_be = stack.is_path(name_or_path) or name in stack.built_in_stacks()
    how = [f"swarmctl deploy --stack {shlex.quote(name_or_path)} --local"] if can_be else []
    raise UnreachableError(
        f"{name} is not deployed on this machine{others}{did_you_mean(name, folders) if folders else ''}",
        *(how or [f"--stack {other}" for other in folders] or ["swarmctl deploy --stack PATH-OF-ITS-FILE --local"]),
    )


def known(name_or_path: str | None) -> Folder:
    """As `deployed`, but a stack that was removed and left its checkpoints will also do."""
    left = sorted(path.parent.name for path in (root() / "local").glob("*/checkpoints") if any(path.iterdir()))
    name = None if name_or_path is None else _name_of(name_or_path)
    if name in left:
        return local_folder(root(), name)
    if name is None and len(left) == 1 and not deployed_folders(root()):
        return local_folder(root(), left[0])
    return deployed(name_or_path)


def _name_of(name_or_path: str) -> str:
    """The stack's name; a file that is deployed need not be there or right any more."""
    if not stack.is_path(name_or_path):
        return name_or_path
    path = stack.find(name_or_path)
    for folder in deployed_folders(root()):
        deployment = folder.read_deployment()
        if deployment and deployment.source == str(path):
            return folder.name
    return stack.load(name_or_path).name


def _nearest_existing(path: Path) -> Path:
    return next((folder for folder in (path, *path.parents) if os.access(folder, os.F_OK)), Path("/"))


def _other_root() -> tuple[str, ...]:
    return ("export SWARMCTL_STATE=A-FOLDER-OF-YOURS",)
