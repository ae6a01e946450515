"""What a message may hold, and that it goes over the wire unchanged."""

import math
import struct
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from fdtc_examples import ACCEPTED, BY_TYPE, META, REGISTER, frame
from hypothesis import given
from hypothesis import strategies as st

import fdtc
from fdtc import (
    MAX_MESSAGE,
    MAX_TENSORS,
    Compression,
    Error,
    ErrorCode,
    Gradients,
    Heartbeat,
    LocalProtocolError,
    MessageType,
    Profile,
    RemoteProtocolError,
    Status,
    TensorSpec,
    Weights,
    WeightsMeta,
    encode,
)
from fdtc.constants import HEADER_SIZE
from fdtc.messages import LAYOUTS, MESSAGES, PAYLOAD_SIZES, decode_payload


def over_the_wire(message: fdtc.Message) -> fdtc.Message:
    return decode_payload(message.type, memoryview(frame(message))[HEADER_SIZE:])


@given(st.one_of(*BY_TYPE.values()))
def test_a_message_survives_the_wire(message: fdtc.Message) -> None:
    received = over_the_wire(message)
    assert received == message
    assert frame(received) == frame(message)


def test_every_type_has_one_message_class() -> None:
    assert set(MESSAGES) == set(MessageType) == set(BY_TYPE)


# The offsets of the specification, written out once more.
OFFSETS = {
    MessageType.REGISTER: {
        "worker_id": 0, "protocol_version": 64, "profile": 65, "num_cores": 69, "memory_mb": 73,
        "suggested_batch_size": 81,
    },
    MessageType.REGISTER_ACK: {
        "accepted": 0, "assigned_shard": 1, "total_shards": 5, "batch_size": 9, "accumulation_steps": 13,
        "compression": 17, "topk_ratio": 21, "global_step": 25,
    },
    MessageType.DEREGISTER: {"worker_id": 0},
    MessageType.HEARTBEAT: {"worker_id": 0, "local_step": 64, "current_loss": 68, "samples_per_sec": 72},
    MessageType.WEIGHTS_META: {"num_tensors": 0, "global_step": 4, "learning_rate": 8},
    MessageType.GRADIENTS: {
        "worker_id": 0, "local_step": 64, "num_tensors": 68, "compression": 72, "uncompressed_size": 76,
    },
    MessageType.STATUS: {
        "worker_id": 0, "local_step": 64, "samples_processed": 68, "current_loss": 72, "avg_loss": 76,
        "samples_per_sec": 80, "memory_used_mb": 84, "is_training": 92,
    },
    MessageType.ERROR: {"code": 0, "message": 4},
}  # fmt: skip


@pytest.mark.parametrize("type_", MessageType)
def test_structs_have_the_offsets_of_the_specification(type_: MessageType) -> None:
    assert LAYOUTS[type_].offsets() == OFFSETS.get(type_, {})


def test_tensor_data_is_not_copied_when_encoded() -> None:
    weights = np.arange(1000, dtype=np.float32)
    buffers = encode(Weights(memoryview(weights)))
    weights[0] = 5
    assert np.frombuffer(buffers[1], np.float32)[0] == 5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_may_be_any_float(value: float) -> None:
    received = over_the_wire(Heartbeat("w", 1, value, 1.0))
    assert isinstance(received, Heartbeat)
    assert struct.pack("<f", received.current_loss) == struct.pack("<f", value)


