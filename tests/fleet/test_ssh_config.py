"""What is taken from ~/.ssh/config, compared with what OpenSSH's own client takes from it."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from swarmctl.fleet.inventory import Host
from swarmctl.fleet.ssh import SshSettings, knows
from swarmctl.fleet.ssh_config import Target, resolve
from swarmctl.fleet.ssh_errors import SshConfigError

CONFIG = """\
User everywhere
Include {home}/more

Host pi-*.lan !pi-99.lan
    User pi
    IdentityFile ~/.ssh/fleet
    IdentitiesOnly yes

Host pi-01.lan
    HostName 192.168.1.7
    Port 2222
    ProxyJump me@bastion.lan:2022
    StrictHostKeyChecking accept-new

Host short
    HostName %h.example.org

Host = quoted
    HostName "quoted.lan"

Match host pi-02.lan
    Port 2201

Host *
    Port 2200
"""
MORE = "Host included\n    HostName 10.0.0.1\nHost pi-02.lan\n    HostName 10.0.0.2\n"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshSettings:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "more").write_text(MORE)
    settings = SshSettings()
    settings.config_path.write_text(CONFIG.format(home=tmp_path))
    return settings


def openssh(name: str, settings: SshSettings) -> dict[str, list[str]]:
    ended = subprocess.run(
        ["ssh", "-G", "-F", str(settings.config_path), name], capture_output=True, text=True, check=True
    )
    found: dict[str, list[str]] = {}
    for line in ended.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize(
    "name", ["pi-01.lan", "pi-02.lan", "pi-99.lan", "short", "quoted", "included", "unheard-of", "10.1.2.3"]
)
def test_it_agrees_with_openssh(name: str, settings: SshSettings) -> None:
    ours, theirs = resolve(Host(name), settings), openssh(name, settings)
    assert ours.address == theirs["hostname"][0]
    assert str(ours.port) == theirs["port"][0]
    assert ours.user == theirs["user"][0]
    assert ours.only_identities == (theirs["identitiesonly"][0] == "yes")
    assert ours.strict == (theirs["stricthostkeychecking"][0] == "true")
    jumps = [f"{hop.user}@{hop.address}:{hop.port}" for hop in ours.jump]
    assert jumps == theirs.get("proxyjump", [])


def test_identities_are_in_the_home_that_the_environment_names(settings: SshSettings, tmp_path: Path) -> None:
    assert resolve(Host("pi-01.lan"), settings).identities == (tmp_path / ".ssh/fleet",)
    assert resolve(Host("elsewhere"), settings).identities == ()
    (tmp_path / ".ssh/id_rsa").touch()
    assert resolve(Host("elsewhere"), settings).identities == (tmp_path / ".ssh/id_rsa",)


def test_a_hosts_own_settings_go_first(settings: SshSettings) -> None:
    host = Host("pi-01.lan", "10.9.9.9", user="anna", port=22, identity=Path("/keys/anna"), jump=())
    target = resolve(host, settings)
    assert (target.address, target.user, target.port, target.jump) == ("10.9.9.9", "anna", 22, ())
    assert target.identities[0] == Path("/keys/anna")


def test_without_a_configuration(settings: SshSettings) -> None:
    settings.config_path.unlink()
    me = pwd.getpwuid(os.getuid()).pw_name
    target = resolve(Host("pi-01"), settings)
    assert (target.address, target.port, target.user, target.jump) == ("pi-01", 22, me, ())
    assert target.known_hosts[0] == settings.known_hosts


@pytest.mark.parametrize(
    ("host", "key_name"),
    [
        (Host("PI.lan", port=22), "pi.lan"),
        (Host("pi", "192.168.1.7", port=2222), "[192.168.1.7]:2222"),
        (Host("fe80::1", port=22), "fe80::1"),
    ],
)
def test_the_name_under_which_a_key_is_known(host: Host, key_name: str, settings: SshSettings) -> None:
    assert resolve(host, settings).key_name == key_name


def route(target: Target) -> list[str]:
    return [*(name for hop in target.jump for name in route(hop)), target.name]


@pytest.mark.parametrize(
    ("config", "host", "names"),
    [
        ("Host *\n ProxyJump b", Host("a"), ["b", "a"]),
        ("Host *\n ProxyJump b", Host("b"), ["b"]),
        ("Host a\n ProxyJump b\nHost b\n ProxyJump a", Host("a"), ["b", "a"]),
        ("Host a\n ProxyJump b\nHost b\n ProxyJump c", Host("a"), ["c", "b", "a"]),
        ("Host a\n ProxyJump b,c\nHost c\n ProxyJump d", Host("a"), ["b", "c", "a"]),
        ("Host a\n ProxyJump none\nHost *\n ProxyJump b", Host("a"), ["a"]),
        ("Host *\n ProxyJump b", Host("a", jump=("c",)), ["b", "c", "a"]),
        ("Host *\n ProxyJump b", Host("a", jump=()), ["a"]),
        ("", Host("c", jump=("b", "c")), ["b", "c"]),
    ],
)
def test_the_way_through_jump_hosts(config: str, host: Host, names: list[str], settings: SshSettings) -> None:
    settings.config_path.write_text(config + "\n")
    assert route(resolve(host, settings)) == names


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("Host pi\n  ProxyCommand nc %h %p\n", "ProxyCommand"),
        ("Host pi\n  Port many\n", "many"),
        ('Match exec "true"\n  Port 3\n', "Match exec"),
        ("Host pi\n  ProxyJump a b\n", "USER@"),
        ("nonsense\n", "nonsense"),
        ("Host 'pi\n  Port 3\n", "quotation"),
    ],
)
def test_what_can_not_be_followed_is_said(config: str, message: str, settings: SshSettings) -> None:
    settings.config_path.write_text(config)
    with pytest.raises(SshConfigError, match=message) as caught:
        resolve(Host("pi"), settings)
    assert str(settings.config_path) in str(caught.value)


def test_a_configuration_that_includes_itself(settings: SshSettings) -> None:
    settings.config_path.write_text(f"Include {settings.config_path}\n")
    with pytest.raises(SshConfigError, match="Include"):
        resolve(Host("pi"), settings)


def test_names_that_the_configuration_has(settings: SshSettings) -> None:
    assert knows("pi-01.lan", settings)
    assert knows("included", settings)
    assert not knows("pi-05.lan", settings)
    assert not knows("*", SshSettings(config_path=Path("/nonexistent")))


@pytest.mark.parametrize(
    ("target", "label", "arguments"),
    [
        (Host("192.168.1.7", user="pi", port=22), "192.168.1.7:22", "pi@192.168.1.7"),
        (Host("pi", "192.168.1.7", user="pi", port=2222), "pi (192.168.1.7:2222)", "-p 2222 pi@192.168.1.7"),
        (Host("fe80::1", user="pi", port=22), "[fe80::1]:22", "pi@fe80::1"),
    ],
)
def test_how_messages_name_a_server(target: Host, label: str, arguments: str, settings: SshSettings) -> None:
    resolved = resolve(target, settings)
    assert (resolved.label, resolved.arguments) == (label, arguments)
