"""What is remembered of a swarm between commands, and what is said where none of its managers answers."""

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_examples import manager, node, swarm

from swarmctl.errors import SwarmctlError, UnreachableError
from swarmctl.fleet import where
from swarmctl.fleet.inventory import EMPTY, HERE, Host, Inventory, expand
from swarmctl.fleet.ssh import SshSettings
from swarmctl.fleet.where import Memory, Settings, recall, remember, word

THREE = (
    manager("server-1", "10.77.0.2"),
    replace(manager("server-2", "10.77.0.3"), leader=False),
    replace(manager("server-3", "10.77.0.4"), leader=False),
    node("pi-1"),
)


def settings(tmp_path: Path, inventory: Inventory = EMPTY) -> Settings:
    ssh = SshSettings(config_path=tmp_path / "ssh_config")
    return Settings(state=tmp_path / "state", inventory=inventory, ssh=ssh)


def test_managers_and_the_words_of_nodes_are_remembered(tmp_path: Path) -> None:
    reach = settings(tmp_path)
    remember(reach, swarm(*THREE), {"id-server-2": Host("gate.lan", user="pi", port=2222), "id-pi-1": Host("pi-1.lan")})
    assert recall(reach) == Memory(
        "cluster",
        ("10.77.0.2", "pi@gate.lan:2222", "10.77.0.4"),
        {"id-server-2": "pi@gate.lan:2222", "id-pi-1": "pi-1.lan"},
    )
    remember(reach, swarm(*THREE))
    assert recall(reach).hosts == {"id-server-2": "pi@gate.lan:2222", "id-pi-1": "pi-1.lan"}


def test_just_after_an_election_no_manager_is_forgotten(tmp_path: Path) -> None:
    """All nodes are "unknown" then."""
    reach = settings(tmp_path)
    remember(reach, swarm(*THREE), {"id-pi-1": Host("pi-1.lan")})
    known = recall(reach)
    remember(reach, swarm(*(replace(one, state="unknown") for one in THREE)))
    assert recall(reach) == known


def test_managers_that_are_up_are_asked_first(tmp_path: Path) -> None:
    reach = settings(tmp_path)
    remember(reach, swarm(replace(THREE[0], state="down", leader=False), *THREE[1:]))
    assert recall(reach).managers == ("10.77.0.3", "10.77.0.4", "10.77.0.2")


def test_a_list_of_managers_never_gives_way_to_an_empty_one(tmp_path: Path) -> None:
    reach = settings(tmp_path)
    remember(reach, swarm(*THREE))
    remember(reach, swarm(node("pi-1"), node("pi-2")))
    assert recall(reach).managers == ("10.77.0.2", "10.77.0.3", "10.77.0.4")


def test_another_swarm_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    reach = settings(tmp_path)
    remember(reach, swarm(*THREE), {"id-pi-1": Host("pi-1.lan")})
    remember(reach, swarm(manager("other", "10.9.9.9"), id="another"))
    assert recall(reach) == Memory("another", ("10.9.9.9",), {})


@pytest.mark.parametrize(
    "content", [b"", b'{"swarm": "clus', b"\x00\xff\xfe", b"[1]", b'{"managers": "a"}', b"[" * 100_000]
)
def test_a_broken_memory_is_warned_of_once_and_made_anew(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reach = settings(tmp_path)
    reach.state.mkdir()
    (reach.state / "swarm.json").write_bytes(content)
    assert recall(reach) == recall(reach) == Memory()
    assert capsys.readouterr().err.count("does not tell where the swarm is") == 1
    remember(reach, swarm(*THREE))
    assert recall(reach).swarm == "cluster"


def test_a_memory_that_can_be_neither_read_nor_written_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reach = settings(tmp_path)
    (reach.state / "swarm.json").mkdir(parents=True)
    remember(reach, swarm(*THREE))
    remember(reach, swarm(*THREE))
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("can't read where the swarm is") == 1
    assert told.count("can't keep where the swarm is") == 1
    assert "--manager HOST" in told
    assert [path.name for path in reach.state.iterdir()] == ["swarm.json"]  # no temporary file stays


def test_a_folder_that_can_not_be_made_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    remember(replace(settings(tmp_path), state=tmp_path / "file" / "state"), swarm(*THREE))
    assert "can't keep where the swarm is" in capsys.readouterr().err


def _remember_often(state: Path, name: str) -> None:
    reach = settings(state)
    for i in range(100):
        remember(reach, swarm(manager(name, "10.77.0.2"), id=f"{name}-{i}"))


def test_commands_at_the_same_time_leave_a_whole_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    several = [context.Process(target=_remember_often, args=(tmp_path, name)) for name in ("a", "b", "c")]
    for process in several:
        process.start()
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0, 0, 0]
    assert recall(settings(tmp_path)).swarm in {"a-99", "b-99", "c-99"}
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["swarm.json"]


