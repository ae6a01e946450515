"""Paths as people write them. May import: ``errors``."""

from pathlib import Path

from .errors import UsageError


def expanded(path: str | Path) -> Path:
    """A path with its ``~`` or ``~user`` replaced.

    Raises:
        UsageError: This machine knows no such user, or not who runs this.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{path}: this machine does not know the home folder that ~ stands for",
            "name the folder without ~, or: export HOME=/YOUR/HOME",
        ) from error
