"""The connection: any split of the stream, the state table, limits, and whatever a broken peer may send."""

import itertools
import tracemalloc
from collections.abc import Iterable

import numpy as np
import pytest
from fdtc_examples import (
    ACCEPTED,
    BY_TYPE,
    META,
    MODEL,
    REFUSED,
    REGISTER,
    WEIGHTS,
    connection_in,
    frame,
    legal_state,
    sender_of,
)
from hypothesis import given
from hypothesis import strategies as st

from fdtc import (
    HEADER_SIZE,
    MAX_MESSAGE,
    MAX_TENSORS,
    Compression,
    Connection,
    Deregister,
    Error,
    ErrorCode,
    Gradients,
    GradientsAck,
    Heartbeat,
    HeartbeatAck,
    LocalProtocolError,
    Message,
    MessageType,
    Pause,
    Register,
    RemoteProtocolError,
    Role,
    State,
    Status,
    Sync,
    TensorSpec,
    Weights,
    WeightsMeta,
    WeightsRequest,
    encode_tensors,
    max_encoded_size,
)
from fdtc.framing import STAGING_SIZE
from fdtc.messages import MESSAGES, PAYLOAD_SIZES
from fdtc.states import MAY_SEND, TRANSITIONS

PUSH = Gradients("pi-07", 5, 2, Compression.NONE, 28, bytes(WEIGHTS.data))
FROM_WORKER: list[Message] = [
    REGISTER, WeightsRequest(), Heartbeat("pi-07", 0, 1.0, 1.0), PUSH, REGISTER, PUSH,
    Status("pi-07", 6, 7, 1.0, 1.0, 1.0, 100, True), Deregister("pi-07"),
]  # fmt: skip
FROM_COORDINATOR: list[Message] = [
    ACCEPTED, META, HeartbeatAck(), WEIGHTS, GradientsAck(), Sync(), Pause(), META, WEIGHTS, Error(9, "over"),
]  # fmt: skip


def kept(message: Message) -> Message:
    """The message with its data copied, since the connection will use the memory again."""
    if isinstance(message, Weights):
        return Weights(bytes(message.data))
    if isinstance(message, Gradients):
        return Gradients(message.worker_id, message.local_step, message.num_tensors, message.compression,
                         message.uncompressed_size, bytes(message.data))  # fmt: skip
    return message


def drain(connection: Connection) -> list[Message]:
    return [kept(message) for message in iter(connection.next_message, None)]


def receive(connection: Connection, stream: bytes, sizes: Iterable[int]) -> list[Message]:
    """Plays a socket: fills what get_buffer offers, at most so many bytes at a time."""
    messages = []
    rest = memoryview(stream)
    for size in sizes:
        if not rest:
            break
        buffer = connection.get_buffer()
        n = min(size, len(buffer), len(rest))
        buffer[:n] = rest[:n]
        connection.received(n)
        rest = rest[n:]
        messages += drain(connection)
    assert not rest
    return messages


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def pipelined(role: Role) -> tuple[Connection, bytes, list[Message]]:
    """A connection, a long stream for it, and what must come out of it."""
    if role is Role.WORKER:
        connection = connection_in(State.REGISTERING, role)
        messages = FROM_COORDINATOR
    else:
        connection = connection_in(State.REGISTERED, role)
        messages = FROM_WORKER
    return connection, b"".join(frame(message) for message in messages), messages


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("size", [1, 2, 7, 9, 64, 100, 1 << 20])
def test_messages_come_out_whatever_the_size_of_the_feeds(role: Role, size: int) -> None:
    connection, stream, messages = pipelined(role)
    out = []
    for start in range(0, len(stream), size):
        connection.feed(stream[start : start + size])
        out += drain(connection)
    assert out == messages


@pytest.mark.parametrize("role", Role)
@given(cuts=st.lists(st.integers(0, 10_000)), sizes=st.lists(st.integers(1, 200), min_size=1))
def test_messages_come_out_at_any_split(role: Role, cuts: list[int], sizes: list[int]) -> None:
    connection, stream, messages = pipelined(role)
    for piece in pieces(stream, cuts):
        connection.feed(piece)
    assert drain(connection) == messages
    connection, stream, messages = pipelined(role)
    assert receive(connection, stream, (sizes[i % len(sizes)] for i in range(len(stream)))) == messages


