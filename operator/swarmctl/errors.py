"""Exit codes, and the errors that carry them to the command line.

Every error says what was tried and what came of it; `next_steps` are the commands to type next. Imports nothing
of ours.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum


class Exit(IntEnum):
    """What a command's exit status means; documented in ``docs/local.md``."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    TIMED_OUT = 3
    ROLLED_BACK = 4
    UNREACHABLE = 5
    PARTLY_DONE = 6
    CHANGES = 10
    INTERRUPTED = 130


class SwarmctlError(Exception):
    """Base of all errors that a user can mend.

    Attributes:
        next_steps: Commands or remedies, one a line, in the order to try them.
    """

    code = Exit.FAILED

    def __init__(self, message: str, *next_steps: str) -> None:
        """Take the message and what to do about it."""
        super().__init__(message)
        self.next_steps: Sequence[str] = next_steps


class UsageError(SwarmctlError):
    """The command line asks for something that can't be."""

    code = Exit.USAGE


class StackError(SwarmctlError):
    """A stack file is wrong; the message has one line for each problem."""

    code = Exit.USAGE


class FleetError(SwarmctlError):
    """An inventory file is wrong; the message has one line for each problem."""

    code = Exit.USAGE


class WaitTimeoutError(SwarmctlError):
    """A deadline passed; what was started goes on."""

    code = Exit.TIMED_OUT


class RolledBackError(SwarmctlError):
    """What was deployed did not run, and what was there before does again."""

    code = Exit.ROLLED_BACK


class UnreachableError(SwarmctlError):
    """Nothing answered where an answer was needed."""

    code = Exit.UNREACHABLE


class PartlyDoneError(SwarmctlError):
    """Some of it was done; the message names what was not."""

    code = Exit.PARTLY_DONE


class InterruptedByUserError(SwarmctlError):
    """Ctrl-C; the message says what goes on without the command."""

    code = Exit.INTERRUPTED


@contextmanager
def interruptible(what_goes_on: str, *next_steps: str) -> Iterator[None]:
    """End with a message instead of a traceback at Ctrl-C.

    Raises:
        InterruptedByUserError: Ctrl-C was pressed.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedByUserError(f"interrupted; {what_goes_on}", *next_steps) from None
