"""The listing of nodes: what is said of each, and that none of it is lost on a narrow console."""

from dataclasses import replace
from typing import Any

import pytest
from fleet_examples import manager, node, probe, swarm
from rich.console import Console, RenderableType

from swarmctl.errors import UnreachableError
from swarmctl.fleet import tell
from swarmctl.fleet.facts import EngineFacts, Probe, Route
from swarmctl.fleet.inventory import Host
from swarmctl.fleet.machines import Machine
from swarmctl.fleet.nodes import render, rows, summary
from swarmctl.fleet.swarm import CLASS, PROFILE, Node

ELECTED = 'Node moved to "unknown" state due to leadership change in cluster'
LABELS = {CLASS: "rpi", PROFILE: "RPI4_4G"}


def printed(what: RenderableType, width: int) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def running(name: str = "pi-1", **engine: Any) -> Probe:
    """A node's machine that answers."""
    said = probe(name)
    keys = {"swarm_state": "active", "node_id": f"id-{name}", **engine}
    return replace(said, engine=replace(said.engine, **keys))


def row_of(one: Node, found: Probe | None = None, error: str = "") -> dict[str, Any]:
    machine = Machine(Host(one.hostname), one, found, UnreachableError(error) if error else None)
    (row,) = rows([machine], swarm(manager(), one))
    return row


# What is said ---------------------------------------------------------------------------------------------------


def test_just_after_an_election_nobody_is_blamed() -> None:
    fresh = node("pi-1", state="unknown", message=ELECTED, labels=LABELS)
    wanted = "the managers have just changed their leader, and will know in some seconds"
    assert row_of(fresh, running())["reason"] == wanted
    assert row_of(fresh)["reason"] == wanted
    assert row_of(replace(fresh, message=""))["reason"] == "the managers have not heard from it yet"


def test_a_node_whose_engine_is_seen_to_be_down_is_no_riddle_after_an_election() -> None:
    fresh = node("pi-1", state="unknown", message=ELECTED, labels=LABELS)
    assert "engine does not answer" in row_of(fresh, running(access="down", swarm_state="", node_id=""))["reason"]


@pytest.mark.parametrize(
    ("kernel", "arch"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64"), ("", "")]
)
def test_the_architecture_is_in_dockers_words(kernel: str, arch: str) -> None:
    assert row_of(node("pi-1", platform_arch=kernel))["arch"] == arch


def test_a_node_without_a_class_is_told_how_to_get_one() -> None:
    assert "swarmctl label --auto" in row_of(node("pi-1"), running())["reason"]
    assert row_of(node("pi-1", labels=LABELS), running())["reason"] == ""
    assert "label" not in row_of(node("pi-1", state="down"))["reason"]


def test_a_stopped_engine_is_told_once() -> None:
    said = "Cannot connect to the Docker daemon"
    down = row_of(
        node("pi-1", state="down", labels=LABELS), replace(probe(), engine=EngineFacts(access="down", error=said))
    )
    told = printed(render([down]), 200)
    assert told.count(said) == 1
    assert "sudo systemctl enable --now docker" in told
    # Until the managers miss it, there is no reason that could tell.
    ready = row_of(node("pi-1", labels=LABELS), replace(probe(), engine=EngineFacts(access="down", error=said)))
    assert printed(render([ready]), 200).count(said) == 1


def test_a_machine_is_not_named_twice() -> None:
    down = row_of(node("pi-1", state="down", labels=LABELS), error="pi-1: the connection was lost")
    assert down["reason"].startswith("the connection was lost")


def stranger(found: Probe | None, error: str = "") -> dict[str, Any]:
    machine = Machine(Host("pi-9"), None, found, UnreachableError(error) if error else None)
    *_, row = rows([], swarm(), [machine])
    return row


def test_a_host_is_told_to_join_only_where_it_can() -> None:
    assert stranger(probe("pi-9"))["reason"] == "swarmctl join pi-9"
    bare = stranger(replace(probe("pi-9"), engine=EngineFacts(access="absent")))
    assert "swarmctl join" not in bare["reason"]
    assert "Docker is not installed" in printed(render([bare]), 200)
    elsewhere = replace(probe("pi-9").engine, swarm_state="active", node_id="of-another")
    assert "docker swarm leave" in stranger(replace(probe("pi-9"), engine=elsewhere))["reason"]
    assert stranger(None, "pi-9: gone")["reason"] == "gone"


def test_a_manager_that_the_others_do_not_reach_is_told_so() -> None:
    lonely = replace(manager("server-2"), leader=False, reachability="unreachable", labels=LABELS)
    row = row_of(lonely, running("server-2"))
    assert (row["state"], row["reason"]) == (
        "unreachable",
        "the other managers don't reach it; swarmctl doctor server-2",
    )


# At every width -------------------------------------------------------------------------------------------------


def fleet() -> list[dict[str, Any]]:
    """A leader that is well, one that is down, and two that are hot."""
    hot = replace(running("pi-2"), temperature_c=85.0, route=Route("10.77.0.9", "wlan0", wireless=True))
    nodes = [manager(labels={CLASS: "server"}), *(node(f"pi-{i}", labels=LABELS) for i in (1, 2, 3))]
    nodes[1] = replace(nodes[1], state="down")
    machines = [
        Machine(Host("server-1"), nodes[0], running("server-1")),
        Machine(Host("pi-1"), nodes[1], None, UnreachableError("pi-1:22 can't be reached: no route to host")),
        Machine(Host("pi-2"), nodes[2], hot),
        Machine(Host("pi-3"), nodes[3], replace(hot, engine=replace(hot.engine, node_id="id-pi-3"))),
    ]
    return rows(machines, swarm(*nodes))


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [60, 72, 80, 100, 119, 120, 160, 200])
def test_nothing_is_lost_or_too_wide(width: int) -> None:
    text = printed(render(fleet()), width)
    assert max(map(len, text.splitlines())) <= width
    heading, *lines = text.splitlines()
    names = [line.split()[0] for line in lines if line[:1].strip()]
    assert names[:4] == ["server-1", "pi-1", "pi-2", "pi-3"]
    for needed in ("NODE", "CLASS", "MEMORY", "ADDRESS", "STATE"):
        assert needed in heading
    assert "down" in text
    if width < 120:  # below the table, each in whole
        assert "pi-1: pi-1:22 can't be reached: no route to host; if it has another address" in words(text)
        assert "pi-2, pi-3: its processor is at 85 °C" in words(text)
        assert "server-1:" not in text


