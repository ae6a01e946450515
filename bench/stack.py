"""The time until all of a stack's tasks run: `swarmctl deploy` beside `docker stack deploy` of the same rendered file.

    python -m bench.stack [--nodes 45] [--rounds 3]

Needs root. Every node of the lab has the image already (2 MB, it only sleeps), so what is measured is the way from the
stack file to running tasks, with everything that swarmctl checks on it. Both are waited for by the same look at the
engine's own list of tasks.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.lab import images
from tests.lab.lab import Lab
from tests.lab.node import LabNode

from .fleet import spec
from .tools import table

STACK = "bench"


def swarmctl(lab: Lab, *arguments: str | Path) -> str:
    """Run a command as the operator; it must succeed. Returns what it printed."""
    return finished(started(lab, *arguments))


def started(lab: Lab, *arguments: str | Path) -> "subprocess.Popen[str]":
    """A command that the operator has just typed."""
    words = [sys.executable, "-m", "swarmctl", *map(str, arguments)]
    return _popen(words, {**lab.environment, "REGISTRY": lab.registry})


def started_on(node: LabNode, *command: str) -> "subprocess.Popen[str]":
    """A command that root has just typed on a node."""
    return _popen(node.inside(*command, folder=Path.cwd()), dict(os.environ))


def _popen(words: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)


def finished(process: "subprocess.Popen[str]") -> str:
    """Wait for the end of a command that must succeed; returns what it printed."""
    out, err = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} ended with {process.returncode}\n{out}{err}")
    return out


def stack_file(lab: Lab, image: str) -> Path:
    """rwkv-tiny with programs that only sleep."""
    content = yaml.safe_load(Path("stacks/rwkv-tiny.yml").read_text())
    content["name"] = STACK
    for keys in content["services"].values():
        keys.update(image=image, command=["sleep", "1000000"], stop_grace_period="1s")
    path = lab.home / "bench.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def running(manager: LabNode) -> int:
    """Tasks of the stack that run, by the engine's own list."""
    label = f"com.docker.stack.namespace={STACK}"
    tasks = manager.api.tasks(filters={"label": label, "desired-state": "running"})
    return sum(task["Status"]["State"] == "running" for task in tasks)


def seconds_until(manager: LabNode, count: int, start: Callable[[], "subprocess.Popen[str]"]) -> float:
    """From the beginning of a command to `count` running tasks, whether it has ended by then or not."""
    began = time.perf_counter()
    process = start()
    while running(manager) < count:
        if time.perf_counter() - began > 600:
            raise SystemExit(f"{running(manager)} of {count} run after ten minutes")
        time.sleep(0.1)
    seconds = time.perf_counter() - began
    finished(process)
    return seconds


def remove(manager: LabNode) -> None:
    """Remove the stack, and wait until nothing of it is left."""
    manager.docker("stack", "rm", STACK)
    label = f"com.docker.stack.namespace={STACK}"
    while manager.api.tasks(filters={"label": label}) or any(
        network["Name"].startswith(f"{STACK}_") for network in manager.api.networks()
    ):
        time.sleep(0.2)
    for config in manager.api.configs(filters={"label": label}):
        manager.api.remove_config(config["ID"])


def main() -> None:
    """Print seconds of each, and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=45)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with Lab({"registry": True, **spec(options.nodes)}) as lab:
        manager = next(node for name, node in lab.nodes.items() if name.startswith("server"))
        swarmctl(lab, "init", manager.name)
        swarmctl(lab, "join", *(name for name in lab.nodes if name != manager.name))
        swarmctl(lab, "label", "--auto")
        path = stack_file(lab, images.tiny(lab))
        rendered = lab.home / "rendered.yml"
        rendered.write_text(swarmctl(lab, "config", "--stack", path))
        count = options.nodes + 1  # a worker on every node, and the coordinator
        ways: dict[str, Callable[[], subprocess.Popen[str]]] = {
            "swarmctl deploy": lambda: started(lab, "deploy", "--stack", path),
            "docker stack deploy": lambda: started_on(
                manager, "docker", "stack", "deploy", "--detach=true", "-c", str(rendered), STACK
            ),
        }
        seconds_until(manager, count, ways["swarmctl deploy"])  # brings the image to every node
        remove(manager)
        # `docker stack deploy` knows no auto: the same numbers are given to it.
        scaled = yaml.safe_load(rendered.read_text())
        for name, keys in scaled["services"].items():
            kind = name.removeprefix("worker-").replace("rpi", "pi")
            nodes = sum(node.startswith(kind) for node in lab.nodes)
            keys["deploy"]["replicas"] = nodes if name.startswith("worker-") else 1
        rendered.write_text(yaml.safe_dump(scaled, sort_keys=False))
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, start in ways.items():
                found[way].append(seconds_until(manager, count, start))
                remove(manager)
        seconds_until(manager, count, ways["swarmctl deploy"])
        pis = sum(name.startswith("pi") for name in lab.nodes)
        swarmctl(lab, "scale", "worker-rpi", "1")
        up = seconds_until(manager, count, lambda: started(lab, "scale", "worker-rpi", str(pis)))
    medians = {way: statistics.median(times) for way, times in found.items()}
    rows = [[way, f"{medians[way]:.1f}", f"{min(times):.1f} to {max(times):.1f}"] for way, times in found.items()]
    rows.append(["ratio", f"{medians['swarmctl deploy'] / medians['docker stack deploy']:.2f}", ""])
    rows.append([f"swarmctl scale worker-rpi 1 to {pis}", f"{up:.1f}", ""])
    table([f"{count} tasks on {options.nodes} nodes", "seconds (median)", "lowest to highest"], rows)


if __name__ == "__main__":
    main()
