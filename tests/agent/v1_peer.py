"""Both sides of FDTC version 1, written from the wire specification alone: sockets, structs, nothing of ours.

Blocking and simple on purpose: what a person would write first, in any language.
"""

import socket
import struct
from collections import deque
from types import TracebackType
from typing import Self

MAGIC = 0x46445443
REGISTER, REGISTER_ACK, DEREGISTER = 0x01, 0x02, 0x03
HEARTBEAT, HEARTBEAT_ACK = 0x10, 0x11
WEIGHTS_REQ, WEIGHTS, WEIGHTS_META = 0x20, 0x21, 0x22
GRADIENTS, GRADIENTS_ACK = 0x30, 0x31
START, SYNC, CHECKPOINT, SHUTDOWN, PAUSE, RESUME = 0x40, 0x45, 0x46, 0x47, 0x48, 0x49
STATUS_REQ, STATUS = 0x50, 0x51
ERROR = 0xFF
NONE, FP16, TOPK, QSGD = range(4)
PI_3 = 0  # the first profile
BATCH = 8  # that our coordinator here assigns

HEADER = struct.Struct("<IBI")
REGISTER_BODY = struct.Struct("<64sBIIQI")
REGISTER_ACK_BODY = struct.Struct("<?IIIIIfI")
HEARTBEAT_BODY = struct.Struct("<64sIff")
META_HEAD = struct.Struct("<IIf")
META_TENSOR = struct.Struct("<64sI8QQB")
GRADIENTS_HEAD = struct.Struct("<64sIIII")
STATUS_BODY = struct.Struct("<64sIIfffQ?")
ERROR_BODY = struct.Struct("<I256s")


