"""What is decided about nodes: labels, who dies of them, and what a machine gets back when it rejoins."""

import pytest
from fleet_examples import GIB, manager, node, probe, swarm, task

from swarmctl.fleet import plan
from swarmctl.fleet.actions import RemoveNode, UpdateNode
from swarmctl.fleet.evidence import evidence
from swarmctl.fleet.swarm import ARCH, CLASS, CORES, IDENTITY, MEMORY, PROFILE, SOURCE

RPI_ONLY = "node.labels.fdtc.class==rpi"


def test_a_probe_labels_a_bare_node() -> None:
    bare, found = node("pi-1"), probe("pi-1")
    assert plan.labels_by_probe(bare, found, evidence(found)) == {
        CLASS: "rpi",
        PROFILE: "RPI4_4G",
        ARCH: "arm64",
        MEMORY: "3790",
        CORES: "4",
        IDENTITY: "machine-pi-1",
        SOURCE: "probe",
    }


def test_a_class_that_a_person_chose_stays_while_what_is_measured_follows_the_machine() -> None:
    chosen = node("pi-1", labels={CLASS: "server", PROFILE: "SERVER", SOURCE: "user", MEMORY: "1"})
    found = probe("pi-1")
    labels = plan.labels_by_probe(chosen, found, evidence(found))
    assert CLASS not in labels
    assert PROFILE not in labels
    assert labels[MEMORY] == "3790"


def test_what_could_not_be_read_leaves_the_label_as_it_was() -> None:
    found = probe("pi-1", machine_id="", cores=0)
    assert not {IDENTITY, CORES} & set(plan.labels_by_probe(node("pi-1"), found, evidence(found)))


def test_nothing_changes_where_all_labels_are_right() -> None:
    labels = {CLASS: "rpi"}
    assert plan.set_labels(node("pi-1", labels=labels), labels, swarm()) == []


def test_a_change_says_field_by_field_what_it_is_and_who_dies_of_it() -> None:
    pi = node("pi-1", labels={CLASS: "rpi", "rack": "a"})
    other = node("pi-2", labels={CLASS: "rpi"})
    tasks = (
        task("worker-rpi", pi, RPI_ONLY),
        task("watcher", pi, "node.labels.rack==a"),
        task("anywhere", pi),
        task("worker-rpi", other, RPI_ONLY, slot=2),
    )
    (action,) = plan.set_labels(pi, {CLASS: "laptop"}, swarm(manager(), pi, other, tasks=tasks))
    assert isinstance(action, UpdateNode)
    assert [(c.field, c.old, c.new) for c in action.changes] == [(CLASS, "rpi", "laptop")]
    assert [died.service for died in action.dies] == ["worker-rpi"]


@pytest.mark.parametrize(
    ("constraint", "dies"),
    [
        ("node.labels.fdtc.class == rpi", True),
        ("node.labels.fdtc.class==RPI", True),  # moby compares without regard to case
        ("node.labels.fdtc.class!=laptop", True),
        ("node.labels.fdtc.class!=server", False),
        ("node.role==worker", False),
        ("node.labels.other==x", False),
    ],
)
def test_constraints_are_read_as_the_scheduler_reads_them(constraint: str, dies: bool) -> None:
    pi = node("pi-1", labels={CLASS: "rpi"})
    running = (task("w", pi, constraint),)
    assert bool(plan.killed(pi, {CLASS: "laptop"}, running)) is dies


@pytest.mark.parametrize(
    ("hardware_class", "memory_mb", "profile"),
    [
        ("rpi", 900, "RPI3"),
        ("rpi", 3790, "RPI4_4G"),
        ("laptop", 8 * GIB, "LAPTOP_LIGHT"),
        ("laptop", 16 * GIB, "LAPTOP_MID"),
        ("desktop", 8 * GIB, "DESKTOP_MID"),
        ("desktop", 48 * GIB, "WORKSTATION"),
        ("server", 8 * GIB, "SERVER"),
    ],
)
def test_a_chosen_class_gets_the_profile_of_its_memory(hardware_class: str, memory_mb: int, profile: str) -> None:
    assert plan.profile_in(hardware_class, memory_mb) == profile


def test_a_machine_that_rejoins_gets_its_labels_back_and_its_ghost_is_forgotten() -> None:
    ghost = node("pi-1", id="old", state="down", labels={CLASS: "rpi", SOURCE: "user", IDENTITY: "m", "rack": "a"})
    new = node("pi-1", id="new")
    update, removal = plan.settle(new, "m", swarm(manager(), ghost, new))
    assert isinstance(update, UpdateNode)
    assert update.labels == {CLASS: "rpi", SOURCE: "user", IDENTITY: "m", "rack": "a"}
    assert removal == RemoveNode("old", "pi-1", "the machine is pi-1 (new) now")


def test_of_several_ghosts_the_latest_counts_and_all_go() -> None:
    older = node("pi-1", id="g1", version=5, state="down", labels={CLASS: "laptop", IDENTITY: "m"})
    newer = node("pi-1", id="g2", version=8, state="down", labels={CLASS: "rpi", IDENTITY: "m"})
    new = node("pi-1", id="new")
    actions = plan.settle(new, "m", swarm(manager(), older, newer, new))
    assert isinstance(actions[0], UpdateNode)
    assert actions[0].labels[CLASS] == "rpi"
    assert {action.node_id for action in actions if isinstance(action, RemoveNode)} == {"g1", "g2"}


def test_a_drained_machine_is_drained_when_it_comes_back() -> None:
    ghost = node("pi-1", id="old", state="down", availability="drain", labels={IDENTITY: "m"})
    new = node("pi-1", id="new")
    update = plan.settle(new, "m", swarm(manager(), ghost, new))[0]
    assert isinstance(update, UpdateNode)
    assert update.availability == "drain"


def test_a_node_that_is_up_is_no_ghost() -> None:
    twin = node("pi-2", labels={IDENTITY: "m", CLASS: "rpi"})
    new = node("pi-1", id="new")
    fleet = swarm(manager(), twin, new)
    assert plan.ghosts_of("m", fleet) == ()
    assert plan.twin_of("m", fleet, "new") == twin


def test_the_ghost_of_a_manager_is_made_a_worker_before_it_is_removed() -> None:
    ghost = node("server-2", id="old", state="down", role="manager", labels={IDENTITY: "m"})
    new = node("server-2", id="new", labels={IDENTITY: "m"})
    (removal,) = plan.settle(new, "m", swarm(manager(), ghost, new))
    assert isinstance(removal, RemoveNode)
    assert removal.demote


def test_without_an_identity_a_ghost_is_known_by_name_and_address_together() -> None:
    ghost = node("pi-1", id="old", state="down", labels={CLASS: "rpi"})
    elsewhere = node("pi-1", id="new", address="10.77.0.99")
    assert plan.settle(elsewhere, "", swarm(manager(), ghost, elsewhere)) == []
    here = node("pi-1", id="new")
    update, removal = plan.settle(here, "", swarm(manager(), ghost, here))
    assert isinstance(update, UpdateNode)
    assert update.labels == {CLASS: "rpi"}
    assert isinstance(removal, RemoveNode)


def test_clearing_takes_our_labels_but_the_identity_and_leaves_those_of_others() -> None:
    pi = node("pi-1", labels={CLASS: "rpi", SOURCE: "user", IDENTITY: "m", "rack": "a"})
    (action,) = plan.clear_labels(pi, swarm(manager(), pi))
    assert isinstance(action, UpdateNode)
    assert action.labels == {CLASS: None, SOURCE: None}
