"""How fast the coordinator takes in and applies uncompressed gradients, beside a bare socket receive loop.

    python -m bench.ingest [--rounds 9]

One sender process pushes ready-made float32 gradients over loopback, a few ahead of their acknowledgements, in turn
to a coordinator and to a loop that receives the same frames and only acknowledges them. Every acknowledged gradient
has been checked, clipped where configured, and applied to the weights.
"""

import argparse
import socket
import statistics
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe

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

IN_FLIGHT = 3  # pushes ahead of their acknowledgements
ROUND_BYTES = 300_000_000
# What a bare loop receives at once: as much as fits in the processor's cache, or as much as there is.
BARE = {"bare loop, 256 KiB": 1 << 18, "bare loop, whole frame": 1 << 30}
RULES = {
    "adam": {},
    "adam as in our stacks": {"FDTC_TRAINING_BETA1": "0", "FDTC_TRAINING_CLIP_NORM": "1"},
    "sgd": {"FDTC_TRAINING_OPTIMIZER": "sgd"},
}
# By what it is done: SGD is not compiled.
WAYS = {
    **{f"{name}, numba": settings for name, settings in RULES.items() if name != "sgd"},
    **{f"{name}, numpy": settings | WITHOUT_NUMBA for name, settings in RULES.items()},
}


def push_forever(pipe: Pipe, model: str, ports: dict[str, tuple[int, bool]]) -> None:
    """Be the sender: for each name that comes through the pipe, push one round there and answer the seconds.

    Args:
        pipe: Names in, seconds out.
        model: Whose gradients to push.
        ports: Port by name, and whether FDTC is spoken there.
    """
    frame = gradient_frame(model, "sender", fdtc.Compression.NONE)
    count = max(8, ROUND_BYTES // sum(map(len, frame)))
    connections = {
        name: join(port, "sender")[0] if speaks else socket.create_connection(("127.0.0.1", port))
        for name, (port, speaks) in ports.items()
    }
    for connection in connections.values():
        _push(connection, frame, 8)  # takes the memory and fills the caches
    pipe.send(count * sum(map(len, frame)))
    while True:
        connection = connections[pipe.recv()]
        start = time.perf_counter()
        _push(connection, frame, count)
        pipe.send(time.perf_counter() - start)


def _push(connection: socket.socket, frame: list[bytes | memoryview], count: int) -> None:
    acknowledged, rest = 0, b""
    for sent in range(count):
        while sent - acknowledged >= IN_FLIGHT:
            new, rest = take_acks(connection, rest)
            acknowledged += new
        send_buffers(connection, frame)
    while acknowledged < count:
        new, rest = take_acks(connection, rest)
        acknowledged += new


def measure(model: str, rounds: int) -> list[list[object]]:
    """Return the table's rows for one model."""
    size = sum(map(len, gradient_frame(model, "sender", fdtc.Compression.NONE)))
    with ExitStack() as stack:
        ports = {}
        for name, rule in WAYS.items():
            settings = ONLY_TAKES_IN | rule
            ports[name] = (stack.enter_context(coordinator("--model", model, settings=settings)).port, True)
        for name, chunk in BARE.items():
            ports[name] = (stack.enter_context(helper(receive_bare, size, chunk)).recv(), False)
        pipe = stack.enter_context(helper(push_forever, model, ports))
        volume = pipe.recv()

        def one_round(name: str) -> float:
            pipe.send(name)
            seconds: float = pipe.recv()
            return float(volume / 1e6 / seconds)

        rates = interleave({name: lambda name=name: one_round(name) for name in ports}, rounds)  # type: ignore[misc]
    rows: list[list[object]] = []
    for name, found in rates.items():
        ratios = [f"{median_ratio(found, rates[bare]):.2f}" for bare in BARE]
        spread = f"{min(found):.0f} to {max(found):.0f}"
        rows.append([f"{model}, {name}", f"{statistics.median(found):.0f}", spread, *ratios])
    return rows


def main() -> None:
    """Print MB/s of each update rule and of the bare loops, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="of each, interleaved (default 9)")
    parser.add_argument("--models", nargs="+", default=["rwkv-tiny", "rwkv-small"])
    options = parser.parse_args()
    rows = [row for model in options.models for row in measure(model, options.rounds)]
    table(["taken in and applied", "MB/s", "lowest to highest", *(f"of {bare}" for bare in BARE)], rows)


if __name__ == "__main__":
    main()
