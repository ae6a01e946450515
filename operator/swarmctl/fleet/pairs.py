"""Tests what gets from one machine to another: the ports that a swarm needs, and packets of full size.

All machines send and listen at the same time: each runs ``pairs.sh`` once, over SSH, when all have logged in. What
arrives is told by who receives it, so a UDP port that is said to be open was seen to be. May import: ``everywhere``,
``ssh``, ``inventory``, ``observation``, ``errors``.
"""

import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Protocol

from ..errors import SwarmctlError
from .connection import Connection
from .everywhere import everywhere
from .inventory import Host
from .observation import (
    NO_ECHO,
    NO_PING,
    NO_PYTHON,
    NO_ROOT,
    NO_ROUTE,
    NO_TOOL,
    NOT_SENT,
    REFUSED,
    REJECTED,
    SILENT,
    SIMPLE_PING,
    USUAL_MTU,
    PairResult,
)
from .ssh import SshSettings

MANAGEMENT, GOSSIP, VXLAN = 2377, 7946, 4789
_UDP = (GOSSIP, VXLAN)
_TEST_SEC = 12.0  # for one that starts late; whoever has all answers ends sooner
_PATIENCE_SEC = 4.0  # with one that was heard of: two repeats of a lost SYN
_SCRIPT_SEC = 30.0  # the slowest part are packets of many sizes that get lost
_MEETING_SEC = 20.0
_BEGIN, _END = "swarmctl-pairs\tbegin\t1", "swarmctl-pairs\tend"

Edge = tuple[int, int]


class PairsError(SwarmctlError):
    """The tests could not be run on a machine."""


@dataclass(frozen=True)
class End:
    """A machine that takes part.

    Attributes:
        host: How to reach it; results carry its name.
        address: That the others are to reach it by, in the swarm.
        manager: Whether it is one, and so listens on 2377.
    """

    host: Host
    address: str
    manager: bool = False


@dataclass(frozen=True)
class Report:
    """What one machine found; targets and sources are counted as in the list of ends.

    Attributes:
        sees: How the machine could watch each UDP port: ``yes``, or ``no`` and why.
        tcp: What came of each connection, by target and port.
        udp: What came of each datagram, as far as the sender knows.
        mtu: The largest packet that came back from each target, or why that is not known.
        got: Sources and ports of datagrams that arrived.
        deaf: TCP ports at which nothing listens, and could not be made to.
    """

    sees: Mapping[int, str] = field(default_factory=dict)
    tcp: Mapping[tuple[int, int], str] = field(default_factory=dict)
    udp: Mapping[tuple[int, int], str] = field(default_factory=dict)
    mtu: Mapping[int, str] = field(default_factory=dict)
    got: frozenset[tuple[int, int]] = frozenset()
    deaf: frozenset[int] = frozenset()


class Everywhere(Protocol):
    """The part of `everywhere.everywhere` that is needed."""

    def __call__(
        self,
        hosts: Sequence[Host],
        work: Callable[[Connection], Report],
        *,
        settings: SshSettings,
        deadline: float,
        on_done: Callable[[Host, Report | SwarmctlError], None] | None,
    ) -> Mapping[str, Report | SwarmctlError]:
        """Do `work` on all hosts at once; what came of each, by name."""


def pairs(
    ends: Sequence[End], settings: SshSettings, *, all_pairs: bool = False, run: Everywhere = everywhere
) -> list[PairResult]:
    """Test what gets from each machine to others: every machine and every manager, both ways, and some neighbours.

    Args:
        ends: The machines; their hosts' names differ. One without an address takes no part.
        settings: How to reach them.
        all_pairs: Test every machine with every other.
        run: Runs something on all hosts at once.

    Returns:
        A result for each port of each pair, and one for the packet size; those that could not be tested say why.
    """
    ends = [end for end in ends if end.address]
    chosen = edges(ends, all_pairs=all_pairs)
    if not chosen:
        return []
    index_of = {end.host.name: index for index, end in enumerate(ends)}
    token = secrets.token_hex(8)
    meeting = _Meeting(index_of)

    def work(connection: Connection) -> Report:
        name = connection.host.name
        there = {index_of[other] for other in meeting.wait(name)}
        text = script(index_of[name], ends, chosen, there, token)
        done = connection.run("sh -s", stdin=text, timeout=_SCRIPT_SEC)
        return parse(done.stdout, done.stderr)

    def on_done(host: Host, _: Report | SwarmctlError) -> None:
        meeting.without(host.name)

    hosts = [end.host for end in ends]
    results = run(hosts, work, settings=settings, deadline=_MEETING_SEC + _SCRIPT_SEC + 10, on_done=on_done)
    return merge(ends, chosen, [results[host.name] for host in hosts])


