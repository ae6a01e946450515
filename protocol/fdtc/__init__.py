"""FDTC version 1, the protocol between coordinator and workers: bytes in, messages out, and the reverse.

No input or output happens here, and nothing of ours is imported. Where things are:

- `constants`   port, sizes, message types, compressions, profiles
- `errors`      RemoteProtocolError (the peer's fault), LocalProtocolError (ours), the codes of ERROR
- `fields`      the kinds of field that structs are made of
- `messages`    every message, once
- `framing`     header, encode, the incremental decoder
- `states`      who may say what, when
- `connection`  all of that as one object per connection
- `codecs`      NONE, FP16, TOPK, QSGD for one tensor
- `tensors`     the same for a whole model
- `profiles`    hardware classes, and what a machine is
"""

from fdtc.connection import Connection
from fdtc.constants import (
    HEADER_SIZE,
    MAGIC,
    MAX_DIMS,
    MAX_MESSAGE,
    MAX_PAYLOAD,
    MAX_TENSORS,
    PORT,
    PROTOCOL_VERSION,
    TENSOR_NAME_SIZE,
    WORKER_ID_SIZE,
    Compression,
    MessageType,
    Profile,
)
from fdtc.errors import ErrorCode, LocalProtocolError, ProtocolError, RemoteProtocolError
from fdtc.framing import encode
from fdtc.messages import (
    Checkpoint,
    Data,
    Deregister,
    Error,
    Gradients,
    GradientsAck,
    Heartbeat,
    HeartbeatAck,
    Message,
    Pause,
    Register,
    RegisterAck,
    Resume,
    Shutdown,
    Start,
    Status,
    StatusRequest,
    Sync,
    TensorSpec,
    Weights,
    WeightsMeta,
    WeightsRequest,
)
from fdtc.profiles import (
    HARDWARE_CLASSES,
    PROFILES,
    Classification,
    Facts,
    ProfileSpec,
    classify,
    nearest_v1,
)
from fdtc.states import Role, State
from fdtc.tensors import decode_tensors, encode_tensors, encoded_size, max_encoded_size

__all__ = [
    "HARDWARE_CLASSES",
    "HEADER_SIZE",
    "MAGIC",
    "MAX_DIMS",
    "MAX_MESSAGE",
    "MAX_PAYLOAD",
    "MAX_TENSORS",
    "PORT",
    "PROFILES",
    "PROTOCOL_VERSION",
    "TENSOR_NAME_SIZE",
    "WORKER_ID_SIZE",
    "Checkpoint",
    "Classification",
    "Compression",
    "Connection",
    "Data",
    "Deregister",
    "Error",
    "ErrorCode",
    "Facts",
    "Gradients",
    "GradientsAck",
    "Heartbeat",
    "HeartbeatAck",
    "LocalProtocolError",
    "Message",
    "MessageType",
    "Pause",
    "Profile",
    "ProfileSpec",
    "ProtocolError",
    "Register",
    "RegisterAck",
    "RemoteProtocolError",
    "Resume",
    "Role",
    "Shutdown",
    "Start",
    "State",
    "Status",
    "StatusRequest",
    "Sync",
    "TensorSpec",
    "Weights",
    "WeightsMeta",
    "WeightsRequest",
    "classify",
    "decode_tensors",
    "encode",
    "encode_tensors",
    "encoded_size",
    "max_encoded_size",
    "nearest_v1",
]
