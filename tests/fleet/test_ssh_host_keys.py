"""Host keys: an unknown one is remembered once, a changed one stops everything; with OpenSSH's own files."""

import base64
import multiprocessing
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest
from sshd import Sshd, generate_key

from swarmctl.fleet.inventory import Host
from swarmctl.fleet.known_hosts import known_keys, preferred_algorithms, verify
from swarmctl.fleet.ssh import SshSettings, connect
from swarmctl.fleet.ssh_config import resolve
from swarmctl.fleet.ssh_errors import HostKeyChangedError, HostKeyUnknownError, KnownHostsError

pytestmark = pytest.mark.usefixtures("no_threads_left")
Start = Callable[..., Sshd]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOP10PmmjU9hpxZcXRGQ+9PRpHWWhVsEYTvLrAjwXi1h"


def log_in(host: Host, settings: SshSettings) -> None:
    connect(host, settings=settings).close()


def remembered(settings: SshSettings) -> list[str]:
    return settings.known_hosts.read_text().splitlines()


def host_key(server: Sshd) -> str:
    """Kind and key, as they stand in known_hosts."""
    return " ".join((server.folder / "host_key.pub").read_text().split()[:2])


def test_an_unknown_key_is_remembered_once(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    for _ in range(2):
        log_in(server.host(), settings)
    assert remembered(settings) == [f"[127.0.0.1]:{server.port} {host_key(server)}"]
    assert settings.known_hosts.stat().st_mode & 0o777 == 0o600


def test_openssh_reads_what_is_remembered(sshd: Start, settings: SshSettings, home: Path) -> None:
    server = sshd()
    log_in(server.host(), settings)
    options = [f"UserKnownHostsFile={settings.known_hosts}", "StrictHostKeyChecking=yes", "BatchMode=yes"]
    command = ["ssh", "-F", "none", "-i", str(home / ".ssh/id_ed25519"), "-p", str(server.port)]
    subprocess.run([*command, *(word for o in options for word in ("-o", o)), "127.0.0.1", "true"], check=True)


def test_twenty_at_once_remember_it_once(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda i: log_in(server.host(f"pi-{i}"), settings), range(20)))
    assert remembered(settings) == [f"[127.0.0.1]:{server.port} {host_key(server)}"]


def test_many_new_hosts_at_once_each_get_a_line(sshd: Start, settings: SshSettings) -> None:
    settings.known_hosts.write_text("# the last line has no end")
    servers = [sshd(address=f"127.0.0.{i + 2}") for i in range(5)]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda server: log_in(server.host(), settings), servers * 2))
    lines = [f"[{server.address}]:{server.port} {host_key(server)}" for server in servers]
    assert sorted(remembered(settings)[1:]) == sorted(lines)


def remember(turn: int) -> None:
    target = resolve(Host("pi-01", port=2200 + turn % 4), SshSettings())
    verify(target, paramiko.PKey.from_type_string(KEY.split()[0], base64.b64decode(KEY.split()[1])))


def test_processes_at_once_remember_each_host_once(settings: SshSettings) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        pool.map(remember, range(80), chunksize=1)
    assert sorted(remembered(settings)) == [f"[pi-01]:{2200 + i} {KEY}" for i in range(4)]


