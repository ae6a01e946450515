"""Checkpoints: one directory each, written beside and renamed, verified on load.

``weights.safetensors`` holds the tensors under the model's own names, so they open elsewhere;
``optimizer.safetensors`` the optimizer's vectors; ``manifest.json`` all the rest, with the SHA-256 of both files.
A directory appears under its name only when everything in it is on the disk, so a power cut leaves the newest whole
one, or the one before.

May import: ``errors``.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import numpy as np
import structlog
from msgspec import Meta
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from .errors import CheckpointError

log = structlog.get_logger()
FORMAT = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
_NAME = re.compile(r"ckpt-(\d{9,})")

Tensors = dict[str, NDArray[Any]]
_Natural = Annotated[int, Meta(ge=0, le=2**62)]


class _File(msgspec.Struct):
    bytes: _Natural
    sha256: str


class _Data(msgspec.Struct):
    passes: list[_Natural] = []


class _Manifest(msgspec.Struct):
    """What a resume takes from a manifest; no hash covers it, so its types are checked."""

    format: Annotated[int, Meta(ge=FORMAT, le=FORMAT)]
    version: Annotated[int, Meta(ge=0, lt=2**32)]  # as it travels
    files: dict[str, _File]
    tokens: _Natural = 0
    loss: float | None = None
    bytes: tuple[_Natural, _Natural] = (0, 0)
    data: _Data = msgspec.field(default_factory=_Data)


class UnusableError(CheckpointError):
    """It may be whole, but not for this program or this user; so it is not passed over for an older one."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, read and verified.

    Attributes:
        path: Its directory.
        manifest: What was passed to `save`, and ``format``, ``version`` and ``files``.
        weights: Tensors by name.
        optimizer: State vectors by name.
    """

    path: Path
    manifest: Mapping[str, Any]
    weights: Tensors
    optimizer: Tensors

    @property
    def version(self) -> int:
        """The version of the weights: how many updates they have had."""
        return int(self.manifest["version"])


def save(
    directory: Path,
    version: int,
    weights: Tensors,
    optimizer: Tensors,
    facts: Mapping[str, Any],
    *,
    keep: int,
) -> Path:
    """Write a checkpoint and remove all but the newest `keep`.

    Args:
        directory: Where checkpoints are; made if missing.
        version: Of the weights.
        weights: Tensors by name.
        optimizer: State vectors by name.
        facts: What else a resume needs; JSON values.
        keep: How many to keep, this one included.

    Returns:
        The new checkpoint's directory.

    Raises:
        CheckpointError: It could not be written; earlier ones are untouched and nothing half-written is left.
    """
    target = directory / f"ckpt-{version:09d}"
    partial = directory / f".partial-{version:09d}-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        save_file(weights, partial / WEIGHTS)
        save_file(optimizer, partial / OPTIMIZER)
        files = {name: _sync(partial / name) for name in (WEIGHTS, OPTIMIZER)}
        manifest = {**facts, "format": FORMAT, "version": version, "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        _sync(partial / MANIFEST)
        _sync_directory(partial)
        if target.exists():  # left by a run that went on from an earlier version
            shutil.rmtree(target)
        partial.rename(target)
        _sync_directory(directory)
    except Exception as error:  # safetensors reports a full disk by an exception of its own
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(_why_not(error, target, weights, optimizer)) from error
    _remove_old(directory, keep)
    return target


def lock(directory: Path) -> IO[str]:
    """Keep other coordinators away from a directory, until the returned file is closed or this process ends.

    Raises:
        CheckpointError: Another one is there.
    """
    try:
        file = (directory / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(_not_ours(error, directory / ".lock")) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise CheckpointError(
            f"another coordinator keeps its checkpoints in {directory}. Stop it, or name another --checkpoint-dir."
        ) from error
    return file


def load_newest(directory: Path, *, set_damaged_aside: bool = False) -> Checkpoint | None:
    """Read the newest whole checkpoint; None where there never was one.

    Args:
        directory: Where checkpoints are.
        set_damaged_aside: Rename damaged ones, so that they neither count as kept nor are tried again.

    Raises:
        CheckpointError: There are checkpoints, and none of them is whole.
    """
    damaged: list[tuple[Path, CheckpointError]] = []
    for path in reversed(find(directory)):
        try:
            whole = load(path)
        except UnusableError:
            raise
        except CheckpointError as error:
            log.warning("checkpoint is damaged, trying the one before", path=str(path), reason=str(error))
            damaged.append((path, error))
            continue
        if set_damaged_aside:  # only now: with none left, the next start would begin anew without a word
            for bad, _ in damaged:
                _set_aside(bad)
        return whole
    if damaged:
        reasons = "\n".join(f"  {error}" for _, error in damaged)
        raise CheckpointError(
            f"no checkpoint in {directory} is whole:\n{reasons}\n"
            "Restore one from a backup, or name an empty --checkpoint-dir to start from the beginning."
        )
    return None


def load(path: Path) -> Checkpoint:
    """Read one checkpoint and verify every file's size and hash.

    Raises:
        UnusableError: A later version of this program wrote it, or this user may not read it.
        CheckpointError: It is missing or damaged, or holds weights that are not finite.
    """
    try:
        manifest = _read_manifest(path)
        weights, optimizer = load_file(path / WEIGHTS), load_file(path / OPTIMIZER)
    except PermissionError as error:
        raise UnusableError(_not_ours(error, path)) from error
    except OSError as error:
        raise CheckpointError(f"can't read {error.filename or path}: {error.strerror}") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not all(np.isfinite(array).all() for array in weights.values()):
        raise CheckpointError(f"{path} holds weights that are not finite: training had diverged")
    return Checkpoint(path, manifest, weights, optimizer)


def _read_manifest(path: Path) -> Mapping[str, Any]:
    """Read a manifest, and check all that it says."""
    place = path / MANIFEST
    try:
        manifest = msgspec.json.decode(place.read_bytes())
        form = manifest["format"]
        newer = isinstance(form, int) and form > FORMAT
        known = None if newer else msgspec.convert(manifest, _Manifest)
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # msgspec's own are ValueErrors
        raise CheckpointError(f"{place} is damaged: {error}") from error
    if known is None:
        raise UnusableError(
            f"{path} has format {form}, and this program reads {FORMAT}. Use the version of swarmctl that wrote it, "
            "or name another --checkpoint-dir."
        )
    if missing := {WEIGHTS, OPTIMIZER} - set(known.files):
        raise CheckpointError(f"{place} is damaged: it says nothing of {' and '.join(sorted(missing))}")
    if _NAME.fullmatch(path.name) and known.version != version_of(path):
        raise CheckpointError(f"{place} is damaged: it is of version {known.version}")
    for name in (WEIGHTS, OPTIMIZER):
        _verify(path / name, known.files[name].bytes, known.files[name].sha256)
    found: Mapping[str, Any] = manifest
    return found


def find(directory: Path) -> list[Path]:
    """List the checkpoints in a directory, oldest first, whole or not.

    Raises:
        CheckpointError: It can't be looked into.
    """
    if not directory.is_dir():
        return []
    try:
        found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    except OSError as error:
        raise CheckpointError(_not_ours(error, directory)) from error
    return sorted(found, key=version_of)


def version_of(path: Path) -> int:
    """The version that a checkpoint's directory is named after."""
    return int(path.name.removeprefix("ckpt-"))