def frame(type_: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(MAGIC, type_, len(payload)) + payload


def register_frame(worker_id: str, batch_size: int = 0, version: int = 1) -> bytes:
    return frame(REGISTER, REGISTER_BODY.pack(worker_id.encode(), version, PI_3, 4, 1024, batch_size))


class Ended(Exception):  # noqa: N818 - an event, not a fault
    """The other side has closed the connection."""


class Link:
    """Whole frames over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.kept: deque[tuple[int, bytes]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.socket.close()

    def send(self, type_: int, payload: bytes = b"") -> None:
        self.socket.sendall(frame(type_, payload))

    def receive(self) -> tuple[int, bytes]:
        if self.kept:
            return self.kept.popleft()
        magic, type_, size = HEADER.unpack(self._exactly(HEADER.size))
        assert magic == MAGIC
        return type_, self._exactly(size)

    def expect(self, wanted: int) -> bytes:
        """Receive until a message of a type comes, return its payload, and keep those before it."""
        others = []
        while True:
            type_, payload = self.receive()
            if type_ == wanted:
                self.kept.extendleft(reversed(others))
                return payload
            assert type_ != ERROR, error_text(payload)
            others.append((type_, payload))

    def farewell(self) -> str:
        """Receive until the other side closes; return the text of its ERROR."""
        text = ""
        try:
            while True:
                type_, payload = self.receive()
                if type_ == ERROR:
                    text = error_text(payload)
        except (Ended, ConnectionResetError):
            return text

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise Ended
            data += part
        return bytes(data)


class Worker(Link):
    """A version-1 worker's side."""

    def __init__(self, port: int, worker_id: str, *, batch_size: int = 0, register: bool = True) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", port), timeout=30))
        self.worker_id = worker_id
        self.id = worker_id.encode()
        self.local_step = 0
        if register:
            self.socket.sendall(register_frame(worker_id, batch_size))
            fields = REGISTER_ACK_BODY.unpack(self.expect(REGISTER_ACK))
            self.accepted, self.shard, self.total_shards, self.batch_size, self.accumulation = fields[:5]
            self.compression, self.topk_ratio, self.global_step = fields[5:]

    def pull(self) -> tuple[int, float, dict[str, tuple[int, ...]], list[float]]:
        """Fetch the weights: version, learning rate, shapes by name, and all values in a row."""
        self.send(WEIGHTS_REQ)
        meta = self.expect(WEIGHTS_META)
        count, version, rate = META_HEAD.unpack_from(meta)
        shapes = {}
        for i in range(count):
            name, ndim, *rest = META_TENSOR.unpack_from(meta, META_HEAD.size + i * META_TENSOR.size)
            shapes[name.rstrip(b"\0").decode()] = tuple(rest[:ndim])
        data = self.expect(WEIGHTS)
        return version, rate, shapes, list(struct.unpack(f"<{len(data) // 4}f", data))

    def gradients_frame(self, data: bytes, sizes: list[int], compression: int = NONE) -> bytes:
        self.local_step += 1
        head = GRADIENTS_HEAD.pack(self.id, self.local_step, len(sizes), compression, 4 * sum(sizes))
        return frame(GRADIENTS, head + data)

    def push(self, values: list[list[float]], compression: int = NONE) -> None:
        """Send one gradient, a list of values for each tensor, and await its receipt."""
        encode = (none, fp16, topk, qsgd)[compression]
        data = b"".join(encode(tensor) for tensor in values)
        self.socket.sendall(self.gradients_frame(data, [len(tensor) for tensor in values], compression))
        self.expect(GRADIENTS_ACK)

    def heartbeat(self, loss: float, samples_per_sec: float = 1.0) -> None:
        self.send(HEARTBEAT, HEARTBEAT_BODY.pack(self.id, self.local_step, loss, samples_per_sec))
        self.expect(HEARTBEAT_ACK)

    def status(self, samples: int) -> None:
        self.send(STATUS, STATUS_BODY.pack(self.id, self.local_step, samples, 1.0, 1.0, 2.0, 77, True))

    def deregister(self) -> None:
        self.send(DEREGISTER, self.id.ljust(64, b"\0"))


class Coordinator(Link):
    """A version-1 coordinator's side, for one worker at a time."""

    def __init__(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.settimeout(30)
        super().__init__(connection)

    def welcome(self, *, shard: int = 0) -> str:
        """Await a REGISTER, accept it and start the worker; return its id."""
        fields = REGISTER_BODY.unpack(self.expect(REGISTER))
        assert fields[1] == 1
        self.acknowledge(shard=shard)
        self.send(START)
        return str(fields[0].rstrip(b"\0").decode())

    def acknowledge(self, *, shard: int) -> None:
        """Accept a REGISTER: this shard of four, and no compression."""
        self.send(REGISTER_ACK, REGISTER_ACK_BODY.pack(True, shard, 4, BATCH, 1, NONE, 0.5, 0))

    def give_weights(self, version: int, tensors: dict[str, list[float]]) -> None:
        """Await a WEIGHTS_REQ and answer it; every tensor has one dimension. A gradient on its way is taken."""
        while (type_ := self.receive()[0]) != WEIGHTS_REQ:
            assert type_ in (GRADIENTS, HEARTBEAT, STATUS), type_
            if type_ == GRADIENTS:
                self.send(GRADIENTS_ACK)
        meta = META_HEAD.pack(len(tensors), version, 0.1)
        for name, values in tensors.items():
            shape = (len(values), *(0,) * 7)
            meta += META_TENSOR.pack(name.encode(), 1, *shape, len(values), 0)
        self.send(WEIGHTS_META, meta)
        self.send(WEIGHTS, b"".join(none(values) for values in tensors.values()))

    def take_gradient(self, sizes: list[int]) -> list[float]:
        """Await an uncompressed GRADIENTS and acknowledge it; return all its values in a row."""
        payload = self.expect(GRADIENTS)
        _, _, count, compression, size = GRADIENTS_HEAD.unpack_from(payload)
        assert (count, compression, size) == (len(sizes), NONE, 4 * sum(sizes))
        self.send(GRADIENTS_ACK)
        return list(struct.unpack_from(f"<{sum(sizes)}f", payload, GRADIENTS_HEAD.size))


def error_text(payload: bytes) -> str:
    return str(ERROR_BODY.unpack(payload)[1].rstrip(b"\0").decode())


def none(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def fp16(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


def topk(values: list[float], ratio: float = 0.5) -> bytes:
    """The largest part of the values with where they are."""
    k = max(1, round(ratio * len(values)))
    indices = sorted(sorted(range(len(values)), key=lambda i: -abs(values[i]))[:k])
    return struct.pack(f"<I{k}I{k}f", k, *indices, *(values[i] for i in indices))


def qsgd(values: list[float]) -> bytes:
    """One level, so that a code is two bits (sign, level), from the lowest bits of the first byte on.

    Exact for a tensor with one value that is not zero.
    """
    norm = sum(value * value for value in values) ** 0.5
    bits = 0
    for i, value in enumerate(values):
        bits |= ((value < 0) | (round(abs(value) / norm) << 1)) << (2 * i)
    return struct.pack("<Bf", 1, norm) + bits.to_bytes((2 * len(values) + 7) // 8, "little")
