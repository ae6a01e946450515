"""A swarm as plain data, for the tests of what is decided about it."""

from dataclasses import replace
from typing import Any

from swarmctl.fleet.facts import Address, EngineFacts, Probe, Route
from swarmctl.fleet.swarm import Node, Swarm, Task

GIB = 1024


def node(name: str, **keys: Any) -> Node:
    base = Node(
        id=f"id-{name}",
        version=10,
        hostname=name,
        address="10.77.0.9",
        role="worker",
        availability="active",
        state="ready",
        engine_version="28.5.2",
        memory_mb=4 * GIB,
        cores=4,
        platform_arch="x86_64",
    )
    return replace(base, **keys)


def manager(name: str = "server-1", address: str = "10.77.0.2", **keys: Any) -> Node:
    return node(
        name, role="manager", leader=True, reachability="reachable", address=address,
        manager_address=f"{address}:2377", **keys,
    )  # fmt: skip


def swarm(*nodes: Node, **keys: Any) -> Swarm:
    everything = nodes or (manager(),)
    base = Swarm(
        id="cluster",
        version=11,
        spec={
            "Dispatcher": {"HeartbeatPeriod": 15_000_000_000},
            "CAConfig": {"NodeCertExpiry": 31_536_000_000_000_000},
        },
        worker_token="SWMTKN-1-w",
        manager_token="SWMTKN-1-m",
        pool=("10.201.0.0/16",),
        autolock=False,
        via=everything[0].hostname,
        via_node_id=everything[0].id,
        nodes=everything,
        tasks=(),
        secrets={},
        configs={},
        networks={},
    )
    return replace(base, **keys)


def task(service: str, on: Node, *constraints: str, slot: int | None = 1) -> Task:
    return Task(f"{service}-{slot}", service, slot, on.id, "running", constraints)


def probe(name: str = "pi-1", **keys: Any) -> Probe:
    base = Probe(
        hostname=name,
        machine_id=f"machine-{name}",
        kernel_arch="aarch64",
        long_bit=64,
        model="Raspberry Pi 4 Model B Rev 1.4",
        compatible=("raspberrypi,4-model-b", "brcm,bcm2711"),
        memory_mb=3790,
        cores=4,
        addresses=(Address("eth0", "10.77.0.9", 24),),
        networks=("10.77.0.0/24",),
        route=Route("10.77.0.9", "eth0", wireless=False, mtu=1500),
        memory_cgroup=True,
        vxlan=True,
        clock_offset_sec=0.0,
        disk_path="/var/lib/docker",
        disk_total_mb=30_000,
        disk_free_mb=20_000,
        engine=EngineFacts(
            access="direct",
            version="28.5.2",
            api_version="1.51",
            arch="arm64",
            memory_limit=True,
            data_root="/var/lib/docker",
            swarm_state="inactive",
        ),
    )
    return replace(base, **keys)
