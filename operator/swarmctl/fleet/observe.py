"""Reads a swarm off one manager into plain data. May import: ``engine``, ``swarm``."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .engine import Engine, Raw
from .swarm import Node, Swarm, Task

_NANO = 1e9
_MIB = 1 << 20
_USUAL_MTU = 1500  # of the wire, as Docker's overlay driver takes for granted unless it is told otherwise


def observe(engine: Engine, info: Raw | None = None) -> Swarm:
    """All that the fleet's commands need to know of the swarm, in one look.

    Args:
        engine: A manager's.
        info: What `Engine.info` said, where it was asked already.

    Raises:
        EngineError: It is no manager, or the managers have lost their quorum.
        UnreachableError: It does not answer.
    """
    with ThreadPoolExecutor(7) as pool:  # the way there may be a slow link; what is asked does not depend on each other
        infos = pool.submit(lambda: info or engine.info())
        cluster = pool.submit(engine.swarm)
        nodes = pool.submit(engine.nodes)
        tasks = pool.submit(engine.tasks, {"desired-state": "running"})
        services = pool.submit(engine.services)
        secrets = pool.submit(engine.secrets)
        configs = pool.submit(engine.configs)
        networks = pool.submit(engine.overlay_networks)
        return build(
            host=engine.host,
            info=infos.result(),
            cluster=cluster.result(),
            nodes=nodes.result(),
            tasks=tasks.result(),
            services=services.result(),
            secrets=secrets.result(),
            configs=configs.result(),
            networks=networks.result(),
        )


def observe_nodes(engine: Engine) -> tuple[Node, ...]:
    """Its nodes alone.

    Raises:
        EngineError: It is no manager, or the managers have lost their quorum.
        UnreachableError: It does not answer.
    """
    return _nodes(engine.nodes())


def build(
    *,
    host: str,
    info: Raw,
    cluster: Raw,
    nodes: list[Raw],
    tasks: list[Raw],
    services: list[Raw],
    secrets: list[Raw],
    configs: list[Raw],
    networks: list[Raw],
) -> Swarm:
    """Make plain data of the engine's answers; pure."""
    names = {service["ID"]: service["Spec"]["Name"] for service in services}
    return Swarm(
        id=cluster["ID"],
        version=cluster["Version"]["Index"],
        spec=cluster["Spec"],
        worker_token=cluster["JoinTokens"]["Worker"],
        manager_token=cluster["JoinTokens"]["Manager"],
        pool=tuple(cluster.get("DefaultAddrPool") or ()),
        autolock=bool((cluster["Spec"].get("EncryptionConfig") or {}).get("AutoLockManagers")),
        via=host,
        via_node_id=info["Swarm"]["NodeID"],
        nodes=_nodes(nodes),
        tasks=tuple(_task(raw, names) for raw in tasks),
        secrets={raw["Spec"]["Name"]: raw["Spec"].get("Labels") or {} for raw in secrets},
        configs={raw["Spec"]["Name"]: raw["Spec"].get("Labels") or {} for raw in configs},
        networks={raw["Name"]: _subnets(raw) for raw in networks},
        ca_pem=(cluster.get("TLSInfo") or {}).get("TrustRoot", ""),
        overlay_mtu=max((_mtu(raw) for raw in networks), default=_USUAL_MTU),
    )


def _nodes(raws: list[Raw]) -> tuple[Node, ...]:
    return tuple(sorted(map(_node, raws), key=lambda node: (node.hostname, node.id)))


def _node(raw: Raw) -> Node:
    spec, described, status = raw["Spec"], raw.get("Description") or {}, raw.get("Status") or {}
    manager = raw.get("ManagerStatus") or {}
    resources = described.get("Resources") or {}
    return Node(
        id=raw["ID"],
        version=raw["Version"]["Index"],
        hostname=described.get("Hostname", ""),
        address=status.get("Addr", ""),
        role=spec["Role"],
        availability=spec["Availability"],
        state=status.get("State", "unknown"),
        message=status.get("Message", ""),
        labels=spec.get("Labels") or {},
        name=spec.get("Name", ""),
        leader=bool(manager.get("Leader")),
        reachability=manager.get("Reachability", ""),
        manager_address=manager.get("Addr", ""),
        engine_version=(described.get("Engine") or {}).get("EngineVersion", ""),
        memory_mb=int(resources.get("MemoryBytes", 0)) // _MIB,
        cores=resources.get("NanoCPUs", 0) / _NANO,
        platform_arch=(described.get("Platform") or {}).get("Architecture", ""),
    )


def _task(raw: Raw, names: dict[str, str]) -> Task:
    placement: dict[str, Any] = raw["Spec"].get("Placement") or {}
    return Task(
        id=raw["ID"],
        service=names.get(raw.get("ServiceID", "")) or raw.get("ServiceID", ""),
        slot=raw.get("Slot"),
        node_id=raw.get("NodeID", ""),
        state=(raw.get("Status") or {}).get("State", ""),
        constraints=tuple(placement.get("Constraints") or ()),
    )


def _subnets(raw: Raw) -> tuple[str, ...]:
    pools = (raw.get("IPAM") or {}).get("Config") or ()
    return tuple(pool["Subnet"] for pool in pools if pool.get("Subnet"))


def _mtu(raw: Raw) -> int:
    told = (raw.get("Options") or {}).get("com.docker.network.driver.mtu", "")
    return int(told) if told.isdecimal() else _USUAL_MTU