def edges(ends: Sequence[End], *, all_pairs: bool = False) -> list[Edge]:
    """Who sends to whom.

    Besides every machine and every manager, each machine sends to the next that is no manager: some access points let
    nobody on the radio talk to anybody else on it, which a manager on a cable never notices.
    """
    everyone = range(len(ends))
    managers = [i for i in everyone if ends[i].manager]
    workers = [i for i in everyone if not ends[i].manager]
    if all_pairs or not managers:
        return [(a, b) for a in everyone for b in everyone if a != b]
    wanted = {(a, b) for m in managers for other in everyone if other != m for a, b in ((m, other), (other, m))}
    ring = {(a, b) for a, b in zip(workers, workers[1:] + workers[:1], strict=True) if a != b}
    return sorted(wanted | ring)


class _Meeting:
    """Has all machines begin together, for one can only hear what another sends while it listens."""

    def __init__(self, names: Iterable[str]) -> None:
        self._awaited = set(names)
        self._here: set[str] = set()
        self._changed = threading.Condition()
        self._deadline = time.monotonic() + _MEETING_SEC

    def wait(self, name: str) -> set[str]:
        """Wait until all others are here, can't come, or are too late; returns who is here.

        Raises:
            PairsError: This one is too late.
        """
        with self._changed:
            if time.monotonic() >= self._deadline:
                raise PairsError(f"{name} took more than {_MEETING_SEC:.0f} s to log in; the others did not wait")
            self._here.add(name)
            self._awaited.discard(name)
            self._changed.notify_all()
            left = self._deadline - time.monotonic()
            self._changed.wait_for(lambda: not self._awaited, timeout=left)
            return set(self._here)

    def without(self, name: str) -> None:
        """One won't come, or has been and gone."""
        with self._changed:
            self._awaited.discard(name)
            self._changed.notify_all()


def script(me: int, ends: Sequence[End], chosen: Sequence[Edge], there: set[int], token: str) -> bytes:
    """The text that one machine runs; pure but for reading our own files.

    Args:
        me: Which of the ends.
        ends: All.
        chosen: Who sends to whom.
        there: Ends that run it, too, and so will send.
        token: Of this run, that no datagram of another is counted.
    """
    expected = [source for source, target in chosen if target == me and source in there]
    lines = []
    for source, target in chosen:
        if source == me:
            udp = "-" if ":" in ends[target].address else _numbers(_UDP)
            runs = "yes" if target in there else "no"
            lines.append(f"{target} {ends[target].address} {_numbers(_tcp(ends[target]))} {udp} {runs}")
    values = {
        "run": token,
        "me": str(me),
        "seconds": f"{_TEST_SEC}",
        "patience": f"{_PATIENCE_SEC}",
        "expected": _numbers(expected),
        "listen": f"{_numbers(_tcp(ends[me]))} {_numbers(_UDP)}",
        "edges": "\n".join(lines),
    }
    here = files(__package__)
    program = here.joinpath("pairs_remote.py").read_text(encoding="utf-8")
    body = here.joinpath("pairs.sh").read_text(encoding="utf-8").replace("@@PYTHON@@\n", program)
    settings = "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())
    return (settings + body).encode()


def _tcp(end: End) -> tuple[int, ...]:
    return (MANAGEMENT, GOSSIP) if end.manager else (GOSSIP,)


def _numbers(values: Iterable[int]) -> str:
    return ",".join(str(value) for value in values) or "-"


def parse(stdout: bytes, stderr: bytes = b"") -> Report:
    """Read what the script printed.

    Raises:
        PairsError: It is not whole.
    """
    lines = stdout.decode("utf-8", "replace").splitlines()
    if _BEGIN not in lines or _END not in lines:
        said = stderr.decode("utf-8", "replace").strip().splitlines()
        raise PairsError(f"the tests did not run to their end: {said[-1] if said else 'no word of why'}")
    sees: dict[int, str] = {}
    tcp: dict[tuple[int, int], str] = {}
    udp: dict[tuple[int, int], str] = {}
    mtu: dict[int, str] = {}
    got: set[tuple[int, int]] = set()
    deaf: set[int] = set()
    for line in lines[lines.index(_BEGIN) + 1 : lines.index(_END)]:
        match line.split("\t"):
            case ["see", "-", port, word] if port.isdigit():
                sees[int(port)] = word
            case ["tcp", end, port, word] if end.isdigit() and port.isdigit():
                tcp[int(end), int(port)] = word
            case ["udp", end, port, word] if end.isdigit() and port.isdigit():
                udp[int(end), int(port)] = word
            case ["mtu", end, "-", word] if end.isdigit():
                mtu[int(end)] = word
            case ["got", end, port, "-"] if end.isdigit() and port.isdigit():
                got.add((int(end), int(port)))
            case ["deaf", "-", port, "-"] if port.isdigit():
                deaf.add(int(port))
            case _:  # a greeting, or a tool that talks; what is missing counts as untested
                pass
    return Report(sees, tcp, udp, mtu, frozenset(got), frozenset(deaf))


