"""What can go wrong: the two kinds of error, and the codes that an ERROR message carries.

The split is h11's. A `RemoteProtocolError` is the peer's fault: answer with an ERROR message that carries its
code and text, and close. A `LocalProtocolError` is ours: we tried to say something that the protocol forbids.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """The error_code of an ERROR message. Version 1 assigns none: these are ours, peers may have others."""

    BAD_FRAME = 1  # the bytes are not a frame of ours: wrong magic, or a type that nobody assigned
    TOO_LARGE = 2  # a frame, a model or a tensor over a limit
    ILLEGAL_STATE = 3  # a good message at the wrong time, or from the wrong side
    UNSUPPORTED_VERSION = 4  # REGISTER names a protocol version that we do not speak
    MALFORMED = 5  # the frame is whole, and its content breaks a rule
    MODEL_MISMATCH = 6  # tensor data that does not belong to the model in training
    DUPLICATE_ID = 7  # another live worker has this worker id
    REFUSED = 8  # understood, and not wanted: the text says why
    INTERNAL = 9  # the sender's own failure


class ProtocolError(Exception):
    """Base of both kinds."""


class LocalProtocolError(ProtocolError):
    """We tried something that the protocol forbids; nothing was sent and no state changed."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids.

    Attributes:
        code: what an ERROR message to the peer should carry.
        message: one sentence for people, as ``str(error)`` also gives it.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        """Takes the code and the sentence for the ERROR message."""
        super().__init__(message)
        self.code = code
        self.message = message