def _not_ours(error: OSError, path: Path) -> str:
    return (
        f"can't read {error.filename or path}: {error.strerror}. Run as the user who wrote it, change its owner, or "
        "name another --checkpoint-dir."
    )


def _verify(path: Path, size: int, digest: str) -> None:
    found = path.stat().st_size
    if found != size:
        raise CheckpointError(f"{path} is cut short or changed: {found} bytes, {size} expected")
    if _hash(path) != digest:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in {MANIFEST}")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": _hash(path)}


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_old(directory: Path, keep: int) -> None:
    for path in find(directory)[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
    for path in directory.glob(".partial-*"):  # of a process that was killed while it wrote
        shutil.rmtree(path, ignore_errors=True)


def _set_aside(path: Path) -> None:
    aside = path.with_name(f"damaged-{path.name}")
    if aside.is_dir():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)
    path.rename(aside)


def _why_not(error: Exception, target: Path, *tensors: Tensors) -> str:
    size = sum(array.nbytes for group in tensors for array in group.values())
    parent = next(folder for folder in target.parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
        return (
            f"the disk is full: {target} needs {size / 1e6:.1f} MB and {parent} has {free / 1e6:.1f} MB free. "
            "Free some space there, or name another --checkpoint-dir."
        )
    reason = getattr(error, "strerror", None) or error
    return f"can't write {target}: {reason}. Name a folder that can be written with --checkpoint-dir."
