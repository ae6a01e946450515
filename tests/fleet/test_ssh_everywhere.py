"""Many machines at once: good, bad and hanging ones together."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sshd import Sshd, free_port

from swarmctl.errors import SwarmctlError, WaitTimeoutError
from swarmctl.fleet.everywhere import everywhere
from swarmctl.fleet.inventory import Host
from swarmctl.fleet.ssh import Connection, SshSettings, connect
from swarmctl.fleet.ssh_errors import RefusedError, SilentError

pytestmark = pytest.mark.usefixtures("no_threads_left")
Start = Callable[..., Sshd]


def hello(connection: Connection) -> str:
    return connection.run(f"echo {connection.host.name}").stdout.decode().strip()


def test_good_and_bad_ones_together(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    bad = Host("refuses", address="127.0.0.1", port=free_port())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = [
            server.host("pi-01"),
            bad,
            Host("silent", address="127.0.0.1", port=silent.getsockname()[1]),
            Host("here"),
            server.host("pi-02"),
        ]
        told: list[tuple[str, object]] = []
        thread = threading.get_ident()

        def on_done(host: Host, result: str | SwarmctlError) -> None:
            assert threading.get_ident() == thread
            told.append((host.name, result))

        results = everywhere(hosts, hello, settings=settings, deadline=2, on_done=on_done)
    assert list(results) == ["pi-01", "refuses", "silent", "here", "pi-02"]
    assert [results[name] for name in ("pi-01", "here", "pi-02")] == ["pi-01", "here", "pi-02"]
    assert isinstance(results["refuses"], RefusedError)
    assert isinstance(results["silent"], SilentError)
    assert dict(told) == results
    assert told[-1][0] == "silent", "the others are told of before the slowest is done"


@pytest.mark.parametrize("at_once", [4, 20])
def test_twenty_hosts_over_the_limit_of_simultaneous_logins(at_once: int, sshd: Start, settings: SshSettings) -> None:
    """The jump host of a fleet sees all of it at once."""
    server = sshd("MaxStartups 2")
    hosts = [server.host(f"pi-{i:02}") for i in range(20)]
    results = everywhere(hosts, hello, settings=settings, at_once=at_once)
    assert results == {host.name: host.name for host in hosts}


def test_no_more_handshakes_at_once_than_said(
    sshd: Start, settings: SshSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on, most = 0, 0
    lock = threading.Lock()

    def counted(*arguments: Any, **options: Any) -> Connection:
        nonlocal going_on, most
        with lock:
            going_on += 1
            most = max(most, going_on)
        try:
            return connect(*arguments, **options)
        finally:
            with lock:
                going_on -= 1

    monkeypatch.setattr("swarmctl.fleet.everywhere.connect", counted)
    server = sshd()
    everywhere([server.host(f"pi-{i}") for i in range(12)], hello, settings=settings, at_once=3)
    assert most == 3


def test_work_goes_on_on_all_hosts_while_few_log_in(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    hosts = [server.host(f"pi-{i}") for i in range(8)]
    together = threading.Barrier(8, timeout=20)

    def meet(connection: Connection) -> int:
        return together.wait()

    results = everywhere(hosts, meet, settings=settings, at_once=2)
    assert sorted(results.values(), key=str) == list(range(8))


def test_work_that_takes_too_long(sshd: Start, settings: SshSettings) -> None:
    server = sshd()

    def work(connection: Connection) -> str:
        if connection.host.name == "slow":
            connection.run("sleep 600", timeout=600)
        return "done"

    started = time.monotonic()
    results = everywhere([server.host("slow"), server.host("fast")], work, settings=settings, deadline=2)
    assert time.monotonic() - started < 5
    assert results["fast"] == "done"
    assert isinstance(results["slow"], WaitTimeoutError)
    assert "slow: not done within 2 s" in str(results["slow"])


def test_work_that_nothing_can_end_is_left_behind(settings: SshSettings) -> None:
    release = threading.Event()
    results = everywhere([Host("here")], lambda _: release.wait(60), settings=settings, deadline=0.3)
    assert isinstance(results["here"], WaitTimeoutError)
    release.set()


def test_a_mistake_in_the_work_stays_with_its_host(sshd: Start, settings: SshSettings) -> None:
    server = sshd()

    def work(connection: Connection) -> float:
        return 1 / (connection.host.name != "odd")

    results = everywhere([server.host("odd"), server.host("even")], work, settings=settings)
    assert results["even"] == 1
    assert isinstance(results["odd"], SwarmctlError)
    assert str(results["odd"]) == "odd: ZeroDivisionError: division by zero"
    assert isinstance(results["odd"].__cause__, ZeroDivisionError)


def test_an_error_of_the_caller_ends_everything(sshd: Start, settings: SshSettings) -> None:
    server = sshd()

    def on_done(host: Host, result: object) -> None:
        raise RuntimeError(host.name)

    def work(connection: Connection) -> int:
        return connection.run("sleep 600" if connection.host.name == "slow" else "true", timeout=600).status

    with pytest.raises(RuntimeError, match="fast"):
        everywhere([server.host("slow"), server.host("fast")], work, settings=settings, on_done=on_done)


def test_nobody() -> None:
    assert everywhere([], hello, settings=SshSettings()) == {}


@pytest.mark.parametrize("hang", ["work", "handshake", "silence"])
def test_ctrl_c_ends_it_soon(hang: str, sshd: Start, home: Path, tmp_path: Path) -> None:
    server = sshd()
    begun = tmp_path / "begun"
    script = f"""
import sys, threading, socket
from pathlib import Path
from swarmctl.fleet.everywhere import everywhere
from swarmctl.fleet.inventory import Host
from swarmctl.fleet.ssh import SshSettings
odd = socket.create_server(("127.0.0.1", 0))
def serve():
    peers = []
    while True:
        peers.append(odd.accept()[0])
        if {hang!r} == "handshake":
            peers[-1].sendall(b"SSH-2.0-OpenSSH_9.2p1\\r\\n")
        Path({str(begun)!r}).touch()
threading.Thread(target=serve, daemon=True).start()
port = {server.port} if {hang!r} == "work" else odd.getsockname()[1]
hosts = [Host(f"pi-{{i}}", address="127.0.0.1", port=port) for i in range(5)]
def work(connection):
    connection.run("touch {begun}; sleep 600", timeout=600)
try:
    everywhere(hosts, work, settings=SshSettings())
except KeyboardInterrupt:
    sys.exit(130)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 20
    while not begun.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.3)  # into the middle of it; there is nothing to see from outside
    os.kill(process.pid, signal.SIGINT)
    pressed = time.monotonic()
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (130, "")
    assert time.monotonic() - pressed < 3
