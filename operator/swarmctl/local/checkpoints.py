"""The checkpoints of a local stack, as far as their manifests tell. May import: ``local.state``."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .state import Folder


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's directory and what its manifest says."""

    path: Path
    version: int
    manifest: dict[str, Any]


def newest(folder: Folder) -> Checkpoint | None:
    """The checkpoint with the highest version; whether its files are whole is verified by who loads it."""
    found = [read for path in folder.checkpoints.glob("ckpt-*/manifest.json") if (read := _read(path))]
    return max(found, key=lambda checkpoint: checkpoint.version, default=None)


def count(folder: Folder) -> int:
    """How many checkpoints there are, whole or not."""
    return sum(1 for _ in folder.checkpoints.glob("ckpt-*"))


def anything(folder: Folder) -> bool:
    """Whether there is anything that may once have been one."""
    return any(path for path in folder.checkpoints.glob("*") if path.name.strip("."))


def _read(manifest: Path) -> Checkpoint | None:
    try:
        content = json.loads(manifest.read_bytes())
        return Checkpoint(manifest.parent, int(content["version"]), content)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):  # damaged, or removed meanwhile: not a candidate
        return None
