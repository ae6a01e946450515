"""Writes ``vectors/*.txt``: frames and tensor data as hex with the meaning of every byte, for any implementation.

Made from the offsets of the specification as literal numbers, with `struct` for single values and nothing of
fdtc, so that the vectors check the implementation and not the other way round. Run it to write the files anew:
``python tests/protocol/make_vectors.py``; a test sees to it that the files are what it writes.

A file is lines of ``hex | field | value``, and ``#`` comments; the hex of all lines in order is the content. In
``bad-*.txt`` a line ``# error: NAME`` says which error code a receiver must end with, and ``# state: ...`` what
the connection has been through before.
"""

import struct
from pathlib import Path

VECTORS = Path(__file__).parent / "vectors"

Line = tuple[bytes, str, str]


def u8(value: int, field: str) -> Line:
    return struct.pack("<B", value), field, str(value)


def u32(value: int, field: str) -> Line:
    return struct.pack("<I", value), field, str(value)


def u64(value: int, field: str) -> Line:
    return struct.pack("<Q", value), field, str(value)


def f32(value: float, field: str) -> Line:
    return struct.pack("<f", value), field, repr(value)


def text(value: str, size: int, field: str) -> Line:
    data = value.encode()
    return data + bytes(size - len(data)), field, f'"{value}" padded with NUL to {size} bytes'


def raw(data: bytes, field: str, value: str) -> Line:
    return data, field, value


def header(code: int, length: int) -> list[Line]:
    return [
        (bytes.fromhex("43544446"), "magic", "0x46445443"),
        (bytes([code]), "type", f"{code:#04x}"),
        (struct.pack("<I", length), "payload length", str(length)),
    ]


def at(fields: list[tuple[int, Line]], size: int) -> list[Line]:
    """Checks that the fields stand at the offsets of the specification and fill the struct."""
    position = 0
    for offset, (data, field, _) in fields:
        assert position == offset, (field, position, offset)
        position += len(data)
    assert position == size
    return [line for _, line in fields]


ID = text("pi-07", 64, "worker_id")

REGISTER = at(
    [
        (0, ID),
        (64, u8(1, "protocol_version")),
        (65, raw(b"\2\0\0\0", "profile", "2 RPI4_4G")),
        (69, u32(4, "num_cores")),
        (73, u64(3794, "memory_mb")),
        (81, u32(8, "suggested_batch_size")),
    ],
    85,
)

REGISTER_ACK = at(
    [
        (0, u8(1, "accepted")),
        (1, u32(3, "assigned_shard")),
        (5, u32(20, "total_shards")),
        (9, u32(8, "batch_size")),
        (13, u32(4, "accumulation_steps")),
        (17, raw(b"\2\0\0\0", "compression", "2 TOPK")),
        (21, f32(0.125, "topk_ratio")),
        (25, u32(70_000, "global_step")),
    ],
    29,
)

REGISTER_REFUSED = at(
    [
        (0, u8(0, "accepted")),
        (1, u32(0, "assigned_shard")),
        (5, u32(0, "total_shards")),
        (9, u32(0, "batch_size")),
        (13, u32(0, "accumulation_steps")),
        (17, raw(b"\0\0\0\0", "compression", "0 NONE")),
        (21, f32(0.0, "topk_ratio")),
        (25, u32(0, "global_step")),
    ],
    29,
)

HEARTBEAT = at(
    [
        (0, ID),
        (64, u32(1234, "local_step")),
        (68, f32(2.5, "current_loss")),
        (72, f32(0.75, "samples_per_sec")),
    ],
    76,
)

HEARTBEAT_FIRST = at(
    [
        (0, text("Jürgens Büro-PC", 64, "worker_id")),
        (64, u32(0, "local_step")),
        (68, raw(bytes.fromhex("0000c07f"), "current_loss", "nan: no step yet")),
        (72, f32(0.0, "samples_per_sec")),
    ],
    76,
)


