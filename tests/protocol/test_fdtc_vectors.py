"""The published vectors: the files are what the generator makes, and fdtc reads and writes exactly them."""

import math
from pathlib import Path

import make_vectors
import numpy as np
import pytest
from fdtc_examples import MODEL, connection_in, frame, legal_state, sender_of

from fdtc import (
    Checkpoint,
    Compression,
    Deregister,
    Error,
    ErrorCode,
    Gradients,
    GradientsAck,
    Heartbeat,
    HeartbeatAck,
    Message,
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
    decode_tensors,
    encode_tensors,
    encoded_size,
)

VECTORS = Path(__file__).parent / "vectors"
NAMES = sorted(path.stem for path in VECTORS.glob("*.txt"))


def read(name: str) -> bytes:
    lines = (VECTORS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return bytes.fromhex("".join(line.split("|")[0] for line in lines if not line.startswith("#")))


def comments(name: str) -> dict[str, str]:
    lines = (VECTORS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line[2:].split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)


def gradients(compression: Compression, data: str) -> Gradients:
    return Gradients("pi-07", 1234, 2, compression, 28, read(data))


EXPECTED: dict[str, Message] = {
    "register": Register("pi-07", 1, Profile.RPI4_4G, 4, 3794, 8),
    "register-ack": RegisterAck(True, 3, 20, 8, 4, Compression.TOPK, 0.125, 70_000),
    "register-ack-refused": RegisterAck(False, 0, 0, 0, 0, Compression.NONE, 0.0, 0),
    "deregister": Deregister("pi-07"),
    "heartbeat": Heartbeat("pi-07", 1234, 2.5, 0.75),
    "heartbeat-first": Heartbeat("Jürgens Büro-PC", 0, math.nan, 0.0),
    "heartbeat-ack": HeartbeatAck(),
    "weights-req": WeightsRequest(),
    "weights-meta": WeightsMeta(70_000, 0.0001220703125, MODEL),
    "weights": Weights(read("tensors-none")),
    "gradients-none": gradients(Compression.NONE, "tensors-none"),
    "gradients-fp16": gradients(Compression.FP16, "tensors-fp16"),
    "gradients-topk": gradients(Compression.TOPK, "tensors-topk"),
    "gradients-qsgd": gradients(Compression.QSGD, "tensors-qsgd"),
    "gradients-ack": GradientsAck(),
    "start": Start(),
    "sync": Sync(),
    "checkpoint": Checkpoint(),
    "shutdown": Shutdown(),
    "pause": Pause(),
    "resume": Resume(),
    "status-req": StatusRequest(),
    "status": Status("pi-07", 1234, 39_488, 2.5, 2.625, 0.75, 5_000_000_000, True),
    "error": Error(ErrorCode.MODEL_MISMATCH, "the model has 3 tensors, not 2"),
}


def test_the_files_are_what_the_generator_makes() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in VECTORS.glob("*.txt")}
    assert written == make_vectors.files()


def test_every_good_frame_has_an_expected_message() -> None:
    assert {name for name in NAMES if not name.startswith(("bad-", "tensors-"))} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_message_is_encoded_to_its_vector(name: str) -> None:
    assert frame(EXPECTED[name]).hex() == read(name).hex()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_vector_is_decoded_to_its_message(name: str) -> None:
    type_ = EXPECTED[name].type
    sender = sender_of(type_)
    connection = connection_in(legal_state(type_, sender), sender.peer)
    connection.feed(read(name))
    assert repr(comparable(connection.next_message())) == repr(comparable(EXPECTED[name]))
    assert connection.next_message() is None


def comparable(message: Message | None) -> object:
    """For repr, under which NaN equals NaN: the views as bytes."""
    if isinstance(message, Weights):
        return Weights(bytes(message.data))
    if isinstance(message, Gradients):
        return (message.worker_id, message.local_step, message.num_tensors, message.compression,
                message.uncompressed_size, bytes(message.data))  # fmt: skip
    return message


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("bad-") and "tensors-" not in name])
def test_a_bad_frame_is_refused_with_its_code(name: str) -> None:
    expected = comments(name)
    connection = connection_in(State(expected["state"]), Role(expected["receiver"]))
    connection.feed(read(name))
    with pytest.raises(RemoteProtocolError) as caught:
        connection.next_message()
    assert caught.value.code.name == expected["error"]
    assert connection.state is State.FAILED
    connection.send(Error(caught.value.code, caught.value.message))


TENSORS: list[tuple[str, tuple[TensorSpec, ...], Compression, list[float]]] = [
    ("tensors-none", MODEL, Compression.NONE, [1, -2, 0.5, -0.5, 2, 0, -8]),
    ("tensors-fp16", MODEL, Compression.FP16, [1, -2, 0.5, -0.5, 2, 0, -8]),
    ("tensors-topk", MODEL, Compression.TOPK, [0, -2, 0, 0, 2, 0, -8]),
    ("tensors-qsgd", MODEL, Compression.QSGD, [3, 4, 0, 0, -12, 0, -8]),
    (
        "tensors-qsgd-255-levels",
        (TensorSpec("x", (9,)),),
        Compression.QSGD,
        [0, -0.0, 510, -510, 256, -2, 170, 4, 6],
    ),
]


@pytest.mark.parametrize(("name", "specs", "compression", "expected"), TENSORS)
def test_tensor_data_is_decoded_to_its_numbers(
    name: str, specs: tuple[TensorSpec, ...], compression: Compression, expected: list[float]
) -> None:
    np.testing.assert_array_equal(decode_tensors(read(name), specs, compression), np.float32(expected))


@pytest.mark.parametrize(
    ("name", "compression", "numbers"),
    [
        ("tensors-none", Compression.NONE, [1, -2, 0.5, -0.5, 2, 0, -8]),
        ("tensors-fp16", Compression.FP16, [1, -2, 0.5, -0.5, 2, 0, -8]),
        ("tensors-topk", Compression.TOPK, [1, -2, 0.5, -0.5, 2, 0, -8]),
        ("tensors-qsgd", Compression.QSGD, [3, 4, 0, 0, -12, 0, -8]),
    ],
)
def test_numbers_are_encoded_to_their_tensor_data(name: str, compression: Compression, numbers: list[float]) -> None:
    options = {"topk_ratio": 0.3, "levels": 13}
    data = encode_tensors(np.float32(numbers), MODEL, compression, rng=np.random.default_rng(7), **options)
    assert data.hex() == read(name).hex()
    assert len(data) == encoded_size(MODEL, compression, **options)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("bad-tensors-")])
def test_bad_tensor_data_is_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_tensors(read(name), MODEL, Compression[comments(name)["compression"]])
    assert caught.value.code is ErrorCode.MALFORMED
