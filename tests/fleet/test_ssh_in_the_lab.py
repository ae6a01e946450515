"""The way to Docker with real engines, real logins and real sudo, as they are on machines of all sorts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import docker
import pytest
import requests

from swarmctl.fleet.everywhere import everywhere
from swarmctl.fleet.inventory import load
from swarmctl.fleet.ssh import Connection, SshSettings, connect
from swarmctl.fleet.ssh_errors import SshError, SudoPasswordError
from tests.lab import Lab
from tests.lab.fixtures import MakeLab, lab_packages, make_lab  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:  # noqa: F811
    return make_lab(
        {
            "nodes": [
                {"name": "pi-1", "hardware": "rpi4-4g", "user": "pi"},
                {"name": "pi-2", "hardware": "rpi4-4g", "user": "pi", "greeting": "Welcome to Raspbian"},
                {"name": "anna", "hardware": "laptop", "user": "anna", "docker_group": False, "sudo": "nopasswd"},
                {"name": "tom", "hardware": "desktop", "user": "tom", "docker_group": False, "sudo": "password"},
                {"name": "bare", "hardware": "desktop", "docker": False},
            ]
        }
    )


@pytest.fixture
def environment(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The operator's home."""
    for key, value in lab.environment.items():
        monkeypatch.setenv(key, value)
    return lab.environment


@pytest.fixture
def settings(environment: Mapping[str, str]) -> SshSettings:
    return SshSettings()


def to(lab: Lab, name: str, settings: SshSettings) -> Connection:
    host = load(lab.fleet_yml).find(name)
    assert host
    return connect(host, settings=settings)


def engine_name(connection: Connection, *, sudo: bool = False) -> str:
    """What the engine calls itself, or what keeps it from saying so."""
    with connection.docker(sudo) as url:
        client = docker.APIClient(base_url=url, version="1.41", timeout=20)
        try:
            return str(client.info()["Name"])
        except requests.RequestException:
            return url.last_error
        finally:
            client.close()


def processes(connection: Connection) -> bytes:
    return connection.run("ps -e -o args").stdout


def test_a_member_of_the_group_needs_no_process_there(lab: Lab, settings: SshSettings) -> None:
    for name in ("pi-1", "pi-2"):
        with to(lab, name, settings) as connection, connection.docker() as url:
            client = docker.APIClient(base_url=url, version="1.41", timeout=20)
            assert client.info()["Name"] == name
            assert b"dial-stdio" not in processes(connection)
            client.close()


def test_who_is_not_in_the_group_is_told_so(lab: Lab, settings: SshSettings) -> None:
    with to(lab, "anna", settings) as connection:
        assert "permission denied" in engine_name(connection).lower()


def test_sudo_without_a_password(lab: Lab, settings: SshSettings) -> None:
    with to(lab, "anna", settings) as connection:
        assert engine_name(connection, sudo=True) == "anna"


def test_sudo_with_a_password(lab: Lab, settings: SshSettings) -> None:
    with to(lab, "tom", replace(settings, sudo_password="raspberry")) as connection:
        assert engine_name(connection, sudo=True) == "tom"
        # sudo may remember it by now; it must still be the one who reads it.
        assert engine_name(connection, sudo=True) == "tom"
        assert b"raspberry" not in processes(connection)


@pytest.mark.parametrize(("password", "message"), [(None, "needs a password"), ("wrong", "did not take the password")])
def test_sudo_without_the_right_password(password: str | None, message: str, lab: Lab, settings: SshSettings) -> None:
    given = replace(settings, sudo_password=password)
    with to(lab, "tom", given) as connection, pytest.raises(SudoPasswordError, match=message):
        connection.docker(sudo=True)


def test_a_user_who_may_not_use_sudo(lab: Lab, settings: SshSettings) -> None:
    with to(lab, "pi-1", settings) as connection, pytest.raises(SudoPasswordError):
        connection.docker(sudo=True)


def test_no_docker_there(lab: Lab, settings: SshSettings) -> None:
    with to(lab, "bare", settings) as connection:
        assert "docker: " in engine_name(connection)


def test_all_of_them_at_once(lab: Lab, settings: SshSettings) -> None:
    def name(connection: Connection) -> str:
        return connection.run("sh -s", stdin=b"echo ===; hostname").stdout.decode().partition("===\n")[2].strip()

    hosts = load(lab.fleet_yml).hosts
    assert everywhere(hosts, name, settings=settings) == {host.name: host.name for host in hosts}


def test_an_engine_that_dies_in_the_middle(lab: Lab, settings: SshSettings) -> None:
    with to(lab, "pi-2", settings) as connection, connection.docker() as url:
        client = docker.APIClient(base_url=url, version="1.41", timeout=20)
        events = client.events(decode=True)
        lab.nodes["pi-2"].kill_engine()
        assert list(events) == []
        with pytest.raises(requests.RequestException):
            client.info()
        assert "docker" in url.last_error.lower()
        lab.nodes["pi-2"].start_engine()
        assert client.info()["Name"] == "pi-2"
        client.close()


def test_a_machine_that_is_cut_off_in_the_middle(lab: Lab, settings: SshSettings, tmp_path: Path) -> None:
    node = lab.nodes["pi-1"]
    with to(lab, "pi-1", settings) as connection:
        node.cut()
        with pytest.raises(SshError):
            connection.run("true", timeout=2)
        node.heal()
    with to(lab, "pi-1", settings) as connection:
        assert connection.run("hostname").stdout == b"pi-1\n"
