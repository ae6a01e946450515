"""The numbers of FDTC version 1: port, sizes, and the three enumerations that travel on the wire.

Source: the wire specification, rendered in ``docs/protocol.md``. Imports nothing of ours.
"""

from enum import IntEnum

PORT = 7100
MAGIC = 0x46445443  # "FDTC" when read as a big-endian word; on the wire the bytes are "CTDF"
PROTOCOL_VERSION = 1

HEADER_SIZE = 9
MAX_MESSAGE = 268_435_456  # bytes, header included
MAX_PAYLOAD = MAX_MESSAGE - HEADER_SIZE

WORKER_ID_SIZE = 64
TENSOR_NAME_SIZE = 64
ERROR_TEXT_SIZE = 256
MAX_DIMS = 8

# Ours: 141 bytes of WEIGHTS_META become about a kilobyte of Python objects, so that a frame of the largest
# legal size would cost gigabytes. The largest RWKV-7 has about two thousand tensors.
MAX_TENSORS = 65_536


class MessageType(IntEnum):
    """The type byte of a frame's header."""

    REGISTER = 0x01
    REGISTER_ACK = 0x02
    DEREGISTER = 0x03
    HEARTBEAT = 0x10
    HEARTBEAT_ACK = 0x11
    WEIGHTS_REQ = 0x20
    WEIGHTS = 0x21
    WEIGHTS_META = 0x22
    GRADIENTS = 0x30
    GRADIENTS_ACK = 0x31
    START = 0x40
    SYNC = 0x45
    CHECKPOINT = 0x46
    SHUTDOWN = 0x47
    PAUSE = 0x48
    RESUME = 0x49
    STATUS_REQ = 0x50
    STATUS = 0x51
    ERROR = 0xFF


class Compression(IntEnum):
    """How the tensor data of a GRADIENTS message is written. WEIGHTS is always NONE in version 1."""

    NONE = 0
    FP16 = 1
    TOPK = 2
    QSGD = 3


class Profile(IntEnum):
    """What kind of machine a worker is. 0 to 9 are version 1's; 10 and 11 are our extension."""

    RPI3 = 0
    RPI4_2G = 1
    RPI4_4G = 2
    RPI4_8G = 3
    LAPTOP_LIGHT = 4
    LAPTOP_MID = 5
    DESKTOP_MID = 6
    DESKTOP_HEAVY = 7
    SERVER = 8
    UNKNOWN = 9
    RPI5 = 10
    WORKSTATION = 11


LAST_V1_PROFILE = Profile.UNKNOWN
