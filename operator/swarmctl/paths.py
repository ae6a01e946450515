"""Paths as people write them. May import: ``errors``."""

from pathlib import Path

from .errors import UsageError


def expanded(path: str | Path) -> Path:
    """A path with its ``~`` or ``~user`` replaced.

    Raises:
        UsageError: This machine knows no such user, or not who runs this; or it is not valid text.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # it has to be written into JSON, logs and messages
        raise UsageError(f"{str(path)!r} is not valid UTF-8: name a folder or file with another name") from error
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{path}: this machine does not know the home folder that ~ stands for",
            "name the folder without ~, or: export HOME=/YOUR/HOME",
        ) from error
