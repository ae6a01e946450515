"""Running a person's own code: what goes wrong in their model or data comes as one error that says where.

Imports ``errors`` only.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import AgentError

_OURS = Path(__file__).parent
_INSTALLED = tuple(Path(prefix) for prefix in {sys.prefix, sys.base_prefix})


@contextmanager
def calling(what: str, error: type[AgentError], remedy: str = "") -> Iterator[None]:
    """Call a person's code in a block.

    Args:
        what: Subject of the error's sentence.
        error: What to raise.
        remedy: What to do, where the memory did not suffice.

    Raises:
        AgentError: (of the class given) Their code raised anything at all.
    """
    try:
        yield
    except AgentError:
        raise
    except Exception as failure:  # theirs may raise whatever it likes, a ConnectionError too
        kind = type(failure).__name__.lstrip("_")
        more = f" {remedy}" if isinstance(failure, MemoryError) and remedy else ""
        said = " ".join(str(failure).split())
        raise error(f"{what} raised {kind}: {said or 'it says no more'}{_place(failure)}.{more}") from failure


def _place(failure: Exception) -> str:
    """The innermost line of theirs that led to it, rather than one of a library that they called."""
    if isinstance(failure, SyntaxError) and failure.filename:
        return f" ({failure.filename}, line {failure.lineno})"
    for frame in reversed(traceback.extract_tb(failure.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not any(file.is_relative_to(part) for part in (_OURS, *_INSTALLED)):
            return f" ({file}, line {frame.lineno})"
    return ""
