"""What the protocol's tests share: connections brought to a state, and hypothesis strategies for messages."""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from fdtc import (
    Checkpoint,
    Compression,
    Connection,
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
    RemoteProtocolError,
    Resume,
    Role,
    Shutdown,
    Start,
    State,
    Status,
    StatusRequest,
    Sync,
    TensorSpec,
    Weights,
    WeightsMeta,
    WeightsRequest,
    encode,
)
from fdtc.states import MAY_SEND

MODEL = (TensorSpec("emb.weight", (2, 3)), TensorSpec("scale", ()))
REGISTER = Register("pi-07", 1, Profile.RPI4_4G, 4, 3794, 8)
ACCEPTED = RegisterAck(True, 3, 20, 8, 4, Compression.TOPK, 0.125, 70_000)
REFUSED = RegisterAck(False, 0, 0, 0, 0, Compression.NONE, 0.0, 0)
META = WeightsMeta(70_000, 0.0001220703125, MODEL)
WEIGHTS = Weights(np.array([1, -2, 0.5, -0.5, 2, 0, -8], "<f4").tobytes())

_STORY: list[tuple[Role, Message]] = [
    (Role.WORKER, REGISTER),
    (Role.COORDINATOR, ACCEPTED),
    (Role.COORDINATOR, META),
]
_STORY_LENGTH = {
    State.CONNECTED: 0,
    State.REGISTERING: 1,
    State.REGISTERED: 2,
    State.WEIGHTS_DUE: 3,
}


def frame(message: Message) -> bytes:
    """The message's frame in one piece, from a module-level encoder that knows no states."""
    return b"".join(encode(message))


def connection_in(state: State, role: Role) -> Connection:
    """A connection that went through real messages to `state`."""
    connection = Connection(role)
    if state in _STORY_LENGTH:
        story = _STORY[: _STORY_LENGTH[state]]
    elif state is State.LEAVING:
        story = [*_STORY[:2], (Role.WORKER, Deregister("pi-07"))]
    elif state is State.CLOSED:
        story = [(Role.WORKER, Error(1, "x"))]
    else:
        connection.feed(b"not a frame of ours")
        with pytest.raises(RemoteProtocolError):
            connection.next_message()
        return connection
    for sender, message in story:
        if sender is role:
            connection.send(message)
        else:
            connection.feed(frame(message))
            assert connection.next_message() == message
    assert connection.state is state
    return connection


def legal_state(type_: MessageType, sender: Role) -> State:
    """A state in which the sender may send that type."""
    return next(state for state in State if type_ in MAY_SEND[sender][state])


def sender_of(type_: MessageType) -> Role:
    """The side that may send a type; ERROR is either's."""
    return next(role for role in Role if any(type_ in types for types in MAY_SEND[role].values()))


def texts(size: int, *, min_size: int = 1) -> st.SearchStrategy[str]:
    """Texts without NUL whose UTF-8 fits in `size` bytes."""
    characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    return st.text(characters, min_size=min_size, max_size=size).filter(lambda t: len(t.encode()) <= size)


u8, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
losses = st.floats(width=32, allow_nan=False)  # NaN is legal, but equals nothing; it has a test of its own
not_negative = st.floats(0, width=32, allow_infinity=False)
fractions = st.floats(0, 1, width=32)
ids = texts(64)
data = st.binary(max_size=300)


@st.composite
def shapes(draw: Any) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, 6), max_size=8)))


models = st.lists(
    st.builds(TensorSpec, texts(64), shapes()), min_size=1, max_size=5, unique_by=lambda spec: spec.name
).map(tuple)

BY_TYPE: dict[MessageType, st.SearchStrategy[Any]] = {
    MessageType.REGISTER: st.builds(Register, ids, u8, st.sampled_from(Profile), u32, u64, u32).filter(
        lambda m: m.protocol_version > 1 or m.profile <= Profile.UNKNOWN
    ),
    MessageType.REGISTER_ACK: st.builds(
        RegisterAck, st.booleans(), u32, u32, u32, u32, st.sampled_from(Compression), fractions, u32
    ),
    MessageType.DEREGISTER: st.builds(Deregister, ids),
    MessageType.HEARTBEAT: st.builds(Heartbeat, ids, u32, losses, not_negative),
    MessageType.HEARTBEAT_ACK: st.just(HeartbeatAck()),
    MessageType.WEIGHTS_REQ: st.just(WeightsRequest()),
    MessageType.WEIGHTS: st.builds(Weights, data),
    MessageType.WEIGHTS_META: st.builds(WeightsMeta, u32, not_negative, models),
    MessageType.GRADIENTS: st.builds(Gradients, ids, u32, u32, st.sampled_from(Compression), u32, data),
    MessageType.GRADIENTS_ACK: st.just(GradientsAck()),
    MessageType.START: st.just(Start()),
    MessageType.SYNC: st.just(Sync()),
    MessageType.CHECKPOINT: st.just(Checkpoint()),
    MessageType.SHUTDOWN: st.just(Shutdown()),
    MessageType.PAUSE: st.just(Pause()),
    MessageType.RESUME: st.just(Resume()),
    MessageType.STATUS_REQ: st.just(StatusRequest()),
    MessageType.STATUS: st.builds(Status, ids, u32, u32, losses, losses, not_negative, u64, st.booleans()),
    MessageType.ERROR: st.builds(Error, u32, texts(256, min_size=0)),
}