@given(st.sampled_from(sorted(MessageType)), st.data())
def test_any_message_round_trips_at_any_split(type_: MessageType, data: st.DataObject) -> None:
    message = data.draw(BY_TYPE[type_])
    sender = sender_of(type_)
    connection = connection_in(legal_state(type_, sender), sender.peer)
    if isinstance(message, Weights):  # must be what WEIGHTS_META announced
        message = Weights(np.frombuffer(data.draw(st.binary(min_size=28, max_size=28)), np.uint8).tobytes())
    for piece in pieces(frame(message), data.draw(st.lists(st.integers(0, 10_000), max_size=5))):
        connection.feed(piece)
    assert drain(connection) == [message]


def test_large_data_is_received_in_place_and_its_memory_is_used_again() -> None:
    model = (TensorSpec("x", (1 << 20,)),)
    gradient = np.arange(1 << 20, dtype=np.float32)
    worker, coordinator = (
        connection_in(State.REGISTERED, Role.WORKER),
        connection_in(State.REGISTERED, Role.COORDINATOR),
    )
    addresses = set()
    for step in range(3):
        push = Gradients(
            "w", step, 1, Compression.NONE, gradient.nbytes, encode_tensors(gradient, model, Compression.NONE)
        )
        stream = memoryview(b"".join(worker.send(push)))
        position, calls = 0, 0
        while (message := coordinator.next_message()) is None:
            buffer = coordinator.get_buffer()
            n = min(len(buffer), len(stream) - position)
            buffer[:n] = stream[position : position + n]
            coordinator.received(n)
            position, calls = position + n, calls + 1
        assert isinstance(message, Gradients)
        assert calls == 2  # what fits in staging, then all the rest in one piece
        values = np.frombuffer(message.data, np.float32)
        assert values.flags.aligned
        np.testing.assert_array_equal(values, gradient)
        addresses.add(values.__array_interface__["data"][0])
    assert len(addresses) == 1


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", State)
def test_the_state_table_is_kept_by_senders(role: Role, state: State) -> None:
    for type_ in MessageType:
        connection = connection_in(state, role)
        message = example(type_)
        if type_ in MAY_SEND[role][state]:
            if state is not State.LEAVING or type_ is not MessageType.WEIGHTS:  # none was announced there
                assert connection.send(message)
                assert connection.state is TRANSITIONS.get((state, type_), state)
        else:
            with pytest.raises(LocalProtocolError, match=type_.name):
                connection.send(message)
            assert connection.state is state


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", [state for state in State if state is not State.FAILED])
def test_the_state_table_is_demanded_of_peers(role: Role, state: State) -> None:
    for type_ in MessageType:
        connection = connection_in(state, role)
        message = example(type_)
        connection.feed(frame(message))
        if type_ not in MAY_SEND[role.peer][state]:
            with pytest.raises(RemoteProtocolError) as caught:
                connection.next_message()
            assert caught.value.code is ErrorCode.ILLEGAL_STATE
            assert type_.name in caught.value.message
        elif state is not State.LEAVING or type_ is not MessageType.WEIGHTS:
            assert kept(connection.next_message()) == message
            assert connection.state is TRANSITIONS.get((state, type_), state)


def example(type_: MessageType) -> Message:
    given_ones = {message.type: message for message in (*FROM_WORKER, *FROM_COORDINATOR)}
    return given_ones.get(type_) or MESSAGES[type_]()  # the rest are empty


def test_control_and_acknowledgements_may_come_between_meta_and_weights() -> None:
    connection = connection_in(State.WEIGHTS_DUE, Role.WORKER)
    for message in (Pause(), Sync(), GradientsAck(), HeartbeatAck(), ACCEPTED, WEIGHTS):
        connection.feed(frame(message))
    assert len(drain(connection)) == 6
    assert connection.state is State.REGISTERED


@pytest.mark.parametrize("role", Role)
def test_a_refused_worker_may_register_again(role: Role) -> None:
    connection = connection_in(State.REGISTERING, role)
    for sender, message in ((Role.COORDINATOR, REFUSED), (Role.WORKER, REGISTER), (Role.COORDINATOR, ACCEPTED)):
        if sender is role:
            connection.send(message)
        else:
            connection.feed(frame(message))
            connection.next_message()
        assert (connection.state is State.CONNECTED) == (message is REFUSED)
    assert connection.state is State.REGISTERED


def test_a_worker_whose_next_shard_is_refused_stays_registered() -> None:
    connection = connection_in(State.REGISTERED, Role.COORDINATOR)
    connection.feed(frame(REGISTER) + frame(PUSH))
    assert connection.next_message() == REGISTER
    connection.send(REFUSED)
    assert isinstance(connection.next_message(), Gradients)


