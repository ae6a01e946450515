"""Resident memory: of a worker with a Pi 3's profile on rwkv-tiny, and of a coordinator over many pushes.

    python -m bench.memory [--pushes 10000]

The worker is a real `swarm-worker` with its defaults; its peak is the kernel's own figure (VmHWM). The coordinator is
pushed to by one client, TOPK 10 % of rwkv-tiny, which also pulls the weights now and then. MB are 10^6 bytes.
"""

import argparse
import os
import subprocess
import sys

import fdtc
from swarm_agent.net import send_buffers

from .tools import (
    ONLY_TAKES_IN,
    ROOT,
    WITHOUT_NUMBA,
    await_message,
    command,
    coordinator,
    end,
    gradient_frame,
    join,
    memory_mb,
    table,
    wait_for_event,
)

WORKER_LIMIT_MB = 250
WORKER_PUSHES = 3  # of 16 mini-batches each: more needs no more memory
EARLY = 1000  # pushes after which the coordinator has all that it will ever need
PULL_EVERY = 100  # pushes
MODEL = "rwkv-tiny"


def worker_peak() -> float:
    """Return the most that a worker has resident while it trains, in MB."""
    with coordinator("--model", MODEL, settings={}) as leader:
        options = ["--host", "127.0.0.1", "--port", str(leader.port), "--model", MODEL, "--profile", "RPI3"]
        worker = subprocess.Popen(
            [command("swarm-worker"), *options], env=os.environ.copy(), cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        try:
            wait_for_event(worker, "registered")
            while leader.status()["gradients_applied"] < WORKER_PUSHES:
                if worker.poll() is not None:
                    raise SystemExit("the worker has ended")
                try:
                    worker.wait(0.5)
                except subprocess.TimeoutExpired:
                    continue
            return memory_mb(worker.pid, "VmHWM")
        finally:
            end(worker)


def coordinator_growth(pushes: int) -> list[tuple[int, float]]:
    """Return (pushes, resident MB) a few times on the way."""
    marks = sorted({EARLY, pushes // 4, pushes // 2, pushes})
    found = []
    with coordinator("--model", MODEL, settings=ONLY_TAKES_IN | WITHOUT_NUMBA) as leader:  # as the image has it
        connection, wire = join(leader.port, "pusher")
        frame = gradient_frame(MODEL, "pusher", fdtc.Compression.TOPK)
        for number in range(1, pushes + 1):
            send_buffers(connection, frame)
            await_message(connection, wire, fdtc.GradientsAck)
            if number % PULL_EVERY == 0:
                send_buffers(connection, wire.send(fdtc.WeightsRequest()))
                await_message(connection, wire, fdtc.Weights)
            if number in marks:
                found.append((number, memory_mb(leader.process.pid, "VmRSS")))
        applied = leader.status()["gradients_applied"]
        if applied < pushes - 1:  # the last one may be on its way to being counted
            raise SystemExit(f"only {applied} of {pushes} pushes were applied")
    return found


def main() -> int:
    """Print both tables; return 1 if the worker is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=10_000, help="to the coordinator (default %(default)s)")
    options = parser.parse_args()
    peak = worker_peak()
    table(
        ["worker, rwkv-tiny, RPI3", "peak MB", "limit MB"],
        [["batch 2, 16 accumulated", f"{peak:.0f}", WORKER_LIMIT_MB]],
    )
    print()
    found = coordinator_growth(options.pushes)
    rows = [[f"after {pushes} pushes", f"{size:.1f}", f"{size - found[0][1]:+.1f}"] for pushes, size in found]
    table(["coordinator, rwkv-tiny", "resident MB", f"since {EARLY}"], rows)
    return int(peak >= WORKER_LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
