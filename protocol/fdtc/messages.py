"""Every message of version 1, once: what it means, its fields in wire order, and payload from and to bytes.

The annotations are the struct layouts (see `fields.py`); a trailing comment gives each field's byte offset in
the payload. All messages are immutable. Floats are float32 on the wire, so 0.1 arrives as 0.10000000149.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from fdtc.constants import (
    LAST_V1_PROFILE,
    MAX_DIMS,
    MAX_PAYLOAD,
    MAX_TENSORS,
    TENSOR_NAME_SIZE,
    MessageType,
    Profile,
)
from fdtc.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from fdtc.fields import (
    U8,
    U32,
    U64,
    CompressionField,
    ErrorCodeField,
    ErrorText,
    Flag,
    Fraction,
    Layout,
    Loss,
    NotNegative,
    ProfileField,
    WorkerId,
    malformed,
    text_from_wire,
    text_to_wire,
)

Data: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Register:
    """A worker asks to join; sent again while registered: "my shard is finished, give me the next".

    Profiles above 9 are not version 1's: say ``nearest_v1(profile)`` when protocol_version is 1.
    """

    type: ClassVar = MessageType.REGISTER
    worker_id: WorkerId  # 0
    protocol_version: U8  # 64
    profile: ProfileField  # 65
    num_cores: U32  # 69
    memory_mb: U64  # 73, MiB
    suggested_batch_size: U32  # 81


@dataclass(frozen=True, slots=True)
class RegisterAck:
    """The coordinator's answer. When accepted is false the rest means nothing."""

    type: ClassVar = MessageType.REGISTER_ACK
    accepted: Flag  # 0
    assigned_shard: U32  # 1
    total_shards: U32  # 5
    batch_size: U32  # 9
    accumulation_steps: U32  # 13
    compression: CompressionField  # 17, of the worker's GRADIENTS
    topk_ratio: Fraction  # 21
    global_step: U32  # 25


@dataclass(frozen=True, slots=True)
class Deregister:
    """A worker leaves; its last message."""

    type: ClassVar = MessageType.DEREGISTER
    worker_id: WorkerId  # 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker is alive, and how it fares."""

    type: ClassVar = MessageType.HEARTBEAT
    worker_id: WorkerId  # 0
    local_step: U32  # 64
    current_loss: Loss  # 68, nats per token
    samples_per_sec: NotNegative  # 72


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """The coordinator has seen a heartbeat."""

    type: ClassVar = MessageType.HEARTBEAT_ACK


@dataclass(frozen=True, slots=True)
class WeightsRequest:
    """A worker asks for WEIGHTS_META and WEIGHTS."""

    type: ClassVar = MessageType.WEIGHTS_REQ


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor in WEIGHTS_META. The shape () is a scalar, no dimension is 0, dtype 0 is float32."""

    name: str
    shape: tuple[int, ...]
    dtype: int = 0

    @property
    def numel(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class WeightsMeta:
    """Announces the WEIGHTS that follow: version, learning rate, and the tensors in the order of their data.

    The payload is `WeightsMetaHead`, then 141 bytes per tensor.
    """

    type: ClassVar = MessageType.WEIGHTS_META
    global_step: int
    learning_rate: float
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class WeightsMetaHead:
    """The struct at the start of a WEIGHTS_META."""

    num_tensors: U32  # 0
    global_step: U32  # 4
    learning_rate: NotNegative  # 8


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights as tensor data with Compression.NONE (see `tensors.py`)."""

    type: ClassVar = MessageType.WEIGHTS
    data: Data


@dataclass(frozen=True, slots=True)
class Gradients:
    """A worker's push. local_step counts its mini-batches; uncompressed_size is 4 × the number of parameters.

    Whether num_tensors and uncompressed_size fit the model is for the owner to check, who knows the model.
    """

    type: ClassVar = MessageType.GRADIENTS
    worker_id: WorkerId  # 0
    local_step: U32  # 64
    num_tensors: U32  # 68
    compression: CompressionField  # 72
    uncompressed_size: U32  # 76, bytes
    data: Data  # 80


@dataclass(frozen=True, slots=True)
class GradientsAck:
    """The coordinator has taken in a push. A SYNC after it means that the push was not applied."""

    type: ClassVar = MessageType.GRADIENTS_ACK


@dataclass(frozen=True, slots=True)
class Start:
    """Begin to train."""

    type: ClassVar = MessageType.START