# What both ends' reports say together ---------------------------------------------------------------------------

_TCP_WORDS = {
    "open": (True, ""),
    "refused": (False, REFUSED),
    "silent": (False, SILENT),
    "rejected": (False, REJECTED),
    "unreachable": (False, NO_ROUTE),
}
_BLIND = {"no root": NO_ROOT, "no python3": NO_PYTHON}
_NO_MTU = {"no echo": NO_ECHO, "no -M": SIMPLE_PING, "": NO_PING}


def merge(ends: Sequence[End], chosen: Sequence[Edge], reports: Sequence[Report | SwarmctlError]) -> list[PairResult]:
    """Make one result of what a sender and a receiver say; pure."""
    results: list[PairResult] = []
    for source, target in chosen:
        sent, received = reports[source], reports[target]
        a, b = ends[source].host.name, ends[target].host.name
        if isinstance(sent, SwarmctlError):
            why = f"{a}: could not be asked: {_first_line(sent)}"
            results += [PairResult(a, b, port, "tcp", None, why) for port in _tcp(ends[target])]
            results += [PairResult(a, b, port, "udp", None, why) for port in _UDP]
            results.append(PairResult(a, b, None, "mtu", None, why))
            continue
        for port in _tcp(ends[target]):
            word = sent.tcp.get((target, port), "")
            if word == "refused" and isinstance(received, Report) and port in received.deaf:
                verdict: tuple[bool | None, str] = None, f"{b}: {NO_PYTHON}"  # it may be open once Docker listens
            else:
                verdict = _tcp_verdict(a, word)
            results.append(PairResult(a, b, port, "tcp", *verdict))
        for port in _UDP:
            verdict = _udp_verdict(ends, source, target, port, sent, received)
            results.append(PairResult(a, b, port, "udp", *verdict))
        results.append(_mtu_result(a, b, sent.mtu.get(target, "")))
    return results


def _tcp_verdict(source: str, word: str) -> tuple[bool | None, str]:
    if word in _TCP_WORDS:
        return _TCP_WORDS[word]
    if word.startswith("failed"):
        return False, f"{NOT_SENT}: {word.removeprefix('failed').strip() or 'no word of why'}"
    return None, f"{source}: {NO_TOOL}"


def _udp_verdict(
    ends: Sequence[End], source: int, target: int, port: int, sent: Report, received: Report | SwarmctlError
) -> tuple[bool | None, str]:
    a, b = ends[source].host.name, ends[target].host.name
    word = sent.udp.get((target, port), "")
    if word == "heard" or (isinstance(received, Report) and (source, port) in received.got):
        return True, ""
    if ":" in ends[target].address:
        return None, f"{b}: has an IPv6 address, over which UDP is not tested"
    if word in {"", "no tool"}:
        return None, f"{a}: {NO_TOOL}"
    if word.startswith("failed"):
        return False, f"{NOT_SENT}: {word.removeprefix('failed').strip() or 'no word of why'}"
    if isinstance(received, SwarmctlError):
        return None, f"{b}: could not be asked what arrived: {_first_line(received)}"
    how = received.sees.get(port, "no python3")
    if how == "yes":
        return False, SILENT
    return None, f"{b}: {_BLIND.get(how, 'cannot watch UDP ports: ' + how.removeprefix('no '))}"


def _mtu_result(source: str, target: str, word: str) -> PairResult:
    if not word.isdigit():
        host = target if word == "no echo" else source
        return PairResult(source, target, None, "mtu", None, f"{host}: {_NO_MTU.get(word, NO_PING)}")
    value = int(word)
    detail = "" if value >= USUAL_MTU else f"packets of up to {value} bytes arrive whole"
    return PairResult(source, target, None, "mtu", value >= USUAL_MTU, detail, value)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
