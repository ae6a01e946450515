"""Commands over SSH and on this machine: streams, deadlines, limits, and connections that break."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from sshd import Sshd

from swarmctl.fleet.ssh import Connection, SshSettings, connect, here
from swarmctl.fleet.ssh_errors import CommandTimeoutError, ConnectionLostError, OutputLimitError

pytestmark = pytest.mark.usefixtures("no_threads_left")
Start = Callable[..., Sshd]
MEGABYTE = 1 << 20


@pytest.fixture(params=["ssh", "here"])
def connection(request: pytest.FixtureRequest, sshd: Start, settings: SshSettings) -> Iterator[Connection]:
    """The same must hold for both."""
    opened: Connection = here() if request.param == "here" else connect(sshd().host(), settings=settings)
    with opened:
        yield opened


def test_streams_and_status_are_told_apart(connection: Connection) -> None:
    done = connection.run("cat; echo bad >&2; exit 3", stdin=b"good\n")
    assert (done.status, done.stdout, done.stderr) == (3, b"good\n", b"bad\n")
    assert 0 < done.seconds < 10


def test_a_script_on_stdin(connection: Connection) -> None:
    assert connection.run("sh -s", stdin=b"x='a b'\nprintf '%s' \"$x\"\n").stdout == b"a b"


def test_a_command_that_a_signal_ended(connection: Connection) -> None:
    assert connection.run("kill -9 $$").status < 0


def test_a_command_that_is_not_there(connection: Connection) -> None:
    done = connection.run("no-such-command")
    assert done.status == 127
    assert b"no-such-command" in done.stderr


def test_much_output_on_both_streams_at_once(connection: Connection) -> None:
    """An undrained stderr would block the command, and it would never close its stdout."""
    size = 5 * MEGABYTE
    both = f"head -c {size} /dev/zero >&2; head -c {size} /dev/zero"
    done = connection.run(both, limit=size)
    assert (done.status, len(done.stdout), len(done.stderr)) == (0, size, size)


@pytest.mark.parametrize("where", ["", " >&2"])
def test_output_over_the_limit_is_an_error(connection: Connection, where: str) -> None:
    with pytest.raises(OutputLimitError, match="more than 4096 KiB"):
        connection.run(f"head -c {5 * MEGABYTE} /dev/zero{where}")
    assert connection.run("echo more").stdout == b"more\n"


def test_endless_output_is_ended(connection: Connection) -> None:
    with pytest.raises(OutputLimitError):
        connection.run("cat /dev/zero")


def test_much_input_comes_through_whole(connection: Connection) -> None:
    data = os.urandom(MEGABYTE)
    assert connection.run("cat", stdin=data).stdout == data


def test_input_that_nobody_reads(connection: Connection) -> None:
    assert connection.run("exit 4", stdin=bytes(8 * MEGABYTE)).status == 4


def test_a_deadline_ends_the_command(connection: Connection, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    started = time.monotonic()
    with pytest.raises(CommandTimeoutError, match="within 1 s"):
        connection.run(f"echo $$ >{note}; echo begun; exec sleep 600", timeout=1)
    assert time.monotonic() - started < 4
    if connection.host.is_here:  # over SSH it is the server that sees the channel end, and sshd kills nothing
        assert not psutil.pid_exists(int(note.read_text()))
    assert connection.run("echo more").stdout == b"more\n"


def test_a_deadline_with_input_that_nobody_reads(connection: Connection) -> None:
    started = time.monotonic()
    with pytest.raises(CommandTimeoutError):
        connection.run("sleep 600", stdin=bytes(8 * MEGABYTE), timeout=1)
    assert time.monotonic() - started < 4


def test_a_deadline_though_something_keeps_the_streams_open(connection: Connection, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    started = time.monotonic()
    with pytest.raises(CommandTimeoutError):
        connection.run(f"setsid sh -c 'echo $$ >{note}; exec sleep 600' & echo begun", timeout=1)
    assert time.monotonic() - started < 4
    os.kill(int(note.read_text()), signal.SIGKILL)


def test_many_commands_at_once(connection: Connection) -> None:
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append(connection.run(f"sleep 0.2; echo {i}").stdout))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [b"%d\n" % i for i in range(8)]


def test_closing_ends_what_runs(connection: Connection) -> None:
    outcome: list[BaseException | int] = []

    def run() -> None:
        try:
            outcome.append(connection.run("echo begun; sleep 600", timeout=60).status)
        except ConnectionLostError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    connection.close()
    thread.join(5)
    assert not thread.is_alive()
    assert isinstance(outcome[0], ConnectionLostError) or outcome[0] == -signal.SIGKILL
    connection.close()


def test_a_connection_that_is_cut_in_the_middle(sshd: Start, settings: SshSettings, tmp_path: Path) -> None:
    server = sshd()
    begun = tmp_path / "begun"
    with connect(server.host(), settings=settings) as connection:

        def cut() -> None:
            while not begun.exists():
                time.sleep(0.01)
            server.cut()

        thread = threading.Thread(target=cut)
        thread.start()
        started = time.monotonic()
        with pytest.raises(ConnectionLostError, match="pi-01"):
            connection.run(f"touch {begun}; sleep 600", timeout=60)
        assert time.monotonic() - started < 10
        thread.join()
        with pytest.raises(ConnectionLostError):
            connection.run("echo more")


def test_a_server_that_freezes_before_the_command(sshd: Start, settings: SshSettings) -> None:
    """The answer to an exec request is waited for without a limit in paramiko."""
    server = sshd()
    with connect(server.host(), settings=settings) as connection:
        sessions = server.sessions()
        frozen = [*sessions, *(child for session in sessions for child in session.children(recursive=True))]
        for process in frozen:
            process.suspend()
        started = time.monotonic()
        with pytest.raises(CommandTimeoutError):
            connection.run("true", timeout=1)
        assert time.monotonic() - started < 3
        for process in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):  # a parent that goes on may end its child
                process.resume()


def test_a_server_that_freezes_while_it_is_fed(sshd: Start, settings: SshSettings, tmp_path: Path) -> None:
    server = sshd()
    begun = tmp_path / "begun"
    with connect(server.host(), settings=settings) as connection:

        def freeze() -> None:
            while not begun.exists():
                time.sleep(0.01)
            for session in server.sessions():
                for process in [session, *session.children(recursive=True)]:
                    process.suspend()

        thread = threading.Thread(target=freeze)
        thread.start()
        started = time.monotonic()
        with pytest.raises(CommandTimeoutError):
            connection.run(f"touch {begun}; cat >/dev/null", stdin=bytes(64 * MEGABYTE), timeout=2)
        assert time.monotonic() - started < 6
        thread.join()


def test_a_login_shell_that_greets(sshd: Start, settings: SshSettings) -> None:
    server = sshd('ForceCommand echo Welcome to Raspbian; eval "$SSH_ORIGINAL_COMMAND"')
    with connect(server.host(), settings=settings) as connection:
        done = connection.run("sh -s", stdin=b"echo mine\n")
    assert done.stdout == b"Welcome to Raspbian\nmine\n"


def test_a_server_that_runs_no_commands(sshd: Start, settings: SshSettings) -> None:
    server = sshd("MaxSessions 0")
    with connect(server.host(), settings=settings) as connection, pytest.raises(ConnectionLostError, match="started"):
        connection.run("true")


def test_this_machine_is_called_here() -> None:
    with here() as connection:
        assert connection.host.is_here
        assert connection.run(f"{sys.executable} -c 'print(6 * 7)'").stdout == b"42\n"
