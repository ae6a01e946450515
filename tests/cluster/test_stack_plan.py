"""What is to be done for a swarm to have what a stack wants, and in which order."""

from cluster_examples import STACK, node, observed, spec, wanted

from swarmctl.cluster import plan
from swarmctl.cluster.plan import (
    CreateNetwork,
    CreateService,
    DropObject,
    RemoveNetwork,
    RemoveService,
    StoreObject,
    UpdateService,
)
from swarmctl.cluster.state import NAMESPACE, REVISION, Stored

LEAD, RPI = spec("coordinator", hardware_class="server"), spec("worker-rpi", replicas=2)


def test_a_bare_swarm_gets_all_the_coordinator_before_its_workers() -> None:
    config = Stored("tiny_data-1", b"x", {})
    actions = plan.plan(
        wanted({"worker-rpi": RPI, "coordinator": LEAD}, configs={"tiny_data-1": config}), observed({}, networks={})
    )
    assert [type(action) for action in actions] == [CreateNetwork, StoreObject, CreateService, CreateService]
    assert [action.service for action in actions if isinstance(action, CreateService)] == ["coordinator", "worker-rpi"]


def test_nothing_is_to_be_done_twice() -> None:
    both = {"coordinator": LEAD, "worker-rpi": RPI}
    assert plan.plan(wanted(both), observed(both)) == []


def test_an_update_carries_the_whole_spec_and_what_only_the_engine_counts() -> None:
    (action,) = plan.plan(
        wanted({"worker-rpi": spec("worker-rpi", image="agent:2", replicas=2)}), observed({"worker-rpi": RPI})
    )
    assert isinstance(action, UpdateService)
    assert (action.version, action.restarts) == (7, True)
    assert action.spec["TaskTemplate"]["ForceUpdate"] == 3
    assert [d.path for d in action.differences] == ["TaskTemplate.ContainerSpec.Image"]


def test_what_somebody_else_added_stays_and_what_was_declared_once_goes() -> None:
    before = spec("worker-rpi", replicas=2, Hostname="old", User="10001")
    present = observed({"worker-rpi": before})
    present.services["worker-rpi"].spec["Labels"]["theirs"] = "1"
    present.services["worker-rpi"].spec["TaskTemplate"]["ContainerSpec"]["TTY"] = True
    new = spec("worker-rpi", replicas=2, User="10001")
    (action,) = plan.plan(wanted({"worker-rpi": new}), present, {"worker-rpi": before})
    assert isinstance(action, UpdateService)
    assert [(d.path, d.new) for d in action.differences] == [("TaskTemplate.ContainerSpec.Hostname", None)]
    assert action.spec["Labels"]["theirs"] == "1"
    container = action.spec["TaskTemplate"]["ContainerSpec"]
    assert (container["TTY"], container["User"]) == (True, "10001")
    assert "Hostname" not in container
    assert plan.plan(wanted({"worker-rpi": new}), present) == []  # where nothing is known of what was declared


def test_another_number_of_replicas_restarts_nothing() -> None:
    (action,) = plan.plan(wanted({"worker-rpi": spec("worker-rpi", replicas=5)}), observed({"worker-rpi": RPI}))
    assert isinstance(action, UpdateService)
    assert not action.restarts


def test_a_variable_that_is_not_wanted_any_more_goes() -> None:
    (action,) = plan.plan(
        wanted({"worker-rpi": spec("worker-rpi", replicas=2, Env=["A=1"])}), observed({"worker-rpi": RPI})
    )
    assert isinstance(action, UpdateService)
    assert [(d.path, d.new) for d in action.differences] == [("TaskTemplate.ContainerSpec.Env.B", None)]


def test_services_that_the_file_has_no_more_go() -> None:
    actions = plan.plan(wanted({"coordinator": LEAD}), observed({"coordinator": LEAD, "worker-rpi": RPI}))
    assert actions == [RemoveService("worker-rpi", "id-worker-rpi")]


def test_a_service_that_somebody_else_made_stays_though_it_counts_to_the_stack() -> None:
    theirs = {**spec("dashboard"), "Labels": {NAMESPACE: STACK}}
    assert plan.plan(wanted({"coordinator": LEAD}), observed({"coordinator": LEAD, "dashboard": theirs})) == []


def test_configs_of_the_stack_that_nothing_uses_go_and_all_others_stay() -> None:
    configs = {
        "tiny_data-old": {NAMESPACE: STACK, "": "1"},
        "tiny.audit-3": {NAMESPACE: STACK, REVISION: "2", "": "2"},
        "somebody-elses": {"": "3"},
        "other_data": {NAMESPACE: "other", "": "4"},
    }
    assert plan.plan(wanted({}), observed({}, configs=configs)) == [DropObject("config", "tiny_data-old")]


def test_removal_takes_the_workers_first_and_then_all_that_is_the_stacks() -> None:
    configs = {"tiny.audit-3": {NAMESPACE: STACK, REVISION: "2", "": "2"}, "foreign": {"": "1"}}
    actions = plan.removal(observed({"coordinator": LEAD, "worker-rpi": RPI}, configs=configs))
    assert actions == [
        RemoveService("worker-rpi", "id-worker-rpi"),
        RemoveService("coordinator", "id-coordinator"),
        RemoveNetwork("tiny_fdtc"),
        DropObject("config", "tiny.audit-3"),
    ]


def test_what_must_be_there_already_and_is_not_is_named() -> None:
    stack = wanted({}, external=(("secret", "fdtc-token"), ("config", "there")))
    assert plan.missing(stack, observed({}, configs={"there": {"": "1"}})) == [("secret", "fdtc-token")]


def test_nodes_are_eligible_by_label_state_and_availability() -> None:
    nodes = [
        node("a"),
        node("b", hardware_class="laptop"),
        node("c", state="down"),
        node("d", availability="drain"),
        node("e", labels={"fdtc.class": "RPI"}),
    ]
    assert [found.id for found in plan.eligible(RPI, nodes)] == ["a", "e"]


def test_constraints_on_other_facts_are_read_too() -> None:
    manager = node("m", role="manager")
    assert plan.holds("node.role == manager", manager)
    assert plan.holds("node.hostname!=host-x", manager)
    assert not plan.holds("node.id==other", manager)
    assert plan.holds("engine.labels.os==x", manager)  # unknown to us, so it can't be held against the node