def tensor(name: str, shape: tuple[int, ...], numel: int, dtype: int = 0, ndim: int | None = None) -> list[Line]:
    eight = [*shape, *[0] * (8 - len(shape))]
    return at(
        [
            (0, text(name, 64, "name")),
            (64, u32(len(shape) if ndim is None else ndim, "ndim")),
            (68, raw(struct.pack("<8Q", *eight), "shape", " ".join(map(str, eight)))),
            (132, u64(numel, "numel")),
            (140, u8(dtype, "dtype")),
        ],
        141,
    )


def meta(num_tensors: int, *tensors: list[Line]) -> list[Line]:
    head = [
        (0, u32(num_tensors, "num_tensors")),
        (4, u32(70_000, "global_step")),
        (8, f32(0.0001220703125, "learning_rate")),
    ]
    return at(head, 12) + [line for lines in tensors for line in lines]


EMB = tensor("emb.weight", (2, 3), 6)
SCALE = tensor("scale", (), 1)


def floats(field: str, *values: float) -> Line:
    return struct.pack(f"<{len(values)}f", *values), field, " ".join(map(repr, values))


# The model of two tensors above. TOPK with ratio 0.3: k = max(1, floor(0.3 × 6 + 0.5)) = 2, and 1.
TENSORS_NONE = [
    floats("emb.weight, 6 × f32", 1.0, -2.0, 0.5, -0.5, 2.0, 0.0),
    floats("scale, 1 × f32", -8.0),
]
TENSORS_FP16 = [
    raw(bytes.fromhex("003c00c0003800b800400000"), "emb.weight, 6 × f16", "1 -2 0.5 -0.5 2 0"),
    raw(bytes.fromhex("00c8"), "scale, 1 × f16", "-8"),
]
TENSORS_TOPK = [
    u32(2, "emb.weight, k"),
    raw(struct.pack("<2I", 1, 4), "indices", "1 4"),
    floats("values", -2.0, 2.0),
    u32(1, "scale, k"),
    raw(struct.pack("<I", 0), "indices", "0"),
    floats("values", -8.0),
]


