"""Frames: the 9-byte header, messages to buffers, and the incremental decoder that finds frames in a stream.

The decoder owns two pieces of memory. Small frames are received many at a time into a staging buffer of fixed
size. Tensor data, and any frame too big for staging, is received straight into its final place: a payload
buffer that is kept and used again, and that grows only after the header has been checked.
"""

import struct
from collections import deque
from collections.abc import Callable

import numpy as np

from fdtc.constants import HEADER_SIZE, MAGIC, MAX_PAYLOAD, MessageType
from fdtc.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from fdtc.messages import Data, Message, encode_payload

STAGING_SIZE = 65_536

_HEADER = struct.Struct("<IBI")
_BULK = frozenset({MessageType.WEIGHTS, MessageType.GRADIENTS})
_TYPES = {int(type_): type_ for type_ in MessageType}


def encode(message: Message) -> list[bytes | memoryview]:
    """One message as the buffers of its frame, in order, for ``socket.sendmsg``. Tensor data is not copied.

    Raises:
        LocalProtocolError: a field's value is not legal, or the frame is over the message limit.
    """
    head, data = encode_payload(message)
    length = len(head) + (len(data) if data is not None else 0)
    if length > MAX_PAYLOAD:
        raise LocalProtocolError(
            f"{message.type.name} of {length + HEADER_SIZE} bytes, the limit is {MAX_PAYLOAD + HEADER_SIZE}"
        )
    start = _HEADER.pack(MAGIC, message.type, length) + head
    return [start, data] if data is not None else [start]


class FrameDecoder:
    """Bytes in, (type, payload) out; holds no opinion on which message may come when."""

    def __init__(self, admit: Callable[[MessageType, int], None]) -> None:
        """`admit` is called with type and payload length before memory is taken; it raises to refuse."""
        self._admit = admit
        self._staging = memoryview(bytearray(STAGING_SIZE))
        self._start = 0  # staged bytes not yet consumed are staging[start:end]
        self._end = 0
        self._payload = memoryview(b"")
        self._filled = 0
        self._header: tuple[MessageType, int] | None = None  # of the frame that is being received
        self._backlog: deque[memoryview] = deque()

    def get_buffer(self) -> memoryview:
        """Where the next received bytes go; never empty. Tell `received` how many there were.

        Raises:
            LocalProtocolError: frames are waiting and must be taken out first.
        """
        target = self._target()
        if self._backlog or not target:
            raise LocalProtocolError("take out what has been received before receiving more")
        return target

    def received(self, n: int) -> None:
        """The first `n` bytes of the last `get_buffer` now hold received bytes."""
        if not 0 <= n <= len(self._target()):
            raise LocalProtocolError(f"{n} bytes cannot have been received into {len(self._target())}")
        if self._awaits_bulk():
            self._filled += n
        else:
            self._end += n

    def feed(self, data: Data) -> None:
        """Takes any number of bytes; they stay where they are until `next_frame` gets to them."""
        if data:
            self._backlog.append(memoryview(bytes(data)))

    def next_frame(self) -> tuple[MessageType, memoryview] | None:
        """The next whole frame, or None: more bytes are needed. The payload is valid until the next call.

        Raises:
            RemoteProtocolError: BAD_FRAME, or whatever `admit` says.
        """
        while (frame := self._take_frame()) is None:
            self._make_room()
            if not self._backlog:
                return None
            self._stage_backlog()
        return frame

    def _take_frame(self) -> tuple[MessageType, memoryview] | None:
        if self._header is None and not self._take_header():
            return None
        assert self._header is not None
        type_, length = self._header
        payload = self._take_bulk(length) if self._awaits_bulk() else self._take_staged(length)
        if payload is None:
            return None
        self._header = None
        return type_, payload

    def _take_header(self) -> bool:
        if self._end - self._start < HEADER_SIZE:
            return False
        magic, code, length = _HEADER.unpack_from(self._staging, self._start)
        if magic != MAGIC:
            raise RemoteProtocolError(ErrorCode.BAD_FRAME, f"magic is {magic:#010x}, not {MAGIC:#010x}")
        if code not in _TYPES:
            raise RemoteProtocolError(ErrorCode.BAD_FRAME, f"message type {code:#04x} is not assigned")
        type_ = _TYPES[code]
        self._admit(type_, length)
        self._start += HEADER_SIZE
        self._header = (type_, length)
        if self._awaits_bulk():
            self._open_payload(length)
        return True

    def _awaits_bulk(self) -> bool:
        return self._header is not None and (self._header[0] in _BULK or self._header[1] > STAGING_SIZE)

    def _open_payload(self, length: int) -> None:
        if len(self._payload) < length:
            self._payload = memoryview(b"")  # let the old one go before the new one comes
            # numpy's memory is not touched here, so a peer that announces much and sends little costs little.
            self._payload = np.empty(length, np.uint8).data
        self._filled = 0

    def _take_bulk(self, length: int) -> memoryview | None:
        if self._start < self._end:  # what arrived together with the header
            n = min(self._end - self._start, length - self._filled)
            self._payload[self._filled : self._filled + n] = self._staging[self._start : self._start + n]
            self._start += n
            self._filled += n
        return self._payload[:length] if self._filled == length else None

    def _take_staged(self, length: int) -> memoryview | None:
        if self._end - self._start < length:
            return None
        payload = self._staging[self._start : self._start + length]
        self._start += length
        return payload

    def _target(self) -> memoryview:
        """Where bytes go now: the rest of the payload that is being received, or free staging."""
        if self._header is not None and self._awaits_bulk():
            return self._payload[self._filled : self._header[1]]
        return self._staging[self._end :]

    def _make_room(self) -> None:
        """Moves the beginning of an unfinished frame to the front, so that the rest of it has room."""
        rest = self._end - self._start
        if self._start:
            self._staging[:rest] = self._staging[self._start : self._end]
            self._start, self._end = 0, rest

    def _stage_backlog(self) -> None:
        chunk = self._backlog.popleft()
        target = self._target()
        n = min(len(chunk), len(target))
        target[:n] = chunk[:n]
        self.received(n)
        if n < len(chunk):
            self._backlog.appendleft(chunk[n:])
