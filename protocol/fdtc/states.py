"""Who may say what, when: the state table of version 1, for both sides, on one page.

Each side keeps its own state and judges by it what it sends and what it receives. The two are not always
equal, since messages cross on the wire, and peers may send on before an answer has come. The table is
therefore strict about order that one side controls (nothing before REGISTER, WEIGHTS only after WEIGHTS_META,
one REGISTER at a time) and loose about what can cross: acknowledgements and control messages are legal
whenever the worker is registered.

Rules:

- A worker is *registered* from the coordinator's accepting REGISTER_ACK to its own DEREGISTER. A REGISTER
  while registered asks for the next shard; its refusal leaves the worker registered with what it had.
- While its first REGISTER is unanswered a worker may send on. If the answer is no, what it sent is illegal.
- WEIGHTS_META announces exactly one WEIGHTS of exactly its size. Acknowledgements and control messages may
  come between the two, another WEIGHTS_META may not.
- After DEREGISTER a worker may say nothing but ERROR; what the coordinator had sent may still arrive.
- ERROR is legal in every state that is not closed, and closes the connection for both sides.
- Once a peer has broken the protocol nothing more is read from it, and only an ERROR may be sent to it.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from fdtc.constants import MessageType as M


class Role(Enum):
    """Which side of the connection we are."""

    WORKER = "worker"
    COORDINATOR = "coordinator"

    @property
    def peer(self) -> "Role":
        """The other side."""
        return Role.COORDINATOR if self is Role.WORKER else Role.WORKER


class State(Enum):
    """What one side knows about the connection."""

    CONNECTED = "connected"  # nobody has registered
    REGISTERING = "registering"  # the first REGISTER awaits its answer
    REGISTERED = "registered"
    WEIGHTS_DUE = "weights due"  # registered, and WEIGHTS_META has announced a WEIGHTS
    LEAVING = "leaving"  # the worker has deregistered
    FAILED = "failed"  # the peer broke the protocol
    CLOSED = "closed"  # an ERROR was sent or received


_WORKER = frozenset({M.DEREGISTER, M.HEARTBEAT, M.WEIGHTS_REQ, M.GRADIENTS, M.STATUS, M.ERROR})
_ACKS = frozenset({M.REGISTER_ACK, M.HEARTBEAT_ACK, M.GRADIENTS_ACK})
_CONTROL = frozenset({M.START, M.SYNC, M.CHECKPOINT, M.SHUTDOWN, M.PAUSE, M.RESUME, M.STATUS_REQ})
_ERROR = frozenset({M.ERROR})
_NOTHING: frozenset[M] = frozenset()

MAY_SEND: Mapping[Role, Mapping[State, frozenset[M]]] = MappingProxyType(
    {
        Role.WORKER: MappingProxyType(
            {
                State.CONNECTED: frozenset({M.REGISTER}) | _ERROR,
                State.REGISTERING: _WORKER,
                State.REGISTERED: _WORKER | {M.REGISTER},
                State.WEIGHTS_DUE: _WORKER | {M.REGISTER},
                State.LEAVING: _ERROR,
                State.FAILED: _ERROR,
                State.CLOSED: _NOTHING,
            }
        ),
        Role.COORDINATOR: MappingProxyType(
            {
                State.CONNECTED: _ERROR,
                State.REGISTERING: frozenset({M.REGISTER_ACK}) | _ERROR,
                State.REGISTERED: _ACKS | _CONTROL | _ERROR | {M.WEIGHTS_META},
                State.WEIGHTS_DUE: _ACKS | _CONTROL | _ERROR | {M.WEIGHTS},
                State.LEAVING: _ACKS | _CONTROL | _ERROR | {M.WEIGHTS_META, M.WEIGHTS},
                State.FAILED: _ERROR,
                State.CLOSED: _NOTHING,
            }
        ),
    }
)

# The messages that change the state of the side that sends or receives them; all others leave it as it is.
TRANSITIONS: Mapping[tuple[State, M], State] = MappingProxyType(
    {
        (State.CONNECTED, M.REGISTER): State.REGISTERING,
        (State.REGISTERING, M.REGISTER_ACK): State.REGISTERED,  # when accepted; else back to CONNECTED
        (State.REGISTERED, M.WEIGHTS_META): State.WEIGHTS_DUE,
        (State.WEIGHTS_DUE, M.WEIGHTS): State.REGISTERED,
        (State.REGISTERING, M.DEREGISTER): State.LEAVING,
        (State.REGISTERED, M.DEREGISTER): State.LEAVING,
        (State.WEIGHTS_DUE, M.DEREGISTER): State.LEAVING,
        **{(state, M.ERROR): State.CLOSED for state in State},
    }
)