def codes(width: int, *values: int) -> bytes:
    """Code i at bits i × width and up of one large little-endian number."""
    number = sum(value << (i * width) for i, value in enumerate(values))
    return number.to_bytes((len(values) * width + 7) // 8, "little")


# 3 4 0 0 -12 0 has norm 13: with 13 levels (4 bits, width 5) every number is exactly on a level, so that an
# encoder has nothing to leave to chance. A code is sign + 2 × level.
TENSORS_QSGD = [
    u8(13, "emb.weight, levels"),
    f32(13.0, "norm"),
    raw(codes(5, 6, 8, 0, 0, 25, 0), "6 codes of 5 bits", "+3 +4 +0 +0 -12 +0, two bits of padding"),
    u8(13, "scale, levels"),
    f32(8.0, "norm"),
    raw(codes(5, 27), "1 code of 5 bits", "-13, three bits of padding"),
]
TENSORS_QSGD_255 = [
    u8(255, "x, levels"),
    f32(510.0, "norm"),
    raw(codes(9, 0, 1, 2 * 255, 2 * 255 + 1, 2 * 128, 2 * 1 + 1, 2 * 85, 2 * 2, 2 * 3),
        "9 codes of 9 bits", "+0 -0 +255 -255 +128 -1 +85 +2 +3, seven bits of padding"),
]  # fmt: skip


def gradients(compression: int, data: list[Line]) -> list[Line]:
    names = ("NONE", "FP16", "TOPK", "QSGD")
    head = [
        (0, ID),
        (64, u32(1234, "local_step")),
        (68, u32(2, "num_tensors")),
        (72, raw(struct.pack("<I", compression), "compression", f"{compression} {names[compression]}")),
        (76, u32(28, "uncompressed_size")),
    ]
    return at(head, 80) + data


STATUS = at(
    [
        (0, ID),
        (64, u32(1234, "local_step")),
        (68, u32(39_488, "samples_processed")),
        (72, f32(2.5, "current_loss")),
        (76, f32(2.625, "avg_loss")),
        (80, f32(0.75, "samples_per_sec")),
        (84, u64(5_000_000_000, "memory_used_mb")),
        (92, u8(1, "is_training")),
    ],
    93,
)

ERROR = at([(0, u32(6, "error_code")), (4, text("the model has 3 tensors, not 2", 256, "message"))], 260)


def frame(code: int, payload: list[Line]) -> list[Line]:
    return header(code, sum(len(data) for data, _, _ in payload)) + payload


FRAMES: dict[str, list[Line]] = {
    "register": frame(0x01, REGISTER),
    "register-ack": frame(0x02, REGISTER_ACK),
    "register-ack-refused": frame(0x02, REGISTER_REFUSED),
    "deregister": frame(0x03, [ID]),
    "heartbeat": frame(0x10, HEARTBEAT),
    "heartbeat-first": frame(0x10, HEARTBEAT_FIRST),
    "heartbeat-ack": frame(0x11, []),
    "weights-req": frame(0x20, []),
    "weights-meta": frame(0x22, meta(2, EMB, SCALE)),
    "weights": frame(0x21, TENSORS_NONE),
    "gradients-none": frame(0x30, gradients(0, TENSORS_NONE)),
    "gradients-fp16": frame(0x30, gradients(1, TENSORS_FP16)),
    "gradients-topk": frame(0x30, gradients(2, TENSORS_TOPK)),
    "gradients-qsgd": frame(0x30, gradients(3, TENSORS_QSGD)),
    "gradients-ack": frame(0x31, []),
    "start": frame(0x40, []),
    "sync": frame(0x45, []),
    "checkpoint": frame(0x46, []),
    "shutdown": frame(0x47, []),
    "pause": frame(0x48, []),
    "resume": frame(0x49, []),
    "status-req": frame(0x50, []),
    "status": frame(0x51, STATUS),
    "error": frame(0xFF, ERROR),
}

TENSOR_DATA: dict[str, list[Line]] = {
    "tensors-none": TENSORS_NONE,
    "tensors-fp16": TENSORS_FP16,
    "tensors-topk": TENSORS_TOPK,
    "tensors-qsgd": TENSORS_QSGD,
    "tensors-qsgd-255-levels": TENSORS_QSGD_255,
}


def replaced(lines: list[Line], field: str, line: Line) -> list[Line]:
    """The lines with the first one of that field replaced."""
    i = [name for _, name, _ in lines].index(field)
    return [*lines[:i], line, *lines[i + 1 :]]


# name: (error code, state before it, receiver, lines)
NEW, REGISTERED, META_SEEN = "connected", "registered", "weights due"
BAD: dict[str, tuple[str, str, str, list[Line]]] = {
    "bad-magic": ("BAD_FRAME", NEW, "coordinator", [raw(b"GET / HTTP/1.1\r\n\r\n", "magic", "not ours")]),
    "bad-magic-big-endian": (
        "BAD_FRAME",
        NEW,
        "coordinator",
        replaced(frame(0x01, REGISTER), "magic", raw(b"FDTC", "magic", "in the wrong byte order")),
    ),
    "bad-type": ("BAD_FRAME", NEW, "coordinator", header(0x0A, 0)),
    "bad-length-over-limit": ("TOO_LARGE", REGISTERED, "coordinator", header(0x30, 268_435_448)),
    "bad-length-4-gib": ("TOO_LARGE", REGISTERED, "coordinator", header(0x30, 0xFFFFFFFF)),
    "bad-register-short": ("MALFORMED", NEW, "coordinator", header(0x01, 84) + REGISTER[:-1]),
    "bad-ack-not-empty": ("MALFORMED", REGISTERED, "worker", [*header(0x11, 1), raw(b"\0", "payload", "none exists")]),
    "bad-gradients-before-register": (
        "ILLEGAL_STATE",
        NEW,
        "coordinator",
        frame(0x30, gradients(0, TENSORS_NONE)),
    ),
    "bad-weights-before-meta": ("ILLEGAL_STATE", REGISTERED, "worker", frame(0x21, TENSORS_NONE)),
    "bad-meta-twice": ("ILLEGAL_STATE", META_SEEN, "worker", frame(0x22, meta(2, EMB, SCALE))),
    "bad-weights-too-short": ("MALFORMED", META_SEEN, "worker", header(0x21, 24) + TENSORS_NONE[:1]),
    "bad-direction": ("ILLEGAL_STATE", REGISTERED, "coordinator", frame(0x48, [])),
    "bad-profile": (
        "MALFORMED",
        NEW,
        "coordinator",
        frame(0x01, replaced(REGISTER, "profile", u32(12, "profile"))),
    ),
    "bad-profile-not-version-1": (
        "MALFORMED",
        NEW,
        "coordinator",
        frame(0x01, replaced(REGISTER, "profile", u32(10, "profile"))),
    ),
    "bad-worker-id-empty": (
        "MALFORMED",
        NEW,
        "coordinator",
        frame(0x01, replaced(REGISTER, "worker_id", text("", 64, "worker_id"))),
    ),
    "bad-worker-id-after-nul": (
        "MALFORMED",
        NEW,
        "coordinator",
        frame(0x01, replaced(REGISTER, "worker_id", raw(b"pi\0x" + bytes(60), "worker_id", "text after NUL"))),
    ),
    "bad-worker-id-utf8": (
        "MALFORMED",
        NEW,
        "coordinator",
        frame(0x01, replaced(REGISTER, "worker_id", raw(b"\xff" + bytes(63), "worker_id", "not UTF-8"))),
    ),
    "bad-bool": (
        "MALFORMED",
        REGISTERED,
        "worker",
        frame(0x02, replaced(REGISTER_ACK, "accepted", u8(2, "accepted"))),
    ),
    "bad-compression": (
        "MALFORMED",
        REGISTERED,
        "worker",
        frame(0x02, replaced(REGISTER_ACK, "compression", u32(4, "compression"))),
    ),
    "bad-topk-ratio-nan": (
        "MALFORMED",
        REGISTERED,
        "worker",
        frame(0x02, replaced(REGISTER_ACK, "topk_ratio", raw(b"\0\0\xc0\x7f", "topk_ratio", "nan"))),
    ),
    "bad-learning-rate": (
        "MALFORMED",
        REGISTERED,
        "worker",
        frame(0x22, replaced(meta(1, SCALE), "learning_rate", raw(b"\0\0\x80\x7f", "learning_rate", "inf"))),
    ),
    "bad-speed-negative": (
        "MALFORMED",
        REGISTERED,
        "coordinator",
        frame(0x10, replaced(HEARTBEAT, "samples_per_sec", f32(-1.0, "samples_per_sec"))),
    ),
    "bad-meta-no-tensors": ("MALFORMED", REGISTERED, "worker", frame(0x22, meta(0))),
    "bad-meta-count": ("MALFORMED", REGISTERED, "worker", frame(0x22, meta(3, EMB, SCALE))),
    "bad-meta-duplicate-name": ("MALFORMED", REGISTERED, "worker", frame(0x22, meta(2, SCALE, SCALE))),
    "bad-meta-empty-name": ("MALFORMED", REGISTERED, "worker", frame(0x22, meta(1, tensor("", (1,), 1)))),
    "bad-meta-ndim": ("MALFORMED", REGISTERED, "worker", frame(0x22, meta(1, tensor("x", (2,), 2, ndim=9)))),
    "bad-meta-numel": ("MALFORMED", REGISTERED, "worker", frame(0x22, meta(1, tensor("x", (2, 3), 7)))),
    "bad-meta-zero-dimension": ("MALFORMED", REGISTERED, "worker", frame(0x22, meta(1, tensor("x", (0,), 0)))),
    "bad-meta-unused-shape": ("MALFORMED", REGISTERED, "worker", frame(0x22, meta(1, tensor("x", (2, 3), 2, ndim=1)))),
    "bad-meta-dtype": ("MALFORMED", REGISTERED, "worker", frame(0x22, meta(1, tensor("x", (2,), 2, dtype=1)))),
    "bad-meta-too-large": (
        "TOO_LARGE",
        REGISTERED,
        "worker",
        frame(0x22, meta(1, tensor("emb.weight", (65_536, 2048), 134_217_728))),
    ),
    "bad-meta-overflow": (
        "MALFORMED",
        REGISTERED,
        "worker",
        frame(0x22, meta(1, tensor("x", (1 << 32, 1 << 32), 0))),
    ),
}

# name: (compression, lines), for the model of two tensors (emb.weight [2, 3], scale []); all are MALFORMED.
BAD_TENSOR_DATA: dict[str, tuple[str, list[Line]]] = {
    "bad-tensors-none-short": ("NONE", TENSORS_NONE[:1]),
    "bad-tensors-fp16-long": ("FP16", [*TENSORS_FP16, raw(b"\0", "more", "a byte too many")]),
    "bad-tensors-topk-none": ("TOPK", [u32(0, "emb.weight, k"), *TENSORS_TOPK[3:]]),
    "bad-tensors-topk-k": ("TOPK", replaced(TENSORS_TOPK, "emb.weight, k", u32(7, "emb.weight, k"))),
    "bad-tensors-topk-huge-k": ("TOPK", replaced(TENSORS_TOPK, "emb.weight, k", u32(0xFFFFFFFF, "emb.weight, k"))),
    "bad-tensors-topk-order": (
        "TOPK",
        replaced(TENSORS_TOPK, "indices", raw(struct.pack("<2I", 4, 1), "indices", "4 1")),
    ),
    "bad-tensors-topk-twice": (
        "TOPK",
        replaced(TENSORS_TOPK, "indices", raw(struct.pack("<2I", 4, 4), "indices", "4 4")),
    ),
    "bad-tensors-topk-range": (
        "TOPK",
        replaced(TENSORS_TOPK, "indices", raw(struct.pack("<2I", 1, 6), "indices", "1 6")),
    ),
    "bad-tensors-topk-long": ("TOPK", [*TENSORS_TOPK, u32(0, "more")]),
    "bad-tensors-topk-short": ("TOPK", TENSORS_TOPK[:-1]),
    "bad-tensors-qsgd-levels": ("QSGD", replaced(TENSORS_QSGD, "emb.weight, levels", u8(0, "emb.weight, levels"))),
    "bad-tensors-qsgd-level": (
        "QSGD",
        replaced(TENSORS_QSGD, "1 code of 5 bits", raw(codes(5, 28), "1 code of 5 bits", "+14 of 13")),
    ),
    "bad-tensors-qsgd-padding": (
        "QSGD",
        replaced(TENSORS_QSGD, "1 code of 5 bits", raw(b"\x3b", "1 code of 5 bits", "-13, padding not zero")),
    ),
    "bad-tensors-qsgd-norm-nan": ("QSGD", replaced(TENSORS_QSGD, "norm", raw(b"\0\0\xc0\x7f", "norm", "nan"))),
    "bad-tensors-qsgd-norm-negative": ("QSGD", replaced(TENSORS_QSGD, "norm", f32(-13.0, "norm"))),
    "bad-tensors-qsgd-short": ("QSGD", TENSORS_QSGD[:-1]),
}


def render(title: str, lines: list[Line], *comments: str) -> str:
    head = [f"# {title}", *(f"# {comment}" for comment in comments)]
    return "\n".join(head + [f"{data.hex()} | {field} | {value}" for data, field, value in lines]) + "\n"


def files() -> dict[str, str]:
    """Every file's name and content."""
    model = "model: emb.weight [2, 3], scale []"
    made = {name: render(f"frame {name}", lines) for name, lines in FRAMES.items()}
    for name, lines in TENSOR_DATA.items():
        made[name] = render(f"tensor data {name}", lines, "model: x [9]" if "255" in name else model)
    for name, (error, state, receiver, lines) in BAD.items():
        made[name] = render(f"frame {name}", lines, f"error: {error}", f"state: {state}", f"receiver: {receiver}")
    for name, (compression, lines) in BAD_TENSOR_DATA.items():
        made[name] = render(f"tensor data {name}", lines, "error: MALFORMED", f"compression: {compression}", model)
    return {f"{name}.txt": content for name, content in made.items()}


if __name__ == "__main__":
    for name, content in files().items():
        (VECTORS / name).write_text(content, encoding="utf-8")
