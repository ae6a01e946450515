"""What stands between machines, judged by the pair tests: each cause once, however many pairs it spoils. Pure.

May import: ``facts``, ``observation``.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from .facts import Finding
from .observation import (
    NO_ECHO,
    NO_PING,
    NO_PYTHON,
    NO_ROOT,
    NO_ROUTE,
    NO_TOOL,
    NOT_SENT,
    REFUSED,
    SILENT,
    SIMPLE_PING,
    Observation,
    PairResult,
    some,
)

_TO_BE_ABLE_TO_TEST = {
    NO_TOOL: "sudo apt install python3",
    NO_PYTHON: "sudo apt install python3",
    NO_ROOT: "# log in there as root, or as a user whose sudo asks for no password",
    NO_PING: "sudo apt install iputils-ping",
    SIMPLE_PING: "sudo apk add iputils   # or your system's word for it",
    NO_ECHO: "sudo ufw status; sudo iptables -S INPUT   # a firewall that drops echo requests?",
}


def reach(fleet: Observation, explained: Collection[str] = ()) -> list[Finding]:
    """Judge the pair tests.

    Args:
        fleet: With its pairs; of the machines, only what their link is counts.
        explained: Hosts with a finding that accounts for whatever fails to or from them.
    """
    tests = [test for test in fleet.pairs if test.source not in explained and test.target not in explained]
    ports = [test for test in tests if test.protocol != "mtu" and test.ok is not None]
    failed = [test for test in ports if not test.ok]
    findings: list[Finding] = []
    # From the widest cause to the narrowest; what one accounts for the next does not see.
    for cause in (_wifi_isolation, _apart, _blocked, _single_pairs):
        for finding, accounted in cause(fleet, tests, failed):
            findings.append(finding)
            spoilt = set(accounted)
            failed = [test for test in failed if test not in spoilt]
    return [*findings, *_mtu(fleet, tests), *_untested(tests)]


Cause = Iterator[tuple[Finding, Sequence[PairResult]]]


def _wifi_isolation(fleet: Observation, tests: Sequence[PairResult], failed: Sequence[PairResult]) -> Cause:
    """Machines on the radio that reach what is on a cable, and not each other."""
    radio = {host for host, machine in fleet.hosts.items() if machine.probe and machine.probe.route.wireless}
    between: dict[frozenset[str], list[PairResult]] = defaultdict(list)
    for test in tests:
        if {test.source, test.target} <= radio:
            between[frozenset((test.source, test.target))].append(test)
    heard = {test.target for test in tests if test.ok}
    deaf = {pair: found for pair, found in between.items() if _is_dead(found)}
    # A firewall on one of them would let pings pass, or shut out those on a cable, too.
    clear = all(pair <= heard or any(NO_ECHO in test.detail for test in found) for pair, found in deaf.items())
    if not deaf or len(deaf) < len(between) or not clear:
        return
    hosts = sorted(frozenset().union(*deaf))
    yield (
        Finding(
            "error",
            "wifi-isolation",
            "swarm",
            f"{some(hosts)} are on WiFi and reach nothing of each other: the access point keeps its guests apart",
            (
                "# switch off 'client isolation' ('AP isolation', 'wireless isolation') in the access point's settings",
                "# or take the machines off its guest network, or put them on a cable",
            ),
        ),
        [test for test in failed if {test.source, test.target} <= set(hosts)],
    )


def _is_dead(tests: Iterable[PairResult]) -> bool:
    """Whether nothing at all came through, and nobody said no."""
    found = [test for test in tests if test.protocol != "mtu" and test.ok is not None]
    echoed = any(test.value is not None for test in tests if test.protocol == "mtu")
    return bool(found) and not echoed and all(test.detail.startswith((SILENT, NO_ROUTE)) for test in found)


def _apart(_: Observation, tests: Sequence[PairResult], failed: Sequence[PairResult]) -> Cause:
    """A machine that reaches none of those that others reach."""
    reached_by = defaultdict(set)
    for test in tests:
        if test.ok and test.protocol != "mtu":
            reached_by[test.target].add(test.source)
    for source in sorted({test.source for test in failed}):
        sent = [test for test in tests if test.source == source and test.protocol != "mtu" and test.ok is not None]
        targets = sorted({test.target for test in sent})
        if any(test.ok for test in sent) or not all(reached_by[target] for target in targets):
            continue
        not_sent = all(test.detail.startswith(NOT_SENT) for test in sent)
        received = [test for test in failed if test.target == source]
        unreached = bool(received) and not reached_by[source]
        also = " and is reached by none" if unreached else ""
        why = sent[0].detail if not_sent else "another network, or a firewall that lets nothing out"
        yield (
            Finding(
                "error",
                "ports",
                source,
                f"it reaches none of {some(targets)}{also}, while other machines do reach them: {why}",
                (
                    "ip route; ip neigh   # is it in the same network?",
                    "# a guest network, a second router behind the first (both may be 192.168.1.1), and "
                    "carrier-grade NAT (100.64.0.0/10) are others",
                    "sudo ufw status verbose; sudo iptables -S OUTPUT   # does a firewall stop what goes out?",
                ),
            ),
            [*(test for test in failed if test.source == source), *(received if unreached else ())],
        )


def _blocked(_: Observation, tests: Sequence[PairResult], failed: Sequence[PairResult]) -> Cause:
    """Ports of a machine that nobody reaches."""
    open_ports = {(test.target, test.protocol, test.port) for test in tests if test.ok}
    for target, found in _by_target(
        test for test in failed if (test.target, test.protocol, test.port) not in open_ports
    ):
        sources = {test.source for test in found}
        who = "no other machine reaches" if len(sources) > 1 else f"{next(iter(sources))} can't reach"
        message = f"{who} its {_ports(found)}"
        yield Finding("error", "ports", target, message, _open_them(found)), found


def _single_pairs(_: Observation, __: Sequence[PairResult], failed: Sequence[PairResult]) -> Cause:
    """Ports that some reach and some do not."""
    for target, found in _by_target(failed):
        sources = sorted({test.source for test in found})
        where = f"{sources[0]} -> {target}" if len(sources) == 1 else target
        message = f"{some(sources)} can't reach {_ports(found)} of {target}; other machines can"
        yield Finding("error", "ports", where, message, _open_them(found)), found


def _by_target(tests: Iterable[PairResult]) -> list[tuple[str, list[PairResult]]]:
    groups: dict[str, list[PairResult]] = defaultdict(list)
    for test in tests:
        groups[test.target].append(test)
    return sorted(groups.items())


def _ports(tests: Iterable[PairResult]) -> str:
    """The ports with what came of them: ``TCP 2377 (refused), UDP 4789 (no answer)``."""
    words: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for test in tests:
        assert test.port is not None
        words[test.detail].add((test.protocol.upper(), test.port))
    return ", ".join(
        f"{', '.join(f'{protocol} {port}' for protocol, port in sorted(ports))} ({word})"
        for word, ports in sorted(words.items())
    )


def _open_them(tests: Sequence[PairResult]) -> tuple[str, ...]:
    """What to type at the target."""
    target = tests[0].target
    if all(test.detail.startswith(REFUSED) for test in tests):
        return (
            f"docker info --format '{{{{.Swarm.LocalNodeState}}}}'   # on {target}: is it active? If not:",
            f"swarmctl join {target}",
            f"sudo systemctl restart docker   # on {target}, if it is; what else it may be is a firewall that refuses",
            *_firewall(tests),
        )
    return _firewall(tests)


def _firewall(tests: Sequence[PairResult]) -> tuple[str, ...]:
    wanted = sorted({(test.port or 0, test.protocol) for test in tests})
    both = {port for port, protocol in wanted if (port, "udp") in wanted and (port, "tcp") in wanted}
    ufw = list(dict.fromkeys(f"{port}" if port in both else f"{port}/{protocol}" for port, protocol in wanted))
    ports = " ".join(f"--add-port={port}/{protocol}" for port, protocol in wanted)
    target = tests[0].target
    return (
        " && ".join(f"sudo ufw allow {port}" for port in ufw) + f"   # on {target}, if its firewall is ufw",
        f"sudo firewall-cmd --permanent {ports} && sudo firewall-cmd --reload   # on {target}, if it is firewalld",
    )


def _mtu(fleet: Observation, tests: Sequence[PairResult]) -> Iterator[Finding]:
    """Links that packets of the overlay networks do not fit; one answer mends them all, so they are told as one."""
    small = [test for test in tests if test.value is not None and test.value < fleet.overlay_mtu]
    if not small:
        return
    least = min(test.value for test in small if test.value is not None)
    shared = set.intersection(*({test.source, test.target} for test in small))
    hosts = sorted({host for test in small for host in (test.source, test.target)})
    where = min(shared) if len(shared) == 1 else "swarm"
    between = f"to or from {where}" if len(shared) == 1 else f"between {some(hosts)}"
    yield Finding(
        "warning",
        "mtu",
        where,
        f"packets of more than {least} bytes do not arrive whole {between} (PPPoE, WireGuard and other tunnels are "
        f"so); overlay networks send up to {fleet.overlay_mtu}: those are split, or lost, and transfers hang",
        (
            f'driver_opts: {{com.docker.network.driver.mtu: "{least}"}}   # for each network in the stack file, then:',
            "swarmctl rm; swarmctl deploy   # a network keeps the size that it was made with",
        ),
    )


def _untested(tests: Sequence[PairResult]) -> Iterator[Finding]:
    """What could not be tested is told, since silence would say that it is well."""
    shut = {(test.source, test.target) for test in tests if test.ok is False}
    # No size is known where nothing gets through, and that is told already.
    unknown = [t for t in tests if t.ok is None and not (t.protocol == "mtu" and (t.source, t.target) in shut)]
    if not unknown:
        return
    hosts: dict[str, set[str]] = defaultdict(set)
    for test in unknown:
        host, _, why = test.detail.partition(": ")
        hosts[why].add(host)
    whys = [f"{some(who)}: {why}" for why, who in sorted(hosts.items())]
    yield Finding(
        "warning",
        "untested",
        "swarm",
        f"{len(unknown)} of {len(tests)} tests between machines could not be made ({'; '.join(whys)})",
        tuple(dict.fromkeys(_TO_BE_ABLE_TO_TEST[why] for why in sorted(hosts) if why in _TO_BE_ABLE_TO_TEST)),
    )
