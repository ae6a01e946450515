"""Codec speed beside memcpy, and the frame decoder's beside a bare loop of struct.unpack.

    python -m bench.codecs [--model rwkv-small] [--rounds 15]

MB/s are of the float32 vector, whatever its encoding takes. All of it is one thread's work, measured in processor time,
so that other work on the machine disturbs it less. The peer of the codecs is np.copyto of the same
vector; that of the decoder takes the same frames apart with one struct and checks nothing.
"""

import argparse
import statistics
import struct
import time
from collections.abc import Callable

import numpy as np

import fdtc
from fdtc import Compression

from .tools import interleave, median_ratio, specs_of, table

FRAMES = 20_000
CHUNK = 65_536  # bytes fed to the decoder at once, as a socket would give them


def measure_codecs(model: str, rounds: int) -> None:
    """Print encode and decode MB/s of each codec."""
    specs = specs_of(model)
    rng = np.random.default_rng(0)
    flat = rng.normal(0, 1e-3, sum(spec.numel for spec in specs)).astype(np.float32)
    out = np.empty_like(flat)
    encoded = {kind: bytes(fdtc.encode_tensors(flat, specs, kind, levels=255)) for kind in Compression}

    def encode(kind: Compression) -> Callable[[], object]:
        return lambda: fdtc.encode_tensors(flat, specs, kind, levels=255, rng=rng)

    def decode(kind: Compression) -> Callable[[], object]:
        # NONE without `out` is a view, as the coordinator uses it; the others are written out.
        target = None if kind is Compression.NONE else out
        return lambda: fdtc.decode_tensors(encoded[kind], specs, kind, target)

    actions: dict[str, Callable[[], object]] = {"memcpy": lambda: np.copyto(out, flat)}
    actions |= {f"encode {kind.name}": encode(kind) for kind in Compression}
    actions |= {f"decode {kind.name}": decode(kind) for kind in Compression}
    rates = interleave({name: _rate(action, flat.nbytes / 1e6) for name, action in actions.items()}, rounds)

    def shown(name: str) -> tuple[str, str]:
        return f"{statistics.median(rates[name]):.0f}", f"{median_ratio(rates[name], rates['memcpy']):.3f}"

    rows = []
    for kind in Compression:
        label = {Compression.TOPK: "TOPK 10 %", Compression.QSGD: "QSGD, 255 levels"}.get(kind, kind.name)
        bits = 8 * len(encoded[kind]) / flat.size
        both = [shown(f"{way} {kind.name}") for way in ("encode", "decode")]
        if kind is Compression.NONE:
            both = [("a view", "-")] * 2
        rows.append([label, f"{bits:.2f}", *both[0], *both[1]])
    memcpy = f"{statistics.median(rates['memcpy']):.0f}"
    rows.append(["memcpy", "32.00", memcpy, "1.000", memcpy, "1.000"])
    heads = [f"{model}, {flat.size} numbers", "bits/number", "encode MB/s", "of memcpy", "decode MB/s", "of memcpy"]
    table(heads, rows)


def _rate(action: Callable[[], object], amount: float) -> Callable[[], float]:
    def measure() -> float:
        start = time.thread_time()
        action()
        return amount / (time.thread_time() - start)

    return measure


def measure_frames(rounds: int) -> None:
    """Print frames per second of the decoder and of its peer, on HEARTBEATs."""
    stream = b"".join(fdtc.encode(fdtc.Heartbeat("worker", 1, 2.5, 10.0))) * FRAMES
    receiver = fdtc.Connection(fdtc.Role.COORDINATOR)
    receiver.feed(b"".join(fdtc.encode(fdtc.Register("worker", 1, fdtc.Profile.RPI3, 4, 1024, 0))))
    receiver.next_message()
    receiver.send(fdtc.RegisterAck(True, 0, 1, 1, 1, Compression.NONE, 0.0, 0))
    heartbeat = struct.Struct("<IBI64sIff")

    def ours() -> None:
        seen = 0
        for start in range(0, len(stream), CHUNK):
            receiver.feed(stream[start : start + CHUNK])
            while receiver.next_message() is not None:
                seen += 1
        assert seen == FRAMES

    def bare() -> None:
        seen = 0
        for start in range(0, len(stream), heartbeat.size):
            heartbeat.unpack_from(stream, start)
            seen += 1
        assert seen == FRAMES

    rates = interleave({"Connection": _rate(ours, FRAMES), "struct.unpack": _rate(bare, FRAMES)}, rounds)
    rows = [
        [name, f"{statistics.median(found):.0f}", f"{median_ratio(found, rates['struct.unpack']):.3f}"]
        for name, found in rates.items()
    ]
    table(["HEARTBEAT of 85 bytes", "frames/s", "of struct"], rows)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="rwkv-small")
    parser.add_argument("--rounds", type=int, default=15, help="of each, interleaved (default 15)")
    options = parser.parse_args()
    measure_codecs(options.model, options.rounds)
    print()
    measure_frames(options.rounds)


if __name__ == "__main__":
    main()
