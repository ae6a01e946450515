"""How many pushes a second the coordinator takes in and applies from 1, 8 and 32 workers, and how long each waits.

    python -m bench.pushes [--seconds 3] [--rounds 3]

Every worker pushes, waits for the acknowledgement, and pushes again; all live in one sender process, which does nothing
else. A gradient is TOPK 10 % of rwkv-tiny, or of a model of 1024 numbers, which shows what a push costs apart from its
size. The peer receives the same frames with a thread for each connection and only acknowledges them.
"""

import argparse
import itertools
import selectors
import socket
import statistics
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe

import numpy as np

import fdtc
from swarm_agent.net import send_buffers

from .tools import (
    ONLY_TAKES_IN,
    WITHOUT_NUMBA,
    coordinator,
    gradient_frame,
    helper,
    interleave,
    join,
    median_ratio,
    receive_bare,
    table,
    take_acks,
)

WORKERS = (1, 8, 32)
MODELS = ("rwkv-tiny", "bench.tools:Thousand")
# As in our stacks; by what Adam is done.
RULE = ONLY_TAKES_IN | {"FDTC_TRAINING_BETA1": "0", "FDTC_TRAINING_CLIP_NORM": "1"}
OURS = {"numba": RULE, "numpy": RULE | WITHOUT_NUMBA}
BARE = "bare loop"


def push_and_wait(pipe: Pipe, model: str, ports: dict[str, int], seconds: float) -> None:
    """Be all workers: for each (name, number of workers) from the pipe, push for a while and answer the latencies.

    Args:
        pipe: Questions in; (latencies in seconds, seconds in all) out.
        model: Whose gradients to push.
        ports: Of the coordinators and the bare loop.
        seconds: How long one answer takes.
    """
    frames = [gradient_frame(model, f"worker-{number}", fdtc.Compression.TOPK) for number in range(max(WORKERS))]
    connections = {
        name: [
            socket.create_connection(("127.0.0.1", port)) if name == BARE else join(port, f"worker-{number}")[0]
            for number in range(max(WORKERS))
        ]
        for name, port in ports.items()
    }
    for name in connections:
        _push_for(connections[name], frames, 0.2)  # takes the memory
    pipe.send(None)
    while True:
        name, workers = pipe.recv()
        start = time.perf_counter()
        latencies = _push_for(connections[name][:workers], frames, seconds)
        pipe.send((latencies, time.perf_counter() - start))


def _push_for(connections: list[socket.socket], frames: list[list[bytes | memoryview]], seconds: float) -> list[float]:
    latencies: list[float] = []
    sent_at: dict[int, float] = {}
    end = time.perf_counter() + seconds
    with selectors.DefaultSelector() as selector:

        def push(number: int) -> None:
            sent_at[number] = time.perf_counter()
            send_buffers(connections[number], frames[number])

        for number, connection in enumerate(connections):
            selector.register(connection, selectors.EVENT_READ, number)
            push(number)
        while sent_at:
            for key, _ in selector.select():
                acknowledged, rest = take_acks(connections[key.data], b"")
                now = time.perf_counter()
                if acknowledged != 1 or rest:
                    raise SystemExit("one push, and not one whole acknowledgement")
                latencies.append(now - sent_at.pop(key.data))
                if now < end:
                    push(key.data)
    return latencies


def measure(model: str, seconds: float, rounds: int) -> list[list[object]]:
    """Return the table's rows for one model."""
    size = sum(map(len, gradient_frame(model, "worker-0", fdtc.Compression.TOPK)))
    latencies: dict[str, list[float]] = {}
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(coordinator("--model", model, settings=rule)).port for name, rule in OURS.items()
        }
        ports[BARE] = stack.enter_context(helper(receive_bare, size, 1 << 18)).recv()
        pipe = stack.enter_context(helper(push_and_wait, model, ports, seconds))
        pipe.recv()

        def one_round(name: str, workers: int) -> float:
            pipe.send((name, workers))
            found, elapsed = pipe.recv()
            latencies.setdefault(f"{name}, {workers}", []).extend(found)
            return len(found) / float(elapsed)

        measures = {
            f"{name}, {workers}": lambda name=name, workers=workers: one_round(name, workers)
            for workers in WORKERS
            for name in ports
        }
        rates = interleave(measures, rounds)
    rows: list[list[object]] = []
    for name, workers in itertools.product(OURS, WORKERS):
        found, peer = rates[f"{name}, {workers}"], rates[f"{BARE}, {workers}"]
        waits = 1000 * np.array(latencies[f"{name}, {workers}"])
        rows.append(
            [
                f"{model.rpartition(':')[2]}, {size} bytes, {name}",
                workers,
                f"{statistics.median(found):.0f}",
                f"{np.median(waits):.2f}",
                f"{np.percentile(waits, 99):.2f}",
                f"{statistics.median(peer):.0f}",
                f"{median_ratio(found, peer):.2f}",
            ]
        )
    return rows


def main() -> None:
    """Print pushes a second, latencies and the peer's figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="of each, interleaved (default 3)")
    options = parser.parse_args()
    rows = [row for model in MODELS for row in measure(model, options.seconds, options.rounds)]
    table(["a push of", "workers", "pushes/s", "median ms", "p99 ms", "bare loop's", "ratio"], rows)


if __name__ == "__main__":
    main()
