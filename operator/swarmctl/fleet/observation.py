"""What doctor looks at, as plain data: the swarm, its machines, and what gets from one machine to another.

May import: ``facts``, ``swarm``. No I/O.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from .facts import Evidence, Probe
from .swarm import Node, Swarm

Protocol = Literal["tcp", "udp", "mtu"]

# What came of a pair test, where it says more than yes or no: `PairResult.detail` starts with one of these.
REFUSED = "refused"
SILENT = "no answer"
REJECTED = "rejected by a firewall"
NO_ROUTE = "no route"
NOT_SENT = "could not be sent"

# Why a pair could not be tested; `PairResult.detail` is then ``HOST: `` and one of these, or something else.
NO_TOOL = "has neither python3, bash nor nc to test with"
NO_ROOT = "only root can watch a UDP port that Docker has, and sudo wants a password"
NO_PYTHON = "has no python3 (3.7 or newer) to watch ports with"
NO_ECHO = "answers no ping"
NO_PING = "has no ping"
SIMPLE_PING = "has a ping that can't forbid to split packets"

# A VXLAN packet has 50 bytes before the container's own; Docker counts on 1500 together unless told.
USUAL_MTU = 1500


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that was looked at.

    Attributes:
        host: Its name in the fleet file or on the command line; the ends of a `PairResult` are called the same.
        node_id: The node of the swarm that it is, or was; empty: none.
        probe: What it said; None where it could not be asked.
        evidence: What it was taken for.
        error: Why it could not be asked.
        remedy: What to do about that, one a line.
    """

    host: str
    node_id: str = ""
    probe: Probe | None = None
    evidence: Evidence | None = None
    error: str = ""
    remedy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PairResult:
    """Whether one machine reaches another.

    Attributes:
        source: The host that sent.
        target: The host that was sent to.
        port: At the target; None for ``mtu``.
        protocol: ``tcp``, ``udp``, or ``mtu``: the largest IPv4 packet that arrives in one piece.
        ok: None: it could not be tested, `detail` says why.
        detail: What came of it, beginning with one of the words above where `ok` is false or None.
        value: Bytes of the largest packet, for ``mtu``.
    """

    source: str
    target: str
    port: int | None
    protocol: Protocol
    ok: bool | None
    detail: str = ""
    value: int | None = None


@dataclass(frozen=True)
class Observation:
    """All that doctor judges by.

    Attributes:
        swarm: As a manager described it, or None: there is none, or it can't be asked.
        machines: That were looked at.
        pairs: Tests from one to another.
        now: Seconds since the epoch, by our clock.
        ca_pem: The swarm's root certificate, ``TLSInfo.TrustRoot``; empty: not asked.
        overlay_mtu: The largest packet that the overlay networks put on the wire: 1500 unless their
            ``com.docker.network.driver.mtu`` says otherwise.
    """

    swarm: Swarm | None
    machines: tuple[Machine, ...]
    pairs: tuple[PairResult, ...] = ()
    now: float = 0.0
    ca_pem: str = ""
    overlay_mtu: int = USUAL_MTU

    @cached_property
    def hosts(self) -> Mapping[str, Machine]:
        """The machines by name."""
        return {machine.host: machine for machine in self.machines}

    @cached_property
    def host_of_node(self) -> Mapping[str, Machine]:
        """The machine of a node, by its id."""
        return {machine.node_id: machine for machine in self.machines if machine.node_id}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The swarm's nodes; none without a swarm."""
        return self.swarm.nodes if self.swarm else ()

    def node_of(self, machine: Machine) -> Node | None:
        """The node that a machine is, as far as it does not say itself that it is another."""
        node = self.swarm.node(machine.node_id) if self.swarm and machine.node_id else None
        said = machine.probe.engine.node_id if machine.probe else ""
        return node if node and said in {"", node.id} else None

    def name(self, node: Node) -> str:
        """What to call a node: its host's name where it has one."""
        machine = self.host_of_node.get(node.id)
        return machine.host if machine else node.hostname or node.id

    def is_probed(self, host: str) -> bool:
        """Whether a machine answered."""
        return host in self.hosts and self.hosts[host].probe is not None


_MANY = 4


def some(hosts: Iterable[str]) -> str:
    """Hosts as people say them, the first few: ``a, b, c and 17 more``."""
    names = sorted(hosts)
    if len(names) > _MANY:
        return f"{', '.join(names[: _MANY - 1])} and {len(names) - _MANY + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
