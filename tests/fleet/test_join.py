"""Who may join, and why not: duplicate names, copied disks, other swarms, managers that would harm."""

from dataclasses import replace
from typing import Any

import pytest
from fleet_examples import manager, node, probe, swarm

from swarmctl.errors import SwarmctlError, UnreachableError, UsageError
from swarmctl.fleet import join
from swarmctl.fleet.facts import Address, Finding, Probe, Route
from swarmctl.fleet.inventory import Host
from swarmctl.fleet.machines import Machine
from swarmctl.fleet.swarm import IDENTITY, Swarm


def machine(name: str = "pi-1", **keys: Any) -> Machine:
    return Machine(Host(name=name), None, probe(name, **keys))


def with_engine(found: Machine, **keys: Any) -> Machine:
    assert found.probe
    return replace(found, probe=replace(found.probe, engine=replace(found.probe.engine, **keys)))


def judge(*machines: Machine, fleet: Swarm | None = None, anyway: bool = False) -> list[join.Verdict]:
    return join.judge(machines, fleet or swarm(), {}, anyway=anyway)


def refusal(*machines: Machine, fleet: Swarm | None = None) -> SwarmctlError:
    problem = judge(*machines, fleet=fleet)[0].problem
    assert problem
    return problem


def test_a_sound_machine_joins() -> None:
    (verdict,) = judge(machine())
    assert (verdict.kind, verdict.findings, verdict.problem) == ("join", (), None)


def test_a_member_is_left_alone() -> None:
    member = node("pi-1", id="n1")
    (verdict,) = judge(with_engine(machine(), swarm_state="active", node_id="n1"), fleet=swarm(manager(), member))
    assert verdict.kind == "member"


def test_a_machine_that_can_not_be_asked_is_refused_in_its_own_words() -> None:
    error = UnreachableError("no route", "switch it on")
    (verdict,) = judge(Machine(Host(name="pi-1"), None, None, error))
    assert verdict.kind == "refused"
    assert verdict.problem is error


def test_an_engine_at_home_elsewhere_is_not_taken_away() -> None:
    error = refusal(with_engine(machine(), swarm_state="active", node_id="x", managers=("10.9.9.9:2377",)))
    assert "in another swarm" in str(error)
    assert "leave --force" in error.next_steps[0]


def test_an_engine_that_was_removed_here_and_has_not_noticed_joins_again() -> None:
    lost = with_engine(machine(), swarm_state="active", node_id="x", managers=("10.77.0.2:2377",))
    assert judge(lost)[0].kind == "join"


def test_two_machines_of_one_name_are_told_apart_before_they_confuse() -> None:
    twins = (machine("pi-1"), replace(machine("pi-1", machine_id="other"), host=Host(name="10.77.0.10")))
    for verdict in judge(*twins):
        assert verdict.kind == "refused"
        assert "another machine is called pi-1" in str(verdict.problem)
    taken = swarm(manager(), node("pi-1", labels={IDENTITY: "somebody"}))
    assert "hostnamectl" in refusal(machine("pi-1"), fleet=taken).next_steps[0]


def test_a_machine_that_restarted_a_moment_ago_is_not_its_own_double() -> None:
    still_listed = swarm(manager(), node("pi-1", labels={IDENTITY: "machine-pi-1"}))
    assert judge(machine("pi-1"), fleet=still_listed)[0].kind == "join"


def test_a_node_of_unknown_identity_at_the_machines_own_address_is_the_machine_itself() -> None:
    joined_by_docker = swarm(manager(), node("pi-1", address="10.77.0.9"))
    assert judge(machine("pi-1"), fleet=joined_by_docker)[0].kind == "join"


def test_a_member_whose_join_was_interrupted_needs_the_rest() -> None:
    whole = node("pi-1", id="n1", labels={IDENTITY: "machine-pi-1"})
    half = node("pi-1", id="n1")
    ghost = node("pi-1", id="old", state="down", labels={IDENTITY: "machine-pi-1"})
    member = with_engine(machine(), swarm_state="active", node_id="n1")
    for fleet, needs in (
        (swarm(manager(), whole), False),
        (swarm(manager(), half), True),
        (swarm(manager(), whole, ghost), True),
    ):
        (verdict,) = judge(member, fleet=fleet)
        assert verdict.kind == "member"
        assert join.needs_settling(verdict, fleet) is needs


def test_copied_disks_are_found() -> None:
    copies = (machine("pi-1", machine_id="m"), machine("pi-2", machine_id="m"), machine("pi-3"))
    first, second, other = judge(*copies)
    assert (first.kind, second.kind, other.kind) == ("join", "refused", "join")
    assert "machine-id of pi-1" in str(second.problem)
    assert second.problem
    assert "systemd-machine-id-setup" in " ".join(second.problem.next_steps)


def test_what_a_swarm_can_bear_is_let_through_on_demand_and_a_missing_docker_is_not() -> None:
    off = machine(clock_offset_sec=300.0)
    assert judge(off)[0].kind == "refused"
    assert judge(off, anyway=True)[0].kind == "join"
    without = with_engine(machine(), access="absent", version="")
    assert judge(without, anyway=True)[0].kind == "refused"


def test_a_closed_port_on_the_way_to_the_manager_refuses() -> None:
    blocked = Finding("error", "port-2377", "pi-1", "pi-1 does not reach server-1:2377", ("sudo ufw allow 2377/tcp",))
    (verdict,) = join.judge([machine()], swarm(), {"pi-1": [blocked]}, anyway=False)
    assert verdict.problem
    assert verdict.problem.next_steps == ("sudo ufw allow 2377/tcp",)


def _joining(*probes: Probe) -> list[join.Verdict]:
    return [join.Verdict(Machine(Host(name=found.hostname), None, found), "join") for found in probes]


def test_an_even_number_of_managers_is_refused_unless_told() -> None:
    with pytest.raises(UsageError, match="2 managers"):
        join.refuse_managers(swarm(), _joining(probe()), yes=False)
    join.refuse_managers(swarm(), _joining(probe()), yes=True)
    join.refuse_managers(swarm(), _joining(probe("a"), probe("b")), yes=False)


def test_a_manager_on_a_changing_address_is_refused_unless_told() -> None:
    moving = probe(
        addresses=(Address("wlan0", "192.168.1.7", 24, dynamic=True),), route=Route("192.168.1.7", "wlan0", True, 1500)
    )
    with pytest.raises(UsageError, match="DHCP"):
        join.refuse_managers(swarm(), _joining(moving, probe("b")), yes=False)