@pytest.mark.parametrize(
    ("width", "gone"),
    [
        (200, []),
        (80, []),
        (72, ["PROFILE"]),
        (64, ["PROFILE", "ARCH"]),
        (57, ["PROFILE", "ARCH", "CORES"]),
        (50, ["PROFILE", "ARCH", "CORES", "LINK"]),
    ],
)
def test_what_matters_least_is_left_out_first(width: int, gone: list[str]) -> None:
    heading = printed(render(fleet()), width).splitlines()[0]
    assert [name for name in ("PROFILE", "ARCH", "CORES", "LINK") if name not in heading] == gone


def test_a_wide_console_has_the_reasons_in_their_column() -> None:
    lines = printed(render(fleet()), 200).splitlines()
    assert lines[0].rstrip().endswith("HEALTH, REASON")
    assert len(lines) == 5
    assert lines[1].rstrip().endswith("ok")
    assert "no route to host" in lines[2]


def test_brackets_in_a_message_are_printed_as_they_are() -> None:
    odd = row_of(node("pi-1", state="down", message="[bold]x[/bold] [/]"))
    assert "[bold]x[/bold] [/]" in printed(render([odd]), 200)
    assert "[bold]x[/bold] [/]" in printed(render([odd]), 80)


def test_an_empty_fleet_is_drawn_too() -> None:
    assert printed(render([]), 80).startswith("NODE")
    assert summary([]) == "0 of 0 ready: none    * leader   + manager"


# The other tables -----------------------------------------------------------------------------------------------

LABEL_ROW = {
    "node": "server-1", "class": "server", "profile": "SERVER_LARGE", "arch": "amd64", "by": "probe",
    "confidence": "likely", "evidence": ["SMBIOS says a rack mount chassis", "64 GiB of memory", "no battery"],
    "probed_class": "server", "result": "changed", "error": "",
}  # fmt: skip


@pytest.mark.parametrize("result", ["changed", "would change"])
@pytest.mark.parametrize("width", [80, 100, 119])
def test_a_narrow_console_has_one_reason_of_a_class(width: int, result: str) -> None:
    text = printed(tell.labels([{**LABEL_ROW, "result": result}]), width)
    assert max(map(len, text.splitlines())) <= width
    assert "SMBIOS says a rack mount chassis" in words(text)
    assert "64 GiB of memory" not in words(text)
    assert result in words(text)


def test_a_wide_console_has_all_reasons() -> None:
    text = printed(tell.labels([LABEL_ROW]), 160)
    assert "SMBIOS says a rack mount chassis; 64 GiB of memory; no battery" in text
    failed = {**LABEL_ROW, "evidence": [], "error": "server-1: it is off", "result": "failed"}
    assert printed(tell.labels([failed]), 160).splitlines()[1].rstrip().endswith("it is off")


SCAN_ROW = {
    "host": "pi-1", "class": "rpi", "profile": "RPI4_4G", "arch": "arm64", "memory_mb": 3790, "cores": 4,
    "docker": "28.5.2+dfsg4", "swarm": "inactive", "what": "Raspberry Pi 4 Model B Rev 1.4", "error": "",
}  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_what_was_scanned_is_told_at_every_width(width: int) -> None:
    other = {**SCAN_ROW, "host": "pi-2", "error": "pi-2: no route to host\nand more"}
    text = printed(tell.scanned([SCAN_ROW, other]), width)
    assert max(map(len, text.splitlines())) <= width
    assert "Raspberry Pi 4 Model B Rev 1.4" in words(text)
    assert "no route to host" in text
    assert "pi-2: pi-2:" not in text
