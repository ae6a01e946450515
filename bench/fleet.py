"""From bare machines to a labelled swarm, in the lab: how long each command takes, the first time and again.

    python -m bench.fleet [--nodes 12] [--slow]

Needs root. The lab's machines share this one's processors, so the figures are of a fleet of very small machines.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.lab.lab import Lab

from .tools import table

KINDS = (("pi", "rpi4-4g", 4), ("laptop", "laptop", 2), ("desktop", "desktop", 2), ("server", "server", 1))


def spec(nodes: int) -> dict[str, Any]:
    """A fleet like the mission's: of 9 machines 4 Pis, 2 laptops, 2 desktops, 1 server."""
    total = sum(share for *_, share in KINDS)
    counts = {name: nodes * share // total for name, _, share in KINDS}
    counts["server"] = max(1, counts["server"])
    counts["pi"] += nodes - sum(counts.values())
    return {
        "nodes": [
            {"name": f"{name}-[01-{counts[name]:02}]" if counts[name] > 1 else f"{name}-01", "hardware": hardware}
            for name, hardware, _ in KINDS
            if counts[name]
        ]
    }


class Clock:
    """Runs swarmctl as the operator, and keeps how long each command took."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.rows: list[list[object]] = []

    def run(self, what: str, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        start = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-m", "swarmctl", *arguments],
            env=self.lab.environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - start
        if ended.returncode != code:
            raise SystemExit(f"{arguments} ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
        self.rows.append([what, f"{seconds:.1f}"])
        return ended


def measure(nodes: int) -> list[list[object]]:
    """Bare machines to a labelled swarm, and all of it again."""
    start = time.perf_counter()
    with Lab(spec(nodes)) as lab:
        clock = Clock(lab)
        clock.rows.append([f"lab of {nodes} engines up", f"{time.perf_counter() - start:.1f}"])
        first = next(name for name in lab.nodes if name.startswith("server"))
        others = [name for name in lab.nodes if name != first]
        start = time.perf_counter()
        clock.run("init", "init", first)
        clock.run(f"join, {len(others)} machines", "join", *others)
        clock.run("label --auto", "label", "--auto")
        clock.rows.append(["bare to labelled", f"{time.perf_counter() - start:.1f}"])
        for what, command in (
            ("init again", ["init", first]),
            ("join again", ["join", *others]),
            ("label --auto again", ["label", "--auto"]),
            ("nodes", ["nodes"]),
            ("doctor", ["doctor"]),
        ):
            said = clock.run(what, *command).stderr
            if what.endswith("again") and "nothing to change" not in said:
                raise SystemExit(f"{what} changed something: {said}")
        clock.rows += probed(lab, clock, others)
    return clock.rows


def probed(lab: Lab, clock: Clock, others: Sequence[str]) -> list[list[object]]:
    """All machines probed at once beside one alone: all alike, then with one whose login is slow; then three dead."""
    rows = beside_one(lab, others[0], "alike")
    # As on a Pi, or with a ~/.bashrc that loads much; what all others take is this machine's two cores, shared by them.
    lab.nodes[others[0]].run(["sh", "-c", "echo 'sleep 2' > /root/.bashrc"])
    rows += beside_one(lab, others[0], "one takes 2 s to log in")
    for name in others[:3]:
        lab.nodes[name].stop_sshd()
    ended = clock.run("label --auto, 3 of them dead", "label", "--auto", code=6)
    if not all(name in ended.stderr.splitlines()[-2] for name in others[:3]):
        raise SystemExit(f"the dead are not named: {ended.stderr}")
    return rows


def beside_one(lab: Lab, slowest: str, which: str) -> list[list[object]]:
    """Seconds and ratio of all machines scanned at once beside the slowest alone, medians of three."""
    alone, together = [], []
    for _ in range(3):
        alone.append(timed(lambda: scan(lab, [slowest])))
        together.append(timed(lambda: scan(lab, list(lab.nodes))))
    ratio = statistics.median(many / one for one, many in zip(alone, together, strict=True))
    return [
        [f"scan of one machine ({which})", f"{statistics.median(alone):.1f}"],
        [f"scan of all at once ({which})", f"{statistics.median(together):.1f}"],
        ["ratio", f"{ratio:.2f}"],
    ]


def timed(work: Callable[[], object]) -> float:
    """Seconds that something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def scan(lab: Lab, names: Sequence[str]) -> Mapping[str, Any]:
    """Probe machines; all must answer."""
    ended = subprocess.run(
        [sys.executable, "-m", "swarmctl", "fleet", "scan", *names, "--json"],
        env=lab.environment,
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    rows: list[Mapping[str, Any]] = json.loads(ended.stdout)
    return {row["host"]: row for row in rows}


def main() -> None:
    """Print the seconds of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[12, 45])
    for nodes in parser.parse_args().nodes:
        print(f"{nodes} machines")
        table(["step", "seconds"], measure(nodes))


if __name__ == "__main__":
    main()