def test_a_peer_may_send_on_before_its_registration_is_answered() -> None:
    connection = Connection(Role.COORDINATOR)
    connection.feed(frame(REGISTER) + frame(WeightsRequest()) + frame(PUSH))
    assert drain(connection) == [REGISTER, WeightsRequest(), PUSH]
    connection.send(ACCEPTED)
    assert connection.state is State.REGISTERED


def test_weights_must_have_the_announced_size() -> None:
    sender = connection_in(State.WEIGHTS_DUE, Role.COORDINATOR)
    with pytest.raises(LocalProtocolError, match="announced 28"):
        sender.send(Weights(bytes(24)))
    assert sender.state is State.WEIGHTS_DUE
    receiver = connection_in(State.WEIGHTS_DUE, Role.WORKER)
    receiver.feed(frame(Weights(bytes(32)))[:HEADER_SIZE])
    with pytest.raises(RemoteProtocolError, match="WEIGHTS"):
        receiver.next_message()


def test_a_worker_that_leaves_still_understands_what_was_under_way() -> None:
    worker = connection_in(State.LEAVING, Role.WORKER)
    worker.feed(frame(GradientsAck()) + frame(META) + frame(WEIGHTS))
    assert drain(worker) == [GradientsAck(), META, WEIGHTS]
    with pytest.raises(LocalProtocolError):
        worker.send(WeightsRequest())
    other = connection_in(State.LEAVING, Role.WORKER)
    other.feed(frame(WEIGHTS))
    with pytest.raises(RemoteProtocolError):  # nothing had announced it
        other.next_message()


def test_nothing_is_read_after_an_error_and_only_an_error_is_said() -> None:
    connection = connection_in(State.REGISTERED, Role.COORDINATOR)
    connection.feed(b"x" * HEADER_SIZE + frame(PUSH))
    for _ in range(3):
        with pytest.raises(RemoteProtocolError, match="magic"):
            connection.next_message()
    with pytest.raises(LocalProtocolError):
        connection.send(Pause())
    assert connection.send(Error(ErrorCode.BAD_FRAME, "bad"))
    assert connection.state is State.CLOSED
    with pytest.raises(LocalProtocolError):
        connection.send(Error(ErrorCode.BAD_FRAME, "bad"))


def test_a_limit_that_the_owner_lowers_is_kept_before_memory_is_taken() -> None:
    connection = connection_in(State.REGISTERED, Role.COORDINATOR)
    connection.limits[MessageType.GRADIENTS] = 80 + max_encoded_size(MODEL, Compression.NONE)
    connection.feed(frame(PUSH))
    assert drain(connection) == [PUSH]
    connection.feed(frame(Gradients("w", 1, 2, Compression.NONE, 28, bytes(29)))[:HEADER_SIZE])
    with pytest.raises(RemoteProtocolError) as caught:
        connection.next_message()
    assert caught.value.code is ErrorCode.TOO_LARGE


def test_default_limits_are_those_of_the_message() -> None:
    limits = Connection(Role.WORKER).limits
    assert limits[MessageType.GRADIENTS] == MAX_MESSAGE - HEADER_SIZE
    assert limits[MessageType.REGISTER] == 85
    assert set(limits) == set(MessageType)


def test_received_bytes_must_be_taken_out_before_more_are_received() -> None:
    connection = connection_in(State.REGISTERED, Role.COORDINATOR)
    connection.feed(frame(WeightsRequest()))
    with pytest.raises(LocalProtocolError):
        connection.get_buffer()
    assert drain(connection) == [WeightsRequest()]
    count = 0
    while count < STAGING_SIZE:
        buffer = connection.get_buffer()
        n = min(HEADER_SIZE, len(buffer))
        buffer[:n] = frame(WeightsRequest())[:n]
        connection.received(n)
        count += n
    with pytest.raises(LocalProtocolError):
        connection.get_buffer()
    assert len(drain(connection)) == STAGING_SIZE // HEADER_SIZE
    assert connection.get_buffer()


def test_more_cannot_be_received_than_there_was_room_for() -> None:
    connection = Connection(Role.COORDINATOR)
    with pytest.raises(LocalProtocolError):
        connection.received(len(connection.get_buffer()) + 1)


def test_what_is_fed_may_be_changed_afterwards() -> None:
    connection = Connection(Role.COORDINATOR)
    data = bytearray(frame(REGISTER))
    connection.feed(data)
    data[:] = bytes(len(data))
    assert connection.next_message() == REGISTER


