"""A peer in C, built from packed structs: its bytes are ours, and it reads ours."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fdtc_examples import MODEL, frame

from fdtc import (
    Checkpoint,
    Compression,
    Deregister,
    Error,
    Gradients,
    GradientsAck,
    Heartbeat,
    HeartbeatAck,
    Message,
    MessageType,
    Pause,
    Profile,
    Register,
    RegisterAck,
    Resume,
    Shutdown,
    Start,
    Status,
    StatusRequest,
    Sync,
    Weights,
    WeightsMeta,
    WeightsRequest,
)

NUMBERS = np.array([1, -2, 0.5, -0.5, 2, 0, -8], "<f4").tobytes()

# What peer.c emits, in its order.
MESSAGES: list[Message] = [
    Register("c-peer", 1, Profile.RPI4_8G, 4, 7811, 8),
    RegisterAck(True, 2, 17, 8, 4, Compression.TOPK, 0.1, 4_000_000_000),
    Deregister("c-peer"),
    Heartbeat("c-peer", 77, 3.25, 12.5),
    WeightsMeta(4_000_000_000, 1e-4, MODEL),
    Weights(NUMBERS),
    Gradients("c-peer", 77, 2, Compression.NONE, 28, NUMBERS),
    Status("c-peer", 77, 616, 3.25, 3.5, 12.5, 6_000_000_000, True),
    Error(5, "Wörter"),
    HeartbeatAck(),
    WeightsRequest(),
    GradientsAck(),
    Start(),
    Sync(),
    Checkpoint(),
    Shutdown(),
    Pause(),
    Resume(),
    StatusRequest(),
]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gcc = shutil.which("gcc")
    if gcc is None:
        if os.environ.get("CI"):
            pytest.fail("gcc is not installed: CI must build tests/protocol/peer.c")
        pytest.skip("gcc is not installed, peer.c cannot be built")
    program = tmp_path_factory.mktemp("peer") / "peer"
    source = Path(__file__).with_name("peer.c")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-address-of-packed-member"]
    built = subprocess.run([gcc, *flags, "-o", program, source], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return program


def run(peer: Path, command: str, data: bytes = b"") -> bytes:
    done = subprocess.run([peer, command], input=data, capture_output=True, check=False, timeout=20)
    assert done.returncode == 0, done.stderr
    return done.stdout


def frames(stream: bytes) -> list[bytes]:
    """The stream cut at its headers, each of which says its length at offset 5."""
    cut = []
    while stream:
        end = 9 + int.from_bytes(stream[5:9], "little")
        cut.append(stream[:end])
        stream = stream[end:]
    return cut


def test_the_c_peer_knows_every_message() -> None:
    assert sorted(message.type for message in MESSAGES) == sorted(MessageType)


def test_both_emit_the_same_bytes(peer: Path) -> None:
    assert [data.hex() for data in frames(run(peer, "emit"))] == [frame(message).hex() for message in MESSAGES]


def test_the_c_peer_reads_our_bytes(peer: Path) -> None:
    stream = b"".join(frame(message) for message in MESSAGES)
    printed = run(peer, "parse", stream).decode().splitlines()
    assert printed == [line for message in MESSAGES for line in expected_lines(message)]


def expected_lines(message: Message) -> Iterator[str]:
    """What peer.c prints for a message: its attributes by name, in wire order."""
    yield f"type {message.type:#04x}"
    if isinstance(message, WeightsMeta):
        yield f"num_tensors {len(message.tensors)}"
    for name in message.__slots__:
        value = getattr(message, name)
        if name == "tensors":
            for spec in message.tensors:
                yield f"name {spec.name}"
                yield f"ndim {len(spec.shape)}"
                yield from (f"shape {size}" for size in (*spec.shape, *[0] * 8)[:8])
                yield f"numel {spec.numel}"
                yield f"dtype {spec.dtype}"
        elif name == "data":
            yield "data " + " ".join(f"{number:.9g}" for number in np.frombuffer(value, "<f4"))
        elif isinstance(value, float):
            yield f"{name} {np.float32(value):.9g}"
        elif isinstance(value, int):
            yield f"{name} {int(value)}"
        else:
            yield f"{name} {value}"
