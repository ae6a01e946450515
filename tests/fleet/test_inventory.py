"""The fleet file and hosts on the command line."""

import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.errors import FleetError, UsageError
from swarmctl.fleet.inventory import EMPTY, Host, Inventory, as_data, expand, load, parse_hop, render

EXAMPLE = """\
ssh:
  user: pi
  identity: keys/fleet
  jump: me@bastion.lan:2022,second.lan
hosts:
  - server-1.lan
  - pi-[01-03].lan
  - anna@desk.lan:2222
  - name: laptop-anna
    address: 192.168.1.40
    user: anna
    port: 2223
    identity: ~/.ssh/anna
    jump: none
    class: laptop
    profile: LAPTOP_MID
    advertise: 192.168.1.41
    role: manager
  - {name: "rack-[a]", address: 10.0.0.1}
"""


def read(text: str, tmp_path: Path) -> Inventory:
    path = tmp_path / "fleet.yml"
    path.write_text(text)
    return load(path)


def mistakes(text: str, tmp_path: Path) -> list[str]:
    """The lines of the message, without the file's name."""
    with pytest.raises(FleetError) as caught:
        read(text, tmp_path)
    head, *lines = str(caught.value).splitlines()
    assert head == f"{tmp_path}/fleet.yml has {'1 mistake' if len(lines) == 1 else f'{len(lines)} mistakes'}"
    return [line.removeprefix(f"{tmp_path}/fleet.yml:") for line in lines]


def test_a_file_with_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    inventory = read(EXAMPLE.replace('  - {name: "rack-[a]", address: 10.0.0.1}\n', ""), tmp_path)
    default = Host("", user="pi", identity=tmp_path / "keys/fleet", jump=("me@bastion.lan:2022", "second.lan"))
    assert inventory.hosts == (
        replace(default, name="server-1.lan"),
        replace(default, name="pi-01.lan"),
        replace(default, name="pi-02.lan"),
        replace(default, name="pi-03.lan"),
        replace(default, name="desk.lan", user="anna", port=2222),
        Host(
            name="laptop-anna",
            address="192.168.1.40",
            user="anna",
            port=2223,
            identity=Path("/home/me/.ssh/anna"),
            jump=(),
            hardware_class="laptop",
            profile="LAPTOP_MID",
            advertise="192.168.1.41",
            role="manager",
        ),
    )
    assert inventory.path == tmp_path / "fleet.yml"


def test_a_profile_tells_the_class(tmp_path: Path) -> None:
    (host,) = read("hosts: [{name: a, profile: RPI4_4G}]", tmp_path).hosts
    assert host.hardware_class == "rpi"


def test_no_hosts_is_a_fleet_too(tmp_path: Path) -> None:
    assert read("hosts: []", tmp_path).hosts == ()


def test_a_pattern_in_the_long_form(tmp_path: Path) -> None:
    hosts = read('hosts: [{name: "pi-[9-11]", user: anna, class: rpi}]', tmp_path).hosts
    assert [host.name for host in hosts] == ["pi-9", "pi-10", "pi-11"]
    assert {(host.user, host.hardware_class) for host in hosts} == {("anna", "rpi")}


def test_all_mistakes_are_told_at_once_with_their_places(tmp_path: Path) -> None:
    text = """\
ssh: {usr: pi, port: 70000, jump: "a b"}
hosts:
  - 12
  - pi-[5-3]
  - -oProxyCommand=evil
  - {name: a, class: rpj, role: boss}
  - {name: b, class: server, profile: RPI4_4G}
  - {address: 10.0.0.1}
  - {name: "c-[1-2]", address: 10.0.0.2}
  - all
  - {name: d, advertise: eth0}
more: 1
"""
    assert mistakes(text, tmp_path) == [
        "1:7: ssh.usr: unknown key; did you mean 'user'?",
        "1:22: ssh.port: must be from 1 to 65535, not 70000",
        "1:35: ssh.jump: 'a b' names no host to jump through: a host is named as [USER@]HOST[:PORT]",
        "3:5: hosts[0]: a host's name, or keys with values, is needed, not '12'",
        "4:5: hosts[1].name: 'pi-[5-3]' names no host: the range 5-3 is empty",
        "5:5: hosts[2].name: '-oProxyCommand=evil' names no host: a name is made of letters, digits, dots, dashes and "
        "underscores, and no dash comes first",
        "6:22: hosts[3].class: 'rpj' is not one of the values known here; did you mean 'rpi'?",
        "6:33: hosts[3].role: 'boss' is not one of the values known here; known here: worker, manager",
        "7:5: hosts[4].profile: RPI4_4G is a profile of class rpi, not of server",
        "8:5: hosts[5].name: this key is missing",
        "9:5: hosts[6].address: 2 hosts can't have one address; leave it out, or write them one by one",
        "10:5: hosts[7].name: 'all' stands for all hosts on the command line; no host can have that name",
        "11:26: hosts[8].advertise: 'eth0' is no IP address, such as 192.168.1.10",
        "12:1: more: unknown key; known here: ssh, hosts",
    ]


