"""The way to a Docker engine: a real HTTP server on a unix socket behind a real sshd stands for the engine."""

import json
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory

import docker
import pytest
import requests
from sshd import Sshd, find_docker

from swarmctl.fleet.docker_socket import DockerUrl
from swarmctl.fleet.ssh import Connection, SshSettings, connect, here
from swarmctl.fleet.ssh_errors import SudoPasswordError

pytestmark = pytest.mark.usefixtures("no_threads_left")
Start = Callable[..., Sshd]

# What `docker system dial-stdio` does: it connects stdin and stdout with the engine's socket until both have ended.
DIAL_STDIO = """#!{python}
import os, socket, sys, threading
if sys.argv[1:] == ["--version"]:
    sys.exit(print("Docker version 28.5.2, build 1"))
assert sys.argv[1:] == ["system", "dial-stdio"], sys.argv
engine = socket.socket(socket.AF_UNIX)
engine.connect({socket!r})
def up():
    while data := os.read(0, 65536):
        engine.sendall(data)
    engine.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := engine.recv(65536):
    os.write(1, data)
"""
# What sudo does for one who needs a password: -n never asks, -S reads one line of stdin and leaves the rest of it.
SUDO = """#!{python}
import os, sys
command = sys.argv[sys.argv.index("docker"):]
options = sys.argv[1 : -len(command)]
if {password!r} and "-n" in options:
    sys.exit("sudo: a password is required")
if {password!r}:
    said = b""
    while not said.endswith(b"\\n"):
        said += os.read(0, 1) or sys.exit("sudo: no password was provided")
    if said.decode().strip() != {password!r}:
        sys.exit("Sorry, try again.")
open({trace!r}, "a").write(" ".join(command) + "\\n")
os.execvp(command[0], command)
"""


class Engine(BaseHTTPRequestHandler):
    """Answers as an engine does, as far as connections are concerned."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.endswith("/events"):  # never ends by itself
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                self.wfile.write(b"3\r\n{}\n\r\n")
                time.sleep(0.05)
        self.answer({"Name": "engine", "Connection": id(self)})

    def do_POST(self) -> None:
        if self.headers.get("Upgrade") == "tcp":  # a hijacked connection, as `docker attach` has
            self.send_response(101)
            self.send_header("Upgrade", "tcp")
            self.end_headers()
            while data := self.connection.recv(65536):
                self.connection.sendall(data.upper())
            self.connection.sendall(b"bye")
            self.close_connection = True
            return
        size = len(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"Size": size})

    def answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle of /events is what some tests are about."""
        assert isinstance(sys.exc_info()[1], ConnectionError), sys.exc_info()


@pytest.fixture
def engine() -> Iterator[Path]:
    """The socket of an engine."""
    with TemporaryDirectory() as folder, Server(f"{folder}/engine.sock", Engine) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield Path(folder) / "engine.sock"
        server.shutdown()
        thread.join()


@pytest.fixture
def programs(tmp_path: Path, engine: Path) -> Path:
    """A folder with a docker command that reaches the engine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "docker", DIAL_STDIO.format(python=sys.executable, socket=str(engine)))
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def with_path(folder: Path) -> str:
    return f"SetEnv PATH={folder}:/usr/bin:/bin"


@pytest.fixture(params=["streamlocal", "dial-stdio", "dial-stdio after a greeting"])
def connection(
    request: pytest.FixtureRequest,
    sshd: Start,
    settings: SshSettings,
    engine: Path,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Connection]:
    """A machine whose engine is reached by each of the ways there are."""
    monkeypatch.setattr("swarmctl.fleet.ssh.ENGINE_SOCKET", str(engine))
    options = [with_path(programs)]
    if request.param == "streamlocal":
        (programs / "docker").unlink()  # not needed
    else:
        options.append("AllowStreamLocalForwarding no")
    if "greeting" in request.param:
        options.append('ForceCommand echo Welcome; eval "$SSH_ORIGINAL_COMMAND"')
    with connect(sshd(*options).host(), settings=settings) as opened:
        yield opened


def api(url: DockerUrl) -> docker.APIClient:
    return docker.APIClient(base_url=url, version="1.41", timeout=20)


def test_docker_py_asks_the_engine(connection: Connection) -> None:
    with connection.docker() as url:
        client = api(url)
        first, second = client.info(), client.info()
        assert first["Name"] == "engine"
        assert first["Connection"] == second["Connection"], "the connection is kept alive"
        assert not url.last_error
        client.close()


def test_the_socket_is_private_and_goes_with_the_context(connection: Connection) -> None:
    with connection.docker() as url:
        path = Path(url.removeprefix("unix://"))
        assert path.is_socket()
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.parent.exists()


def test_a_large_upload(connection: Connection) -> None:
    size = 8 << 20
    with connection.docker() as url:
        client = api(url)
        reply = client.post(f"{client.base_url}/v1.41/images/load", data=bytes(size))
        assert reply.json() == {"Size": size}
        client.close()


def test_many_connections_at_once(connection: Connection) -> None:
    with connection.docker() as url:

        def ask(_: int) -> str:
            client = api(url)
            name: str = client.info()["Name"]
            client.close()
            return name

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, range(8))) == ["engine"] * 8


def test_a_hijacked_connection_half_closes(connection: Connection) -> None:
    with connection.docker() as url, socket.socket(socket.AF_UNIX) as client:
        client.connect(url.removeprefix("unix://"))
        client.sendall(b"POST /attach HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        stream = client.makefile("rb")
        while stream.readline() != b"\r\n":
            pass
        client.sendall(b"hello")
        assert stream.read(5) == b"HELLO"
        client.shutdown(socket.SHUT_WR)
        assert stream.read() == b"bye", "what comes after our end still arrives"


def test_leaving_ends_an_endless_stream(connection: Connection) -> None:
    with connection.docker() as url:
        client = api(url)
        stream = client._stream_raw_result(client.get(f"{client.base_url}/v1.41/events", stream=True))
        assert next(stream)
    with pytest.raises(requests.RequestException):
        for _ in stream:
            pass
    client.close()


def test_closing_the_connection_ends_a_stream(connection: Connection) -> None:
    with connection.docker() as url:
        client = api(url)
        stream = client._stream_raw_result(client.get(f"{client.base_url}/v1.41/events", stream=True))
        assert next(stream)
        connection.close()
        with pytest.raises(requests.RequestException):
            for _ in stream:
                pass
        with pytest.raises(requests.RequestException):
            client.info()
        assert "lost" in url.last_error
        client.close()


def reason(connection: Connection, *, sudo: bool = False) -> str:
    """What the way says of an engine that can't be asked."""
    with connection.docker(sudo) as url:
        client = api(url)
        with pytest.raises(requests.RequestException):
            client.info()
        client.close()
        return url.last_error