@dataclass(frozen=True, slots=True)
class Sync:
    """Drop what you hold, fetch the weights and go on."""

    type: ClassVar = MessageType.SYNC


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint is being taken; save what you could not rebuild."""

    type: ClassVar = MessageType.CHECKPOINT


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Finish and leave."""

    type: ClassVar = MessageType.SHUTDOWN


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop training until RESUME, heartbeats go on."""

    type: ClassVar = MessageType.PAUSE


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on after PAUSE."""

    type: ClassVar = MessageType.RESUME


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """The coordinator asks for a STATUS."""

    type: ClassVar = MessageType.STATUS_REQ


@dataclass(frozen=True, slots=True)
class Status:
    """What a worker is doing."""

    type: ClassVar = MessageType.STATUS
    worker_id: WorkerId  # 0
    local_step: U32  # 64
    samples_processed: U32  # 68
    current_loss: Loss  # 72, nats per token
    avg_loss: Loss  # 76, nats per token
    samples_per_sec: NotNegative  # 80
    memory_used_mb: U64  # 84, MiB
    is_training: Flag  # 92


@dataclass(frozen=True, slots=True)
class Error:
    """What went wrong, for people; its sender's last message. A text over 256 bytes is cut when sent."""

    type: ClassVar = MessageType.ERROR
    code: ErrorCodeField  # 0, an ErrorCode or a number of the peer's own
    message: ErrorText  # 4


Message: TypeAlias = (
    Register
    | RegisterAck
    | Deregister
    | Heartbeat
    | HeartbeatAck
    | WeightsRequest
    | WeightsMeta
    | Weights
    | Gradients
    | GradientsAck
    | Start
    | Sync
    | Checkpoint
    | Shutdown
    | Pause
    | Resume
    | StatusRequest
    | Status
    | Error
)

MESSAGES: Mapping[MessageType, type[Message]] = MappingProxyType(
    {message.type: message for message in Message.__args__}
)
# The struct that each payload begins with; for most messages it is the whole payload.
LAYOUTS: Mapping[MessageType, Layout] = MappingProxyType(
    {type_: Layout(WeightsMetaHead if cls is WeightsMeta else cls) for type_, cls in MESSAGES.items()}
)

# name 0 · ndim 64 · shape 68 · numel 132 · dtype 140
_TENSOR = struct.Struct(f"<{TENSOR_NAME_SIZE}sI{MAX_DIMS}QQB")
_DTYPE_FLOAT32 = 0


def _sizes(type_: MessageType) -> range:
    struct_size = LAYOUTS[type_].size
    if type_ is MessageType.WEIGHTS_META:
        largest = struct_size + MAX_TENSORS * _TENSOR.size
        return range(struct_size + _TENSOR.size, largest + 1, _TENSOR.size)
    if type_ in (MessageType.WEIGHTS, MessageType.GRADIENTS):
        return range(struct_size, MAX_PAYLOAD + 1)
    return range(struct_size, struct_size + 1)


# The payload lengths that each type may have: ``length in PAYLOAD_SIZES[type]``.
PAYLOAD_SIZES: Mapping[MessageType, range] = MappingProxyType({type_: _sizes(type_) for type_ in MessageType})


def encode_payload(message: Message) -> tuple[bytes, memoryview | None]:
    """The payload as its struct and, for messages that carry tensor data, the data, which is not copied.

    Raises:
        LocalProtocolError: a field's value is not legal, or the model does not fit in version 1.
    """
    if isinstance(message, WeightsMeta):
        return _pack_meta(message), None
    head = LAYOUTS[message.type].pack(message)
    if isinstance(message, Register):
        _check_profile(message, LocalProtocolError)
    if isinstance(message, Weights | Gradients):
        return head, as_bytes(message.data)
    return head, None


def decode_payload(type_: MessageType, payload: memoryview) -> Message:
    """The message in a payload whose length is one of ``PAYLOAD_SIZES[type_]``. Tensor data is not copied.

    Raises:
        RemoteProtocolError: MALFORMED or TOO_LARGE.
    """
    if type_ is MessageType.WEIGHTS_META:
        return _unpack_meta(payload)
    layout = LAYOUTS[type_]
    values = layout.unpack(payload)
    if type_ in (MessageType.WEIGHTS, MessageType.GRADIENTS):
        values.append(payload[layout.size :])
    message = MESSAGES[type_](*values)
    if isinstance(message, Register):
        _check_profile(message, malformed)
    return message


def as_bytes(data: Any) -> memoryview:
    """Any contiguous buffer as a flat view of bytes, without a copy. Raises LocalProtocolError."""
    try:
        view = memoryview(data)
        return view.cast("B") if view.nbytes else memoryview(b"")
    except TypeError as error:
        raise LocalProtocolError(f"tensor data must be a contiguous buffer: {error}") from error