def test_a_list_of_tensors_larger_than_staging_comes_through() -> None:
    message = WeightsMeta(1, 0.5, tuple(TensorSpec(f"blocks.{i}.w", (4, i + 1)) for i in range(2000)))
    connection = connection_in(State.REGISTERED, Role.WORKER)
    stream = frame(message) + frame(Pause())
    assert receive(connection, stream, [1000] * (len(stream) // 1000 + 10)) == [message, Pause()]


# What a broken peer may send ---------------------------------------------------------------------------------


def survive(connection: Connection, stream: bytes) -> list[Message] | RemoteProtocolError:
    """Messages, or the typed error; anything else fails the test."""
    connection.feed(stream)
    try:
        return drain(connection)
    except RemoteProtocolError as error:
        assert connection.state in (State.FAILED, State.CLOSED)
        return error


@pytest.mark.parametrize("role", Role)
def test_any_corrupted_byte_is_a_typed_error_or_a_different_message(role: Role) -> None:
    """Every byte of a stream with every kind of message, each with three different damages."""
    _, stream, messages = pipelined(role)
    for position in range(len(stream)):
        for damage in (0x01, 0x80, 0xFF):
            connection, _, _ = pipelined(role)
            for type_ in (MessageType.GRADIENTS, MessageType.WEIGHTS):
                connection.limits[type_] = 1 << 16
            damaged = bytearray(stream)
            damaged[position] ^= damage
            result = survive(connection, bytes(damaged))
            assert result != messages


@pytest.mark.parametrize("role", Role)
def test_a_stream_cut_anywhere_gives_a_prefix_and_waits(role: Role) -> None:
    _, stream, messages = pipelined(role)
    for length in range(len(stream)):
        connection, _, _ = pipelined(role)
        result = survive(connection, stream[:length])
        assert isinstance(result, list)
        assert result == messages[: len(result)]
        assert len(result) < len(messages)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", [state for state in State if state is not State.FAILED])
@given(garbage=st.binary(max_size=400), header=st.booleans(), type_=st.sampled_from(sorted(MessageType)))
def test_garbage_is_survived(role: Role, state: State, garbage: bytes, header: bool, type_: MessageType) -> None:
    connection = connection_in(state, role)
    before = connection.state
    if header:  # noise with a good header in front of it gets further in
        length = max(PAYLOAD_SIZES[type_][0], min(len(garbage), PAYLOAD_SIZES[type_][-1]))
        garbage = frame(Pause())[:4] + bytes([type_]) + length.to_bytes(4, "little") + garbage
    result = survive(connection, garbage)
    if isinstance(result, RemoteProtocolError):
        assert isinstance(result.code, ErrorCode)
    elif not result:
        assert connection.state is before


@given(length=st.integers(0, 2**32 - 1), type_=st.integers(0, 255), state=st.sampled_from(
    [State.CONNECTED, State.REGISTERED, State.WEIGHTS_DUE]), role=st.sampled_from(Role))  # fmt: skip
def test_no_header_makes_us_take_more_memory_than_the_limit(length: int, type_: int, state: State, role: Role) -> None:
    connection = connection_in(state, role)
    limit = 1 << 20
    connection.limits = {type_: min(old, limit) for type_, old in connection.limits.items()}
    tracemalloc.start()
    try:
        survive(connection, frame(Pause())[:4] + bytes([type_]) + length.to_bytes(4, "little"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit + (1 << 17)


def test_the_worst_list_of_tensors_takes_bounded_memory() -> None:
    """The longest WEIGHTS_META that is accepted at all, good up to its last byte."""
    tensors = tuple(TensorSpec(f"{i:064}", (1,) * 8) for i in range(MAX_TENSORS))
    stream = bytearray(frame(WeightsMeta(0, 0.0, tensors)))
    stream[-1] = 1  # a dtype that does not exist
    connection = connection_in(State.REGISTERED, Role.WORKER)
    assert len(stream) == HEADER_SIZE + connection.limits[MessageType.WEIGHTS_META]
    connection.feed(stream)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="dtype"):
            connection.next_message()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_list_of_tensors_beyond_our_limit_is_refused_by_its_header() -> None:
    connection = connection_in(State.REGISTERED, Role.WORKER)
    length = 12 + 141 * (MAX_TENSORS + 1)
    connection.feed(frame(META)[:5] + length.to_bytes(4, "little"))
    with pytest.raises(RemoteProtocolError) as caught:
        connection.next_message()
    assert caught.value.code is ErrorCode.TOO_LARGE


def test_registration_of_an_unknown_version_is_left_to_the_owner() -> None:
    connection = Connection(Role.COORDINATOR)
    message = Register("w", 9, REGISTER.profile, 1, 1, 1)
    connection.feed(frame(message))
    assert connection.next_message() == message
    assert connection.send(Error(ErrorCode.UNSUPPORTED_VERSION, "only 1"))
