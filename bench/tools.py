"""What the benchmarks share: a coordinator process, clients that only push, a bare receiver, and tables."""

import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fdtc
from swarm_agent.models import load_model
from swarm_agent.net import send_buffers

ACK = b"".join(fdtc.encode(fdtc.GradientsAck()))
ROOT = Path(__file__).resolve().parent.parent
NEVER = str(10**9)
# A coordinator that does nothing but take in: no checkpoint, no lease that ends, and no push that is too stale.
ONLY_TAKES_IN = {
    "FDTC_CHECKPOINTING_INTERVAL": NEVER,
    "FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC": "600",
    "FDTC_TRAINING_MAX_STALENESS": NEVER,
}
# As if the extra "fast" were not installed: a module of that name that can't be found is found first.
WITHOUT_NUMBA = {"PYTHONPATH": str(ROOT / "bench" / "without")}


class Thousand:
    """A model of 1024 parameters in four tensors: what a push costs apart from its size."""

    def __init__(self) -> None:
        self.parameters = {f"w{number}": np.zeros((16, 16), np.float32) for number in range(4)}

    def loss_and_gradients(self, _batch: object) -> tuple[float, Mapping[str, NDArray[np.float32]]]:
        raise NotImplementedError("this model is only pushed to")


# ------------------------------------------------------------------------------------------------- processes


@dataclass(frozen=True)
class Coordinator:
    """A running ``swarm-coordinator``."""

    process: subprocess.Popen[str]
    port: int
    http_port: int
    directory: Path

    def status(self) -> dict[str, Any]:
        """Fetch ``/status``."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/status", timeout=30) as answer:
            status: dict[str, Any] = json.load(answer)
        return status


@contextmanager
def coordinator(*options: str, settings: Mapping[str, str]) -> Iterator[Coordinator]:
    """Run a coordinator on free ports, with the built-in defaults but for `options` and `settings` (FDTC_…)."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        ports = ["--host", "127.0.0.1", "--port", "0", "--http-port", "0", "--checkpoint-dir", name]
        process = subprocess.Popen(
            [command("swarm-coordinator"), *ports, *options],
            env={**os.environ, **settings},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            facts = wait_for_event(process, "coordinator listens")
            yield Coordinator(process, facts["port"], facts["http_port"], Path(name))
        finally:
            end(process)


def command(name: str) -> str:
    """Find one of our commands beside the interpreter that runs this."""
    return str(Path(sys.executable).with_name(name))


def wait_for_event(process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """Read a process's JSON log until an event, and go on reading unheard, so that the pipe never fills."""
    assert process.stderr
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith("{") and (facts := json.loads(line))["event"] == event:
            threading.Thread(target=_drain, args=(process.stderr,), daemon=True).start()
            return dict(facts)
    raise SystemExit(f"a process ended before it said {event!r}:\n{''.join(seen)}")


def _drain(stream: Any) -> None:
    for _ in stream:
        pass


def end(process: subprocess.Popen[str], seconds: float = 30) -> None:
    """Ask a process to end and wait until it has."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def helper(target: Callable[..., None], *arguments: object) -> Iterator[Pipe]:
    """Run `target(pipe, *arguments)` in a process of its own and yield the other end of the pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()  # so that the helper's death is the end of the pipe here
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def memory_mb(pid: int, field: str) -> float:
    """Read VmRSS (now) or VmHWM (the most so far) of a process, in MB of 10^6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"process {pid} has no {field}")


# --------------------------------------------------------------------------------------------------- clients


def join(port: int, worker_id: str) -> tuple[socket.socket, fdtc.Connection]:
    """Connect, register, and pull the weights once, as a worker does before its first push."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire = fdtc.Connection(fdtc.Role.WORKER)
    register = fdtc.Register(worker_id, fdtc.PROTOCOL_VERSION, fdtc.Profile.RPI3, 1, 1024, 1)
    send_buffers(connection, wire.send(register))
    await_message(connection, wire, fdtc.Start)
    send_buffers(connection, wire.send(fdtc.WeightsRequest()))
    await_message(connection, wire, fdtc.Weights)
    return connection, wire


def await_message(connection: socket.socket, wire: fdtc.Connection, wanted: type[fdtc.Message]) -> None:
    """Receive until a message of this kind has come."""
    while True:
        while (message := wire.next_message()) is None:
            size = connection.recv_into(wire.get_buffer())
            if not size:
                raise SystemExit("the coordinator closed the connection")
            wire.received(size)
        if isinstance(message, fdtc.Error):
            raise SystemExit(f"the coordinator says: {message.message}")
        if isinstance(message, wanted):
            return


def gradient_frame(model: str, worker_id: str, compression: fdtc.Compression) -> list[bytes | memoryview]:
    """One GRADIENTS frame of random numbers for a model, ready to be sent again and again."""
    specs = specs_of(model)
    flat = np.random.default_rng(0).normal(0, 1e-3, sum(spec.numel for spec in specs)).astype(np.float32)
    data = fdtc.encode_tensors(flat, specs, compression)
    return fdtc.encode(fdtc.Gradients(worker_id, 1, len(specs), compression, flat.nbytes, data))


def specs_of(model: str) -> tuple[fdtc.TensorSpec, ...]:
    """List a model's tensors in their order."""
    return tuple(fdtc.TensorSpec(name, array.shape) for name, array in load_model(model).parameters.items())


def take_acks(connection: socket.socket, rest: bytes) -> tuple[int, bytes]:
    """Receive once; return the acknowledgements that are whole now, and the bytes of one that is not."""
    received = connection.recv(65536)
    if not received:
        raise SystemExit("the receiver closed the connection")
    rest += received
    count = len(rest) // len(ACK)
    if rest[: count * len(ACK)] != ACK * count:
        raise SystemExit("the receiver said something else than GRADIENTS_ACK: was a push refused?")
    return count, rest[count * len(ACK) :]


def receive_bare(pipe: Pipe, size: int, chunk: int) -> None:
    """Be the peer of the coordinator: receive frames of `size` bytes, acknowledge each, and do nothing else.

    Args:
        pipe: Told the port.
        size: Bytes of one frame.
        chunk: Bytes received at once at most, always into the same buffer.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    pipe.send(listener.getsockname()[1])
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_receive_frames, args=(connection, size, chunk), daemon=True).start()


def _receive_frames(connection: socket.socket, size: int, chunk: int) -> None:
    buffer = memoryview(bytearray(min(size, chunk)))
    while True:
        missing = size
        while missing:
            received = connection.recv_into(buffer[: min(missing, chunk)])
            if not received:
                return
            missing -= received
        connection.sendall(ACK)


# ---------------------------------------------------------------------------------------------------- tables


def interleave(measures: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Measure each in turn, `repeats` times round, so that a busy moment hits all alike."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios within each round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their heads, the first column to the left and the others to the right."""
    cells = [[str(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    for row in cells:
        others = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *others]).rstrip(), flush=True)
