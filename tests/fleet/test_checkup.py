"""Which findings `doctor HOST…` tells, and which nodes that are down are the past of one that is up."""

from dataclasses import replace

import pytest
from fleet_examples import manager, node, probe, swarm

from swarmctl.fleet.checks import findings
from swarmctl.fleet.checkup import about
from swarmctl.fleet.facts import Finding
from swarmctl.fleet.observation import Machine, Observation, PairResult
from swarmctl.fleet.swarm import IDENTITY, Node


def told(*found: Finding, hosts: tuple[str, ...] = ("pi-1",), pairs: tuple[PairResult, ...] = ()) -> list[str]:
    return [finding.message for finding in about(hosts, {"id-pi-1"}, found, pairs)]


def test_findings_of_other_machines_are_left_out() -> None:
    found = [
        Finding("warning", "disk", where, where) for where in ("pi-1", "pi-2", "pi-10", "pi-1 -> pi-2", "pi-2 -> pi-3")
    ]
    assert told(*found) == ["pi-1", "pi-1 -> pi-2"]
    assert told(*found, hosts=("pi-2", "pi-3")) == ["pi-2", "pi-1 -> pi-2", "pi-2 -> pi-3"]


@pytest.mark.parametrize(
    ("message", "concerns"),
    [
        ("pi-1 and pi-2 reach 10.0.0.0/8 by another way", True),
        ("engines differ (28: pi-2, pi-1)", True),
        ("the rest stands on pi-1.", True),
        ("pi-10 and my-pi-1 and pi-1.lan", False),
        ("certificates last 30 days", False),
    ],
)
def test_of_the_swarm_that_is_told_which_names_the_host(message: str, concerns: bool) -> None:
    assert told(Finding("warning", "x", "swarm", message)) == ([message] if concerns else [])


def test_a_finding_about_the_hosts_node_is_told() -> None:
    assert told(Finding("warning", "x", "swarm", "a", subject="id-pi-1"), Finding("warning", "x", "swarm", "b")) == [
        "a"
    ]


def test_that_no_machine_was_reached_is_always_told() -> None:
    assert told(Finding("error", "unreachable", "swarm", "none")) == ["none"]


def test_ports_of_others_are_told_where_the_host_is_what_can_not_reach_them() -> None:
    shut = Finding("error", "ports", "server-1", "no other machine reaches its TCP 2377")
    failed = PairResult("pi-1", "server-1", 2377, "tcp", ok=False)
    assert told(shut, pairs=(failed,)) == [shut.message]
    assert told(shut, pairs=(replace(failed, source="pi-2"),)) == []
    assert told(shut, pairs=(replace(failed, ok=True),)) == []


# Ghosts without a label -----------------------------------------------------------------------------------------


def ghosts(past: Node, *now: Node) -> list[Finding]:
    fleet = Observation(swarm(manager(), *now, past), ())
    return [finding for finding in findings(fleet) if finding.check in {"ghost", "node-down"}]


PAST = node("pi-1", id="id-past", state="down")


def test_a_node_with_the_name_and_the_address_of_one_that_is_up_is_its_past() -> None:
    (found,) = ghosts(PAST, node("pi-1"))
    assert (found.check, found.where, found.subject, found.fix) == ("ghost", "pi-1", "id-past", "remove-node")
    assert "name and address" in found.message


def test_one_with_the_name_only_is_told_and_left_to_the_user() -> None:
    for address in ("10.77.0.10", "0.0.0.0", ""):
        (found,) = ghosts(replace(PAST, address=address), node("pi-1", address="10.77.0.9" if address != "" else ""))
        assert (found.check, found.fix) == ("ghost", "")
        assert "another machine that is called the same" in found.message
        assert not any("--fix" in line for line in found.remedy)


def test_of_two_with_the_name_the_one_at_the_address_is_meant() -> None:
    (found,) = ghosts(PAST, node("pi-1", id="a", address="10.77.0.10"), node("pi-1", id="b"))
    assert (found.fix, "again as b" in found.message) == ("remove-node", True)


@pytest.mark.parametrize("past", [replace(PAST, labels={IDENTITY: "another"}), replace(PAST, hostname="pi-2"),
                                  replace(PAST, hostname="")])  # fmt: skip
def test_others_are_only_down(past: Node) -> None:
    (found,) = ghosts(past, node("pi-1", labels={IDENTITY: "machine-pi-1"}))
    assert found.check == "node-down"


def test_a_machine_of_the_same_name_that_answers_as_itself_is_no_ghost() -> None:
    """Two Raspberry Pis with the name that they came with; the engine of one has lost its managers."""
    now, past = node("pi-1"), replace(PAST, address="10.77.0.10")
    own = probe("pi-1")
    alive = replace(own, engine=replace(own.engine, swarm_state="active", node_id="id-past"))
    fleet = Observation(swarm(manager(), now, past), (Machine("pi-1b", "id-past", alive),))
    assert "ghost" not in {finding.check for finding in findings(fleet)}


def test_just_after_an_election_doctor_cries_no_wolf() -> None:
    fresh = node("pi-1", state="unknown", message='Node moved to "unknown" state due to leadership change in cluster')
    found = next(one for one in findings(Observation(swarm(manager(), fresh), ())) if one.check == "node-down")
    assert (found.severity, found.remedy) == ("warning", ("swarmctl doctor   # again in some seconds",))