def test_a_remembered_word_that_names_no_host_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reach = settings(tmp_path)
    reach.state.mkdir()
    (reach.state / "swarm.json").write_text('{"swarm": "cluster", "hosts": {"id-pi-1": "a b"}}')
    assert where.host_of(node("pi-1"), reach) == Host("10.77.0.9")
    assert "'a b'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "host", [Host("pi"), Host("pi", user="me", port=22), Host("fd00::1"), Host("fd00::1", user="me", port=2222)]
)
def test_a_word_means_the_host_that_it_was_made_of(host: Host) -> None:
    assert expand([word(host)]) == [host]


# None answers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def no_engine_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine's own engine, where it has one, must have no say."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def problem(reach: Settings) -> SwarmctlError:
    with pytest.raises(UnreachableError) as caught, where.manager(reach):
        pass
    return caught.value


@pytest.mark.usefixtures("no_engine_here")
def test_where_no_swarm_is_known_it_is_told_how_to_make_one(tmp_path: Path) -> None:
    error = problem(settings(tmp_path))
    assert "no swarm is known here" in str(error)
    assert error.next_steps[0].startswith("swarmctl init ")


@pytest.mark.usefixtures("no_engine_here")
def test_managers_that_do_not_answer_are_named_with_what_each_said(tmp_path: Path) -> None:
    """127.0.0.1 refuses; a name that ends in .invalid never has an address."""
    fleet = Inventory(None, (Host("gone.invalid", role="manager"), Host("pi-1")))
    reach = settings(tmp_path, fleet)
    reach.state.mkdir()
    (reach.state / "swarm.json").write_text('{"swarm": "cluster", "managers": ["127.0.0.1:1", "gone.invalid"]}')
    error = problem(reach)
    head, *lines = str(error).splitlines()
    assert head.startswith("no manager of the swarm answers")
    assert len(lines) == 3
    assert lines[0].startswith("  this machine: ")
    assert "127.0.0.1:1 refuses the connection" in lines[1]
    assert "no address is known for gone.invalid" in lines[2]
    assert not any("swarmctl init" in step for step in error.next_steps)
    assert error.next_steps[-1].startswith("swarmctl nodes --manager HOST") or "--local" in error.next_steps[-1]


@pytest.mark.usefixtures("no_engine_here")
def test_a_swarm_whose_managers_were_forgotten_is_not_made_anew(tmp_path: Path) -> None:
    reach = settings(tmp_path)
    reach.state.mkdir()
    (reach.state / "swarm.json").write_text('{"swarm": "cluster"}')
    error = problem(reach)
    assert "no manager of the swarm is known" in str(error)
    assert "this machine" in str(error)
    assert not any("swarmctl init" in step for step in error.next_steps)


def test_a_worker_that_can_not_log_in_to_its_managers_names_them() -> None:
    worker = where._NoManagerError("this machine", "active", ("10.77.0.2", "fd00::2"))
    refused = UnreachableError("10.77.0.2:22 accepts no key of ours", "ssh-copy-id 10.77.0.2")
    error = where._none_answers(Memory(), {HERE: worker, "10.77.0.2": refused})
    assert str(error).splitlines()[1:] == [
        "  this machine is a worker, not a manager",
        "  10.77.0.2:22 accepts no key of ours",
    ]
    assert list(error.next_steps)[:3] == [
        "swarmctl nodes --manager USER@10.77.0.2",
        "swarmctl nodes --manager USER@fd00::2",
        "ssh-copy-id 10.77.0.2",
    ]