@pytest.mark.parametrize("id_", ["x" * 64, "é" * 32, "\U0001f353" * 16])
def test_a_text_may_fill_its_field(id_: str) -> None:
    assert over_the_wire(replace(REGISTER, worker_id=id_)) == replace(REGISTER, worker_id=id_)


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (REGISTER, "worker_id", ""),
        (REGISTER, "worker_id", "x" * 65),
        (REGISTER, "worker_id", "é" * 33),
        (REGISTER, "worker_id", "a\0b"),
        (REGISTER, "worker_id", "\ud800"),
        (REGISTER, "worker_id", b"bytes"),
        (REGISTER, "protocol_version", 256),
        (REGISTER, "protocol_version", -1),
        (REGISTER, "profile", 12),
        (REGISTER, "profile", Profile.RPI5),
        (REGISTER, "num_cores", 1 << 32),
        (REGISTER, "num_cores", 1.5),
        (REGISTER, "num_cores", None),
        (REGISTER, "memory_mb", 1 << 64),
        (ACCEPTED, "accepted", 2),
        (ACCEPTED, "compression", 4),
        (ACCEPTED, "topk_ratio", 1.5),
        (ACCEPTED, "topk_ratio", -0.1),
        (ACCEPTED, "topk_ratio", math.nan),
        (META, "learning_rate", math.inf),
        (META, "learning_rate", math.nan),
        (META, "learning_rate", -1.0),
        (META, "global_step", 1 << 32),
        (META, "tensors", ()),
        (META, "tensors", (TensorSpec("", (1,)),)),
        (META, "tensors", (TensorSpec("x", (1,)), TensorSpec("x", (2,)))),
        (META, "tensors", (TensorSpec("x" * 65, (1,)),)),
        (META, "tensors", (TensorSpec("x", (1,) * 9),)),
        (META, "tensors", (TensorSpec("x", (2, 0)),)),
        (META, "tensors", (TensorSpec("x", (-1, -1)),)),
        (META, "tensors", (TensorSpec("x", (1.5,)),)),
        (META, "tensors", (TensorSpec("x", (1,), dtype=1),)),
        (META, "tensors", (TensorSpec("x", (MAX_MESSAGE // 4,)),)),
        (META, "tensors", tuple(TensorSpec(str(i), ()) for i in range(MAX_TENSORS + 1))),
        (Heartbeat("w", 1, 1.0, 1.0), "current_loss", 1e39),
        (Heartbeat("w", 1, 1.0, 1.0), "samples_per_sec", math.nan),
        (Heartbeat("w", 1, 1.0, 1.0), "samples_per_sec", -1.0),
        (Status("w", 1, 1, 1.0, 1.0, 1.0, 1, True), "is_training", 3),
        (Status("w", 1, 1, 1.0, 1.0, 1.0, 1, True), "samples_per_sec", math.inf),
        (Gradients("w", 1, 1, Compression.NONE, 4, b""), "data", "text"),
        (Gradients("w", 1, 1, Compression.NONE, 4, b""), "data", memoryview(b"abcd")[::2]),
        (Error(1, "x"), "code", -1),
    ],
)
def test_what_may_not_be_read_may_not_be_written(message: Any, field: str, value: Any) -> None:
    encode(message)
    with pytest.raises(LocalProtocolError, match=field if field != "data" else "tensor data"):
        encode(replace(message, **{field: value}))


def test_a_frame_over_the_message_limit_is_not_written() -> None:
    largest = memoryview(bytes(1)).cast("B")
    view = memoryview(np.broadcast_to(np.uint8(0), MAX_MESSAGE))  # not contiguous, so it takes no memory
    assert encode(Weights(largest))
    with pytest.raises(LocalProtocolError):
        encode(Weights(view))
    with pytest.raises(LocalProtocolError, match=str(MAX_MESSAGE)):
        encode(Weights(memoryview(np.zeros(MAX_MESSAGE - HEADER_SIZE + 1, np.uint8))))


def test_the_largest_model_of_version_1_is_announced() -> None:
    numel = (MAX_MESSAGE - HEADER_SIZE) // 4
    assert over_the_wire(WeightsMeta(0, 0.0, (TensorSpec("x", (numel,)),)))
    assert over_the_wire(WeightsMeta(0, 0.0, tuple(TensorSpec(str(i), ()) for i in range(MAX_TENSORS))))


def test_a_profile_of_ours_needs_a_version_of_ours() -> None:
    message = replace(REGISTER, protocol_version=2, profile=Profile.WORKSTATION)
    assert over_the_wire(message) == message


def test_a_strangers_error_code_is_kept_as_a_number() -> None:
    received = over_the_wire(Error(4711, "x"))
    assert received == Error(4711, "x")
    assert over_the_wire(Error(5, "x")).code is ErrorCode.MALFORMED


@pytest.mark.parametrize("text", ["ü" * 200, "x" + "ü" * 200, "\0", "\ud800"])
def test_an_error_text_is_fitted_rather_than_refused(text: str) -> None:
    received = over_the_wire(Error(1, text))
    assert isinstance(received, Error)
    assert len(received.message.encode()) in (1, 255, 256)


def test_integers_of_numpy_are_welcome() -> None:
    assert over_the_wire(replace(REGISTER, num_cores=np.int64(4))) == REGISTER


@given(st.sampled_from(sorted(MessageType)), st.data())
def test_any_payload_of_a_legal_size_is_a_message_or_malformed(type_: MessageType, data: st.DataObject) -> None:
    sizes = PAYLOAD_SIZES[type_]
    size = data.draw(st.sampled_from(sizes[:3]))
    # Mostly zero with some bytes set, which gets further into the rules than noise does.
    payload = bytearray(size)
    for position, value in data.draw(st.lists(st.tuples(st.integers(0, max(size - 1, 0)), st.integers(0, 255)))):
        if size:
            payload[position] = value
    try:
        message = decode_payload(type_, memoryview(payload))
    except RemoteProtocolError as error:
        refusal = error
    else:
        assert len(frame(message)) == HEADER_SIZE + size
        return
    assert refusal.code in (ErrorCode.MALFORMED, ErrorCode.TOO_LARGE)
    assert refusal.message


def test_messages_cannot_be_changed() -> None:
    for cls in MESSAGES.values():
        assert cls.__dataclass_params__.frozen
        assert set(cls.__slots__) == {field.name for field in fields(cls)}


def test_every_public_name_is_listed_once_and_exists() -> None:
    assert len(fdtc.__all__) == len(set(fdtc.__all__))
    assert all(hasattr(fdtc, name) for name in fdtc.__all__)
