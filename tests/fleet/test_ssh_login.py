"""How connections come about, and each way in which they don't, with real servers."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sshd import USER, Agent, Sshd, free_port, generate_key

from swarmctl.fleet.inventory import Host
from swarmctl.fleet.ssh import SshError, SshSettings, connect
from swarmctl.fleet.ssh_errors import (
    ConnectionLimitError,
    HandshakeBrokenError,
    HandshakeTimeoutError,
    IncompatibleError,
    JumpHostError,
    KeyFileError,
    NameNotFoundError,
    NoKeyAcceptedError,
    NoRouteError,
    NotSshError,
    RefusedError,
    SilentError,
)

pytestmark = pytest.mark.usefixtures("no_threads_left")
Start = Callable[..., Sshd]


def says_hello(host: Host, settings: SshSettings, timeout: float = 10.0) -> bool:
    with connect(host, settings=settings, timeout=timeout) as connection:
        return connection.run("echo hello").stdout == b"hello\n"


def failure(host: Host, settings: SshSettings, timeout: float = 10.0) -> SshError:
    """The error of a connection that must not come about, in time."""
    started = time.monotonic()
    with pytest.raises(SshError) as caught:
        connect(host, settings=settings, timeout=timeout)
    assert time.monotonic() - started < timeout + 1
    return caught.value


@contextmanager
def listener(talk: Callable[[socket.socket], None], address: str = "127.0.0.1") -> Iterator[Host]:
    """Something that listens and is no sshd."""
    ended = threading.Event()

    def serve(server: socket.socket) -> None:
        taken: list[socket.socket] = []
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                break
            taken.append(peer)
            talk(peer)
        for peer in taken:
            peer.close()
        ended.set()

    with socket.create_server((address, 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield Host("odd", address=address, port=server.getsockname()[1], user="pi")
        server.shutdown(socket.SHUT_RDWR)
        assert ended.wait(5)


def test_logs_in_with_the_usual_key(sshd: Start, settings: SshSettings) -> None:
    assert says_hello(sshd().host(), settings)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_logs_in_with_a_key_that_is_named(kind: str, sshd: Start, settings: SshSettings, home: Path) -> None:
    server = sshd()
    server.authorized.write_text(generate_key(home / "other", kind=kind).with_suffix(".pub").read_text())
    assert says_hello(server.host(identity=home / "other"), settings)


def test_a_name_without_an_address(settings: SshSettings) -> None:
    error = failure(Host("no-such-host.invalid"), settings)
    assert isinstance(error, NameNotFoundError)
    assert "no-such-host.invalid" in str(error)


@pytest.mark.parametrize("name", ["a..b", "x" * 300])
def test_a_name_that_can_be_none(name: str, settings: SshSettings) -> None:
    assert isinstance(failure(Host(name), settings), NameNotFoundError)


def test_a_name_server_that_does_not_answer(settings: SshSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver knows no timeout of ours; here it waits as it would for a name server that is gone."""
    asked, release = socket.getaddrinfo, threading.Event()

    def hang(*arguments: object, flags: int = 0, **options: object) -> object:
        if not flags & socket.AI_NUMERICHOST:
            release.wait(60)
        return asked(*arguments, flags=flags, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("socket.getaddrinfo", hang)
    error = failure(Host("pi-01.invalid"), settings, timeout=0.5)
    release.set()
    assert isinstance(error, NameNotFoundError)
    assert "has not answered" in str(error)


def test_nothing_listens(settings: SshSettings) -> None:
    port = free_port()
    error = failure(Host("pi-01", address="127.0.0.1", port=port), settings)
    assert isinstance(error, RefusedError)
    assert f"pi-01 (127.0.0.1:{port})" in str(error)


def test_no_packet_comes_back(settings: SshSettings) -> None:
    # A full backlog on Linux drops what would connect, as a firewall does.
    with socket.socket() as server, socket.socket() as first:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        first.connect(server.getsockname())
        error = failure(Host("pi-01", address="127.0.0.1", port=server.getsockname()[1]), settings, timeout=1)
    assert isinstance(error, NoRouteError)
    assert "nothing answers within 1 s" in str(error)


def test_it_accepts_and_says_nothing(settings: SshSettings) -> None:
    with listener(lambda peer: None) as host:
        assert isinstance(failure(host, settings, timeout=1), SilentError)


def test_it_is_no_ssh_server(settings: SshSettings) -> None:
    with listener(lambda peer: peer.sendall(b"220 mail.lan ESMTP\r\n")) as host:
        started = time.monotonic()
        error = failure(host, settings, timeout=30)
    assert isinstance(error, NotSshError)
    assert "220 mail.lan ESMTP" in str(error)
    assert time.monotonic() - started < 5, "it need not wait for the whole deadline"


def test_it_pours_out_bytes_without_end(settings: SshSettings) -> None:
    def pour(peer: socket.socket) -> None:
        try:
            while True:
                peer.sendall(bytes(65536))
        except OSError:
            return

    with listener(pour) as host:
        assert isinstance(failure(host, settings), NotSshError)


def test_it_hangs_after_its_greeting(settings: SshSettings) -> None:
    with listener(lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")) as host:
        error = failure(host, settings, timeout=1)
    assert isinstance(error, HandshakeTimeoutError)
    assert "key exchange" in str(error)


def test_it_breaks_off_after_its_greeting(settings: SshSettings) -> None:
    def greet_and_go(peer: socket.socket) -> None:
        peer.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
        peer.close()

    with listener(greet_and_go) as host:
        assert isinstance(failure(host, settings, timeout=1), HandshakeBrokenError)


def test_other_lines_before_the_greeting_are_let_pass(sshd: Start, settings: SshSettings) -> None:
    server = sshd()

    def relay(peer: socket.socket) -> None:
        peer.sendall(b"Welcome!\r\n\xff\xfe\r\n")
        upstream = socket.create_connection((server.address, server.port))
        for source, sink in ((peer, upstream), (upstream, peer)):
            threading.Thread(target=pump, args=(source, sink), daemon=True).start()

    with listener(relay) as host:
        assert says_hello(server.host(port=host.port), settings)


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def test_no_algorithm_in_common(sshd: Start, settings: SshSettings) -> None:
    server = sshd("Ciphers chacha20-poly1305@openssh.com")
    error = failure(server.host(), settings)
    assert isinstance(error, IncompatibleError)
    assert "cipher" in str(error)


def test_a_key_that_is_not_accepted_is_named(sshd: Start, settings: SshSettings, home: Path) -> None:
    server = sshd()
    server.authorized.write_text("")
    error = failure(server.host(), settings)
    assert isinstance(error, NoKeyAcceptedError)
    assert f"{USER}@pi-01" in str(error)
    assert "~/.ssh/id_ed25519" in str(error)
    assert f"ssh-copy-id -p {server.port} {USER}@127.0.0.1" in error.next_steps


def test_no_key_at_all(sshd: Start, settings: SshSettings, home: Path) -> None:
    server = sshd()
    (home / ".ssh/id_ed25519").unlink()
    error = failure(server.host(), settings)
    assert isinstance(error, NoKeyAcceptedError)
    assert error.next_steps[0].startswith("ssh-keygen")


def test_a_server_that_takes_no_keys(sshd: Start, settings: SshSettings) -> None:
    server = sshd("PubkeyAuthentication no", "PasswordAuthentication yes")
    error = failure(server.host(), settings)
    assert isinstance(error, NoKeyAcceptedError)
    assert "it only takes: password" in str(error)


def test_a_server_that_wants_more_than_a_key(sshd: Start, settings: SshSettings) -> None:
    server = sshd("AuthenticationMethods publickey,password", "PasswordAuthentication yes")
    error = failure(server.host(), settings)
    assert isinstance(error, NoKeyAcceptedError)
    assert "also wants: password" in str(error)


def test_more_wrong_keys_than_the_server_lets_try(sshd: Start, settings: SshSettings, home: Path) -> None:
    server = sshd("MaxAuthTries 2")
    server.authorized.write_text("")
    keys = [generate_key(home / f"key-{i}") for i in range(4)]
    (home / ".ssh/config").write_text("Host *\n" + "".join(f"  IdentityFile {key}\n" for key in keys))
    error = failure(server.host(), settings)
    assert isinstance(error, NoKeyAcceptedError)
    assert "Too many authentication failures" in str(error)


def test_a_key_file_that_is_missing(sshd: Start, settings: SshSettings, home: Path) -> None:
    error = failure(sshd().host(identity=home / "none"), settings)
    assert isinstance(error, KeyFileError)
    assert "~/none can't be read: No such file" in str(error)


def test_a_key_file_that_is_none(sshd: Start, settings: SshSettings, home: Path) -> None:
    (home / "text").write_text("hello\n")
    error = failure(sshd().host(identity=home / "text"), settings)
    assert isinstance(error, KeyFileError)
    assert "no private key" in str(error)


@pytest.mark.parametrize("with_public_half", [True, False])
def test_an_encrypted_key_needs_the_agent(
    with_public_half: bool, sshd: Start, settings: SshSettings, home: Path, agent: Agent
) -> None:
    server = sshd()
    key = generate_key(home / "locked", passphrase="secret")
    server.authorized.write_text(key.with_suffix(".pub").read_text())
    if not with_public_half:
        key.with_suffix(".pub").unlink()
    host = server.host(identity=key)

    error = failure(host, settings)
    assert isinstance(error, KeyFileError)
    assert "ssh-add ~/locked" in error.next_steps

    agent.add(key, "secret")
    assert says_hello(host, settings)
    (home / ".ssh/config").write_text("Host *\n  IdentitiesOnly yes\n")
    assert says_hello(host, settings)
    assert isinstance(failure(host, replace(settings, use_agent=False)), KeyFileError)


def test_the_agents_keys_are_tried_without_being_named(
    sshd: Start, settings: SshSettings, home: Path, agent: Agent
) -> None:
    server = sshd()
    key = generate_key(home / "locked", kind="rsa", passphrase="secret")
    server.authorized.write_text(key.with_suffix(".pub").read_text())
    agent.add(key, "secret")
    key.unlink()
    assert says_hello(server.host(), settings)
    (home / ".ssh/config").write_text("Host *\n  IdentitiesOnly yes\n")
    assert isinstance(failure(server.host(), settings), NoKeyAcceptedError)


def test_an_agent_that_is_gone_does_not_matter(
    sshd: Start, settings: SshSettings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "none.sock"))
    assert says_hello(sshd().host(), settings)


def test_a_server_over_its_limit_is_tried_again(sshd: Start, settings: SshSettings) -> None:
    server = sshd("MaxStartups 1", "LoginGraceTime 2")
    with socket.create_connection((server.address, server.port)) as other:
        assert other.recv(100).startswith(b"SSH-")  # it has the only place now, for two seconds
        assert isinstance(failure(server.host(), settings, timeout=0.5), ConnectionLimitError)
        assert says_hello(server.host(), settings)


def test_through_a_jump_host(sshd: Start, settings: SshSettings) -> None:
    bastion, server = sshd(address="127.0.0.2"), sshd(address="127.0.0.3")
    hop = f"{USER}@{bastion.address}:{bastion.port}"
    assert says_hello(server.host(jump=(hop,)), settings)
    assert "Accepted publickey" in bastion.log.read_text()
    assert "from 127.0.0.1" in server.log.read_text()


def test_through_two_jump_hosts_by_the_configuration(sshd: Start, settings: SshSettings, home: Path) -> None:
    first, second, server = sshd(address="127.0.0.2"), sshd(address="127.0.0.3"), sshd()
    (home / ".ssh/config").write_text(
        f"Host first\n  HostName 127.0.0.2\n  Port {first.port}\n"
        f"Host second\n  HostName 127.0.0.3\n  Port {second.port}\n  ProxyJump first\n"
        f"Host pi-01\n  HostName 127.0.0.1\n  Port {server.port}\n  ProxyJump second\n"
    )
    assert says_hello(Host("pi-01"), settings)
    for used in (first, second, server):
        assert "Accepted publickey" in used.log.read_text()


def test_a_jump_host_that_refuses(sshd: Start, settings: SshSettings) -> None:
    port = free_port()
    error = failure(sshd().host(jump=(f"127.0.0.2:{port}",)), settings)
    assert isinstance(error, JumpHostError)
    assert f"behind 127.0.0.2:{port}" in str(error)
    assert "refuses" in str(error)


def test_a_jump_host_that_takes_no_key_of_ours(sshd: Start, settings: SshSettings) -> None:
    bastion = sshd(address="127.0.0.2")
    bastion.authorized.write_text("")
    error = failure(sshd().host(jump=(f"{USER}@127.0.0.2:{bastion.port}",)), settings)
    assert isinstance(error, JumpHostError)
    assert f"ssh-copy-id -p {bastion.port} {USER}@127.0.0.2" in error.next_steps


def test_a_jump_host_that_can_not_connect_further(sshd: Start, settings: SshSettings) -> None:
    bastion = sshd(address="127.0.0.2")
    host = Host("pi-01", address="127.0.0.1", port=free_port(), jump=(f"{USER}@127.0.0.2:{bastion.port}",))
    error = failure(host, settings)
    assert isinstance(error, JumpHostError)
    assert "it can't connect further" in str(error)


def test_a_jump_host_that_forbids_it(sshd: Start, settings: SshSettings) -> None:
    bastion = sshd("AllowTcpForwarding no", address="127.0.0.2")
    error = failure(sshd().host(jump=(f"{USER}@127.0.0.2:{bastion.port}",)), settings)
    assert isinstance(error, JumpHostError)
    assert "forbids" in str(error)


def test_a_hang_behind_a_jump_host(sshd: Start, settings: SshSettings) -> None:
    bastion = sshd(address="127.0.0.2")
    with listener(lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")) as host:
        error = failure(replace(host, jump=(f"{USER}@127.0.0.2:{bastion.port}",)), settings, timeout=3)
    assert isinstance(error, HandshakeTimeoutError)


def test_nothing_is_said_on_the_terminal(sshd: Start, home: Path) -> None:
    """paramiko logs tracebacks of its own where no logging is set up."""
    server = sshd("Ciphers chacha20-poly1305@openssh.com")
    script = (
        "import sys\nfrom swarmctl.fleet.ssh import *\nfrom swarmctl.fleet.inventory import Host\n"
        f"try: connect(Host('pi', address='127.0.0.1', port={server.port}), settings=SshSettings())\n"
        "except SshError: sys.exit(5)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (5, "", "")
