"""Commands as root on a machine. May import: ``connection``, ``ssh_errors``."""

from .connection import Connection
from .ssh_errors import SudoPasswordError

_UNASKED = "env LC_ALL=C sudo -n"
# Without -k a password that sudo still remembers would not be read, and go to the command instead.
_ASKED = "env LC_ALL=C sudo -S -k -p ''"


def sudo_prefix(connection: Connection, password: str | None) -> tuple[str, bytes]:
    """What to put before a ``docker`` command for it to run as root, and before what it reads.

    A password is only sent where sudo is known to read it: otherwise the command itself would.

    Raises:
        SudoPasswordError: A password is needed, and none was given, or a wrong one.
    """
    # What is allowed without a password may be docker alone.
    tried = connection.run(f"{_UNASKED} docker --version")
    if tried.status == 0 or b"password" not in tried.stderr:  # another complaint is repeated when docker is asked
        return _UNASKED, b""
    if password is None:
        raise SudoPasswordError(connection.host.name)
    line = password.encode() + b"\n"
    tried = connection.run(f"{_ASKED} docker --version", stdin=line)
    if tried.status:
        said = tried.stderr.decode(errors="replace").strip().splitlines()
        raise SudoPasswordError(connection.host.name, said[-1] if said else "it says nothing")
    return _ASKED, line