def _check_profile(message: Register, error: Any) -> None:
    if message.protocol_version <= 1 and message.profile > LAST_V1_PROFILE:
        raise error(f"Register.profile: {Profile(message.profile).name} is not a profile of version 1")


def _pack_meta(message: WeightsMeta) -> bytes:
    head = WeightsMetaHead(len(message.tensors), message.global_step, message.learning_rate)
    try:
        entries = b"".join(_pack_tensor(spec) for spec in check_tensors(message.tensors))
    except (ValueError, TypeError, struct.error) as error:
        raise LocalProtocolError(f"WeightsMeta.tensors: {error}") from error
    return LAYOUTS[message.type].pack(head) + entries


def _pack_tensor(spec: TensorSpec) -> bytes:
    shape = (*spec.shape, *(0,) * (MAX_DIMS - len(spec.shape)))
    name = text_to_wire(spec.name, TENSOR_NAME_SIZE)
    return _TENSOR.pack(name, len(spec.shape), *shape, spec.numel, spec.dtype)


def _unpack_meta(payload: memoryview) -> WeightsMeta:
    layout = LAYOUTS[MessageType.WEIGHTS_META]
    head = WeightsMetaHead(*layout.unpack(payload))
    entries = payload[layout.size :]
    if head.num_tensors != len(entries) // _TENSOR.size:
        raise malformed(f"WeightsMeta.num_tensors: {head.num_tensors} announced, {len(entries)} bytes follow")
    try:
        tensors = check_tensors(_unpack_tensor(entry) for entry in _TENSOR.iter_unpack(entries))
    except ModelTooLargeError as error:
        raise RemoteProtocolError(ErrorCode.TOO_LARGE, f"WeightsMeta.tensors: {error}") from error
    except ValueError as error:
        raise malformed(f"WeightsMeta.tensors: {error}") from error
    return WeightsMeta(head.global_step, head.learning_rate, tensors)


def _unpack_tensor(entry: tuple[Any, ...]) -> TensorSpec:
    field, ndim, *shape, numel, dtype = entry
    name = text_from_wire(field)
    if ndim > MAX_DIMS:
        raise ValueError(f"{name!r} has {ndim} dimensions, at most {MAX_DIMS} are possible")
    if any(shape[ndim:]):
        raise ValueError(f"{name!r} has shape entries beyond its {ndim} dimensions that are not zero")
    spec = TensorSpec(name, tuple(shape[:ndim]), dtype)
    if spec.numel != numel:
        raise ValueError(f"{name!r} says {numel} numbers, its shape makes {spec.numel}")
    return spec


class ModelTooLargeError(ValueError):
    """The model's weights do not fit in one WEIGHTS message."""


def check_tensors(tensors: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The tensors, if they keep the rules for a model's list of tensors; stops at the first that does not.

    Raises:
        ModelTooLargeError: the weights do not fit in one message of version 1.
        ValueError: any other rule, with the tensor's name.
    """
    checked: dict[str, TensorSpec] = {}
    total = 0
    for spec in tensors:
        _check_tensor(spec)
        if spec.name in checked:
            raise ValueError(f"two tensors are called {spec.name!r}")
        checked[spec.name] = spec
        total += spec.numel
    if not checked:
        raise ValueError("a model has at least one tensor")
    if len(checked) > MAX_TENSORS:
        raise ModelTooLargeError(f"{len(checked)} tensors, at most {MAX_TENSORS} are possible")
    if total * 4 > MAX_PAYLOAD:
        raise ModelTooLargeError(
            f"{total} parameters take {total * 4} bytes, version 1 can carry {MAX_PAYLOAD} in one message"
        )
    return tuple(checked.values())


def _check_tensor(spec: TensorSpec) -> None:
    if not spec.name:
        raise ValueError("a tensor has no name")
    try:
        text_to_wire(spec.name, TENSOR_NAME_SIZE)
    except UnicodeEncodeError:
        raise ValueError(f"{spec.name!r} is no name for a tensor: it is not valid text") from None
    except ValueError:
        raise ValueError(
            f"{spec.name!r} is no name for a tensor: at most {TENSOR_NAME_SIZE} bytes, and no NUL"
        ) from None
    if len(spec.shape) > MAX_DIMS:
        raise ValueError(f"{spec.name!r} has {len(spec.shape)} dimensions, at most {MAX_DIMS} are possible")
    if any(size < 1 for size in spec.shape):
        raise ValueError(f"{spec.name!r} has shape {spec.shape}: a dimension is at least 1")
    if spec.dtype != _DTYPE_FLOAT32:
        raise ValueError(f"{spec.name!r} has dtype {spec.dtype}, version 1 has only 0 (float32)")