def test_a_changed_key_is_fatal_and_says_what_to_do(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    settings.known_hosts.write_text("# a comment\n\n")
    log_in(server.host(), settings)
    server.stop()
    server.new_host_key()
    server.start()
    with pytest.raises(HostKeyChangedError) as caught:
        log_in(server.host(), settings)
    assert f"{settings.known_hosts}, line 3" in str(caught.value)
    assert "Accepted" not in server.log.read_text(), "it has not tried to log in"
    # The remedy is a command that works.
    subprocess.run(caught.value.next_steps[0], shell=True, check=True, capture_output=True)
    log_in(server.host(), settings)


def test_a_key_of_another_kind_is_a_changed_key(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    log_in(server.host(), settings)
    server.stop()
    server.new_host_key("ecdsa")
    server.start()
    with pytest.raises(HostKeyChangedError):
        log_in(server.host(), settings)


def test_the_kind_that_is_remembered_is_asked_for(sshd: Start, settings: SshSettings, tmp_path: Path) -> None:
    second = generate_key(tmp_path / "second", kind="rsa")
    server = sshd(f"HostKey {second}")
    known = " ".join(second.with_suffix(".pub").read_text().split()[:2])
    settings.known_hosts.write_text(f"[127.0.0.1]:{server.port} {known}\n")
    log_in(server.host(), settings)
    assert len(remembered(settings)) == 1


def test_a_hashed_name_is_recognized(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    log_in(server.host(), settings)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(settings.known_hosts)], check=True, capture_output=True)
    assert "127.0.0.1" not in settings.known_hosts.read_text()
    log_in(server.host(), settings)
    assert len(remembered(settings)) == 1
    server.stop()
    server.new_host_key()
    server.start()
    with pytest.raises(HostKeyChangedError):
        log_in(server.host(), settings)


def test_a_revoked_key_is_fatal(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    settings.known_hosts.write_text(f"@revoked * {host_key(server)}\n")
    with pytest.raises(HostKeyChangedError, match="revoked"):
        log_in(server.host(), settings)


def test_a_strict_configuration_refuses_an_unknown_host(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    settings.config_path.write_text("Host *\n  StrictHostKeyChecking yes\n")
    with pytest.raises(HostKeyUnknownError, match="SHA256:"):
        log_in(server.host(), settings)
    assert not settings.known_hosts.exists()


def test_an_alias_names_the_key(sshd: Start, settings: SshSettings) -> None:
    server = sshd()
    settings.config_path.write_text("Host pi-01\n  HostKeyAlias the-pi\n")
    log_in(server.host(), settings)
    assert remembered(settings) == [f"the-pi {host_key(server)}"]


def test_a_file_of_the_configuration_is_used(sshd: Start, settings: SshSettings, home: Path) -> None:
    server = sshd()
    settings.config_path.write_text("Host *\n  UserKnownHostsFile ~/mine ~/others\n")
    (home / "others").write_text(f"[127.0.0.1]:{server.port} {host_key(server)}\n")
    log_in(server.host(), settings)
    assert not (home / "mine").exists()
    (home / "others").unlink()
    log_in(server.host(), settings)
    assert (home / "mine").exists()
    assert not settings.known_hosts.exists()


def test_a_configuration_that_remembers_nothing(sshd: Start, settings: SshSettings) -> None:
    settings.config_path.write_text("Host *\n  UserKnownHostsFile /dev/null\n")
    server = sshd()
    for _ in range(2):
        log_in(server.host(), settings)
        server.stop()
        server.new_host_key()
        server.start()
    assert not settings.known_hosts.exists()


def test_a_file_that_can_not_be_written(sshd: Start, settings: SshSettings) -> None:
    settings.known_hosts.mkdir()
    with pytest.raises(KnownHostsError, match="directory"):
        log_in(sshd().host(), settings)


@pytest.mark.parametrize(
    ("names", "is_known"),
    [
        ("pi-01.lan", True),
        ("PI-01.lan", True),
        ("other,pi-01.lan", True),
        ("*.lan", True),
        ("pi-0?.lan", True),
        ("*.lan,!pi-01.lan", False),
        ("pi-02.lan", False),
        ("[pi-01.lan]:2222", False),
        ("pi-01", False),
        ("|1|cut", False),
        ("|1|!!!|???", False),
    ],
)
def test_names_are_matched_as_openssh_does(names: str, is_known: bool, settings: SshSettings) -> None:
    settings.known_hosts.write_text(f"{names} {KEY} a comment\n")
    assert bool(known_keys(resolve(Host("pi-01.lan"), settings))) is is_known
    found = subprocess.run(
        ["ssh-keygen", "-F", "pi-01.lan", "-f", str(settings.known_hosts)], capture_output=True, check=False
    )
    assert (found.returncode == 0) is is_known


def test_lines_that_are_none_are_passed_over(settings: SshSettings) -> None:
    settings.known_hosts.write_bytes(
        b"\xff\xfe\n\npi-01.lan\n# pi-01.lan x y\n@cert-authority *.lan ssh-rsa AAAA\n@x\n"
    )
    assert known_keys(resolve(Host("pi-01.lan"), settings)) == []


def test_known_kinds_come_first_and_none_is_lost(settings: SshSettings) -> None:
    settings.known_hosts.write_text("pi-01 ssh-rsa AAAA\n")
    usual = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")
    found = preferred_algorithms(known_keys(resolve(Host("pi-01"), settings)), usual)
    assert found == ("rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519", "ecdsa-sha2-nistp256")