def test_no_docker_there(sshd: Start, settings: SshSettings, tmp_path: Path) -> None:
    with connect(sshd(with_path(tmp_path / "none")).host(), settings=settings) as connection:
        assert "docker" in reason(connection)
        assert "not found" in reason(connection)


def test_what_the_docker_command_complains_of_is_kept(
    sshd: Start, settings: SshSettings, programs: Path, engine: Path
) -> None:
    said = "permission denied while trying to connect to the Docker daemon socket"
    program(programs / "docker", f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    with connect(sshd(with_path(programs)).host(), settings=settings) as connection:
        assert reason(connection) == said


def test_a_docker_command_that_answers_nonsense(sshd: Start, settings: SshSettings, programs: Path) -> None:
    program(programs / "docker", "#!/bin/sh\nhead -c 1000000 /dev/zero | tr '\\0' x\nsleep 600\n")
    with connect(sshd(with_path(programs)).host(), settings=settings) as connection:
        assert reason(connection).startswith("xxx")


def test_the_real_docker_command(sshd: Start, settings: SshSettings, engine: Path) -> None:
    path = with_path(find_docker().parent)
    server = sshd(f"{path} DOCKER_HOST=unix://{engine}", "AllowStreamLocalForwarding no")
    with connect(server.host(), settings=settings) as connection, connection.docker() as url:
        client = api(url)
        assert client.info()["Name"] == "engine", url.last_error
        client.close()


def test_the_real_docker_command_without_an_engine(sshd: Start, settings: SshSettings, tmp_path: Path) -> None:
    path = with_path(find_docker().parent)
    server = sshd(f"{path} DOCKER_HOST=unix://{tmp_path}/none.sock", "AllowStreamLocalForwarding no")
    with connect(server.host(), settings=settings) as connection:
        assert "none.sock" in reason(connection)


@pytest.mark.parametrize("password", ["", "raspberry"])
def test_sudo_with_and_without_a_password(
    password: str, sshd: Start, settings: SshSettings, programs: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "as-root"
    program(programs / "sudo", SUDO.format(python=sys.executable, password=password, trace=str(trace)))
    host = sshd(with_path(programs)).host()
    with (
        connect(host, settings=replace(settings, sudo_password=password or None)) as connection,
        connection.docker(sudo=True) as url,
    ):
        client = api(url)
        assert client.info()["Name"] == "engine", url.last_error
        client.close()
    assert trace.read_text().splitlines()[-1] == "docker system dial-stdio"


@pytest.mark.parametrize("password", [None, "wrong"])
def test_sudo_without_the_right_password(
    password: str | None, sshd: Start, settings: SshSettings, programs: Path, tmp_path: Path
) -> None:
    program(programs / "sudo", SUDO.format(python=sys.executable, password="raspberry", trace=str(tmp_path / "trace")))
    host = sshd(with_path(programs)).host()
    with connect(host, settings=replace(settings, sudo_password=password)) as connection:
        with pytest.raises(SudoPasswordError, match=r"Sorry" if password else "needs a password") as caught:
            connection.docker(sudo=True)
        assert "wrong" not in str(caught.value)
    assert not (tmp_path / "trace").exists()


def test_a_password_is_never_shown() -> None:
    assert "raspberry" not in repr(SshSettings(sudo_password="raspberry"))


def test_this_machines_engine(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine}")
    with here() as connection, connection.docker() as url:
        assert url == f"unix://{engine}"
        client = api(url)
        assert client.info()["Name"] == "engine"
        client.close()
    for elsewhere in ("", "tcp://127.0.0.1:1"):
        monkeypatch.setenv("DOCKER_HOST", elsewhere)
        with here().docker() as url:
            assert url == "unix:///var/run/docker.sock"


def test_what_this_machines_docker_command_complains_of(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    program(programs / "sudo", SUDO.format(python=sys.executable, password="", trace="/dev/null"))
    program(programs / "docker", "#!/bin/sh\n[ $1 = system ] || exit 0\necho denied >&2\n")
    with here() as connection, connection.docker(sudo=True) as url:
        client = api(url)
        with pytest.raises(requests.RequestException):
            client.info()
        assert url.last_error == "denied"
        client.close()


def test_this_machines_engine_with_sudo(
    engine: Path, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # root needs no sudo
    trace = tmp_path / "as-root"
    program(programs / "sudo", SUDO.format(python=sys.executable, password="raspberry", trace=str(trace)))
    with here("raspberry") as connection:
        with connection.docker(sudo=True) as url:
            client = api(url)
            assert client.info()["Name"] == "engine", url.last_error
            client.close()
        with pytest.raises(SudoPasswordError):
            here().docker(sudo=True)