def test_duplicates_are_mistakes(tmp_path: Path) -> None:
    text = """\
hosts:
  - pi-[01-03]
  - pi-02
  - {name: other, address: pi-03}
  - {name: another, address: pi-03, port: 2222}
  - {name: behind, address: pi-03, jump: gate}
"""
    assert mistakes(text, tmp_path) == [
        "3:5: hosts[1]: pi-02 is already in line 2",
        "4:5: hosts[2]: other has the same address and port as pi-03 in line 2",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("hosts: [", "not valid YAML"),
        ("ssh: {}", "hosts: this key is missing"),
        ("hosts: pi-01", "a list is needed"),
        ("- pi-01", "keys with values are needed"),
    ],
)
def test_files_that_are_no_fleet(text: str, message: str, tmp_path: Path) -> None:
    assert message in mistakes(text, tmp_path)[0]


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "none.yml")
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FleetError, match="not UTF-8"):
        load(tmp_path / "binary.yml")


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("pi", ["pi"]),
        ("pi-[1-3]", ["pi-1", "pi-2", "pi-3"]),
        ("pi-[01-03].lan", ["pi-01.lan", "pi-02.lan", "pi-03.lan"]),
        ("pi-[098-101]", ["pi-098", "pi-099", "pi-100", "pi-101"]),
        ("pi-[9-11]", ["pi-9", "pi-10", "pi-11"]),
        ("pi-[1,3,5-7]", ["pi-1", "pi-3", "pi-5", "pi-6", "pi-7"]),
        ("r[1-2]-n[1-2]", ["r1-n1", "r1-n2", "r2-n1", "r2-n2"]),
        ("10.0.0.[7-8]", ["10.0.0.7", "10.0.0.8"]),
        ("fe80::1", ["fe80::1"]),
        ("fe80::1%eth0", ["fe80::1%eth0"]),
        ("[fe80::1]:22", ["fe80::1"]),
        ("пи-[1-2]", ["пи-1", "пи-2"]),
    ],
)
def test_words_of_the_command_line(word: str, names: list[str]) -> None:
    assert [host.name for host in expand([word])] == names


def test_user_and_port_of_a_word() -> None:
    assert expand(["pi@pi-[1-2].lan:2222"]) == [
        Host("pi-1.lan", user="pi", port=2222),
        Host("pi-2.lan", user="pi", port=2222),
    ]
    assert expand(["me@[fe80::1]:22", "me@fe80::2"]) == [
        Host("fe80::1", user="me", port=22),
        Host("fe80::2", user="me"),
    ]


@pytest.mark.parametrize(
    "word",
    ["", " ", "a b", "pi-[", "pi-[]", "pi-[1-]", "pi-[a-b]", "pi-[3-1]", "a@b@c", "@a", "a@", "pi:", "pi:0", "pi:65536",
     "pi:x", "-oProxyCommand=x", "-u@pi", "a/b", "pi-[1-1001]", "a[1-40]b[1-40]", "pi-[1-99999999999999]", "$(id)"],
)  # fmt: skip
def test_words_that_name_no_host(word: str) -> None:
    started = time.monotonic()
    with pytest.raises(UsageError, match="names no host"):
        expand([word])
    assert time.monotonic() - started < 1


def test_words_find_the_hosts_of_the_file() -> None:
    known = Host("pi-01", address="10.0.0.1", user="pi", identity=Path("/k"))
    inventory = Inventory(None, (known, Host("server")))
    assert expand(["pi-01"], inventory) == [known]
    assert expand(["10.0.0.1"], inventory) == [known]
    assert expand(["anna@pi-01:22"], inventory) == [replace(known, user="anna", port=22)]
    assert expand(["server", "all", "server", "new"], inventory) == [Host("server"), known, Host("new")]
    assert inventory.find("10.0.0.1") is known
    assert inventory.find("nobody") is None


def test_all_of_nothing_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="all"):
        expand(["all"], EMPTY)


def test_a_jump_goes_through_one_host() -> None:
    assert parse_hop("me@gate:2022") == Host("gate", user="me", port=2022)
    with pytest.raises(ValueError, match="pattern"):
        parse_hop("gate-[1-2]")


def test_every_host_shows_all_keys() -> None:
    assert as_data(Host("a", jump=())) == {
        "name": "a", "address": None, "user": None, "port": None, "identity": None, "jump": "none", "class": None,
        "profile": None, "advertise": None, "role": "worker",
    }  # fmt: skip


def test_plain_hosts_are_written_plainly() -> None:
    hosts = [Host("pi-01"), Host("server", role="manager")]
    assert render(hosts) == "hosts:\n- pi-01\n- name: server\n  role: manager\n"


_names = st.from_regex(r"[a-z][a-z0-9.-]{0,10}|1[0-9.]{0,5}|no|null|1e3|0x1f", fullmatch=True)
_hosts = st.builds(
    Host,
    name=_names.filter(lambda name: name != "all"),
    address=st.just("") | _names,
    user=st.none() | _names,
    port=st.none() | st.integers(1, 65535),
    identity=st.none() | st.just(Path("/home/me/a key")),
    jump=st.none() | st.just(()) | st.lists(_names.filter(lambda name: name != "none"), min_size=1).map(tuple),
    hardware_class=st.none() | st.just("rpi"),
    profile=st.none(),
    advertise=st.none() | st.ip_addresses().map(str),
    role=st.sampled_from(["worker", "manager"]),
)


@given(st.lists(_hosts, unique_by=(lambda h: h.name, lambda h: (h.address or h.name, h.port or 22, h.jump))))
def test_what_is_written_reads_the_same(tmp_path_factory: pytest.TempPathFactory, hosts: list[Host]) -> None:
    path = tmp_path_factory.getbasetemp() / "fleet.yml"
    path.write_text(render(hosts))
    assert load(path).hosts == tuple(hosts)


@given(st.text())
def test_any_text_is_a_fleet_or_a_mistake(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(FleetError):
        load(path)


@given(st.text())
def test_any_word_names_hosts_or_is_a_mistake(word: str) -> None:
    with contextlib.suppress(UsageError):
        assert all(host.name for host in expand([word]))
