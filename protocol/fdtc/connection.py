"""One FDTC connection, without the socket: legality by the state table, frames by the decoder.

Receiving::

    n = sock.recv_into(connection.get_buffer())
    connection.received(n)
    while (message := connection.next_message()) is not None:
        ...

Sending::

    sock.sendmsg(connection.send(Heartbeat(...)))  # mind partial writes
"""

from fdtc.constants import MessageType
from fdtc.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from fdtc.framing import FrameDecoder, encode
from fdtc.messages import (
    PAYLOAD_SIZES,
    Data,
    Message,
    RegisterAck,
    Weights,
    WeightsMeta,
    as_bytes,
    decode_payload,
)
from fdtc.states import MAY_SEND, TRANSITIONS, Role, State


class Connection:
    """Both directions of one connection, as seen from one side.

    One thread may send while another receives, as long as each direction has one thread at a time and the
    owner keeps messages that change the state (see `states.TRANSITIONS`) to one of them.

    Attributes:
        role: which side we are.
        state: where we are in the table of `states.py`.
        limits: the largest payload accepted from the peer, by type, in bytes. The owner may lower them, and
            should lower GRADIENTS once the model is known.
    """

    def __init__(self, role: Role) -> None:
        """A new connection on which nothing has been said."""
        self.role = role
        self.state = State.CONNECTED
        self.limits: dict[MessageType, int] = {type_: sizes[-1] for type_, sizes in PAYLOAD_SIZES.items()}
        self._decoder = FrameDecoder(self._admit)
        self._failure: RemoteProtocolError | None = None
        self._weights_size = 0  # of the WEIGHTS that the last WEIGHTS_META announced, bytes

    def send(self, message: Message) -> list[bytes | memoryview]:
        """The buffers to write to the peer, in order. Tensor data is not copied: keep it until it is written.

        Raises:
            LocalProtocolError: not legal in this state or from this side, or a field's value is not legal.
        """
        if message.type not in MAY_SEND[self.role][self.state]:
            raise LocalProtocolError(f"a {self.role.value} cannot send {message.type.name} when {self.state.value}")
        if isinstance(message, Weights) and (size := as_bytes(message.data).nbytes) != self._weights_size:
            raise LocalProtocolError(f"WEIGHTS of {size} bytes, WEIGHTS_META announced {self._weights_size}")
        buffers = encode(message)
        self._advance(message)
        return buffers

    def get_buffer(self) -> memoryview:
        """Where the next received bytes go, for ``socket.recv_into``; never empty.

        Large tensor data is received in its final place. Raises LocalProtocolError if `next_message` has not
        been called until it gave None and no room is left.
        """
        return self._decoder.get_buffer()

    def received(self, n: int) -> None:
        """`n` bytes have been received into the last `get_buffer`."""
        self._decoder.received(n)

    def feed(self, data: Data) -> None:
        """Takes any number of received bytes. `get_buffer` is the way that avoids a copy."""
        self._decoder.feed(data)

    def next_message(self) -> Message | None:
        """The next message from the peer, or None when more bytes are needed.

        The data of Weights and Gradients is a view that is valid until the next call of `next_message`,
        `get_buffer` or `feed`.

        Raises:
            RemoteProtocolError: the peer broke the protocol. Nothing more is read: every later call raises
                again. ``send(Error(error.code, error.message))`` tells the peer.
        """
        if self._failure is not None:
            raise RemoteProtocolError(self._failure.code, self._failure.message)
        try:
            frame = self._decoder.next_frame()
            if frame is None:
                return None
            message = decode_payload(*frame)
        except RemoteProtocolError as error:
            self._failure = error
            if self.state is not State.CLOSED:
                self.state = State.FAILED
            raise
        self._advance(message)
        return message

    def _admit(self, type_: MessageType, length: int) -> None:
        """What a header alone can get wrong, before any memory is taken for its payload."""
        if type_ not in MAY_SEND[self.role.peer][self.state]:
            raise RemoteProtocolError(
                ErrorCode.ILLEGAL_STATE,
                f"{type_.name} from the {self.role.peer.value} is not legal when {self.state.value}",
            )
        sizes = PAYLOAD_SIZES[type_]
        if len(sizes) > 1 and length > self.limits[type_]:  # a struct of one size is just the wrong size
            raise RemoteProtocolError(
                ErrorCode.TOO_LARGE, f"{type_.name} of {length} bytes, the limit is {self.limits[type_]}"
            )
        announced = length == self._weights_size or type_ is not MessageType.WEIGHTS
        if length not in sizes or not announced:
            raise RemoteProtocolError(ErrorCode.MALFORMED, f"{type_.name} cannot be {length} bytes long here")

    def _advance(self, message: Message) -> None:
        if isinstance(message, WeightsMeta):
            self._weights_size = 4 * sum(spec.numel for spec in message.tensors)
        if self.state is State.REGISTERING and isinstance(message, RegisterAck) and not message.accepted:
            self.state = State.CONNECTED
        elif (state := TRANSITIONS.get((self.state, message.type))) is not None:
            self.state = state
