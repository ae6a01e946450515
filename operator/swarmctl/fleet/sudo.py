"""Commands as root on a machine. May import: ``connection``, ``ssh_errors``."""

from .connection import Connection
from .ssh_errors import SudoPasswordError

_PROMPTING = "sudo -S -k -p ''"


def sudo_prefix(connection: Connection, password: str | None) -> tuple[str, bytes]:
    """What to put before a ``docker`` command for it to run as root, and before what it reads.

    A password is only sent where sudo is known to read it: otherwise the command itself would.

    Raises:
        SudoPasswordError: A password is needed, and none was given, or a wrong one.
    """
    # What is allowed without a password may be docker alone.
    if connection.run("sudo -n docker --version").status == 0:
        return "sudo -n", b""
    if password is None:
        raise SudoPasswordError(connection.host.name)
    line = password.encode() + b"\n"
    tried = connection.run(f"{_PROMPTING} docker --version", stdin=line)
    if tried.status:
        said = tried.stderr.decode(errors="replace").strip().splitlines()
        raise SudoPasswordError(connection.host.name, said[-1] if said else "it says nothing")
    return _PROMPTING, line
