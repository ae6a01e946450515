"""Where a coordinator goes: to its checkpoints, wherever those are."""

from dataclasses import replace

from cluster_examples import STACK, node, observed, spec, task, wanted

from swarmctl.cluster import place
from swarmctl.cluster.plan import KeepCheckpoints
from swarmctl.cluster.state import HERE, MOVING
from swarmctl.fleet.swarm import CLASS, Node

VOLUME = {"Type": "volume", "Source": f"{STACK}_checkpoints", "Target": "/checkpoints"}
LABEL = f"fdtc.checkpoints.{STACK}"
LEAD = spec("coordinator", hardware_class="server", Mounts=[VOLUME])
BOUND = place.bound({"coordinator": LEAD}, STACK)["coordinator"]


def server(name: str, memory_mb: int = 8000, **labels: str) -> Node:
    return replace(node(name), hostname=name, memory_mb=memory_mb, labels={CLASS: "server", **labels})


def test_a_coordinator_with_a_volume_of_a_node_is_bound_to_it_and_no_other_service_is() -> None:
    rpi = spec("worker-rpi", Mounts=[VOLUME])
    services = place.bound({"coordinator": LEAD, "worker-rpi": rpi}, STACK)
    rules = services["coordinator"]["TaskTemplate"]["Placement"]["Constraints"]
    assert rules == [f"node.labels.{CLASS}==server", f"node.labels.{LABEL}=={HERE}"]
    assert services["worker-rpi"] == rpi
    assert LEAD["TaskTemplate"]["Placement"]["Constraints"] == [f"node.labels.{CLASS}==server"]


def test_one_whose_volume_is_on_the_network_goes_where_it_likes() -> None:
    shared = {**VOLUME, "VolumeOptions": {"DriverConfig": {"Name": "local", "Options": {"type": "nfs"}}}}
    lead = spec("coordinator", Mounts=[shared])
    assert place.bound({"coordinator": lead}, STACK) == {"coordinator": lead}
    actions, nodes = place.keeping(wanted({"coordinator": lead}), observed({}), [server("a")])
    assert actions == []
    assert LABEL not in nodes[0].labels


def test_the_first_place_is_the_node_with_the_most_memory_or_where_it_runs_already() -> None:
    nodes = [server("a"), server("b", 16000), replace(server("c", 64000), state="down"), node("rpi")]
    want = wanted({"coordinator": BOUND})
    actions, after = place.keeping(want, observed({}), nodes)
    assert actions == [KeepCheckpoints("b", "b", LABEL)]
    assert [other.labels.get(LABEL) for other in after] == [None, HERE, None, None]
    running = observed({"coordinator": LEAD}, (task("coordinator", node="a"),))
    assert place.keeping(want, running, nodes)[0] == [KeepCheckpoints("a", "a", LABEL)]


def test_once_there_it_stays_whatever_becomes_of_the_node() -> None:
    at_home = server("a", **{LABEL: HERE})
    for home in (at_home, replace(at_home, state="down"), replace(at_home, availability="drain")):
        actions, nodes = place.keeping(wanted({"coordinator": BOUND}), observed({}), [home, server("b", 64000)])
        assert actions == []
        assert place.home(STACK, nodes) == home


def test_a_move_that_was_cut_short_is_taken_back() -> None:
    actions, _ = place.keeping(
        wanted({"coordinator": BOUND}), observed({}), [server("a", **{LABEL: MOVING}), server("b")]
    )
    assert actions == [KeepCheckpoints("a", "a", LABEL)]


def test_it_can_move_to_any_node_of_its_class() -> None:
    nodes = [server("a", **{LABEL: HERE}), server("b"), server("c", 16000), node("rpi")]
    assert [other.hostname for other in place.places(BOUND, STACK, nodes)] == ["c", "a", "b"]
