"""From nothing to a login: name, TCP, greeting, key exchange, host key, authentication, hop by hop.

All of it has one deadline, and each step its own error. May import: ``known_hosts``, ``ssh_config``, ``ssh_errors``,
``ssh_keys``.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import paramiko

from . import known_hosts
from .ssh_config import SshSettings, Target
from .ssh_errors import (
    ConnectionLimitError,
    HandshakeBrokenError,
    HandshakeTimeoutError,
    IncompatibleError,
    JumpHostError,
    KeyFileError,
    NameNotFoundError,
    NoKeyAcceptedError,
    NoRouteError,
    NotSshError,
    RefusedError,
    SilentError,
    SshError,
)
from .ssh_keys import keys_for

_KEEPALIVE_SEC = 15
# After so long without an acknowledgement of what was sent, the kernel gives a connection up.
_GIVE_UP_SEC = 20
# A server greets with "SSH-2.0-…", after other lines if it likes; so long after the first of them is enough.
_GREETING_LINE_SEC = 2.0
_LONGEST_GREETING = 8192
_PROHIBITED = 1  # RFC 4254, section 5.1
_LIMIT_WORDS = (b"Exceeded MaxStartups", b"Not allowed at this time")  # sshd's own, since 9.6 and 9.8
BROKEN = (paramiko.SSHException, OSError, EOFError)  # how paramiko says that a connection is no more
_Socket = socket.socket | paramiko.Channel

_log = logging.getLogger("paramiko")
_log.addHandler(logging.NullHandler())  # what goes wrong is said once, in our words
_log.propagate = False


class Deadline:
    """A point in time that many steps have to keep.

    Attributes:
        seconds: How long it was away at first.
    """

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then, 0 when it has passed."""
        return max(0.0, self._end - time.monotonic())


class Transport(paramiko.Transport):
    """paramiko's, with unix sockets on the other side, and an end that nothing holds up."""

    def __init__(self, sock: _Socket, greeting: bytes) -> None:
        """Speak SSH over a socket whose `greeting` was read already."""
        super().__init__(cast("socket.socket", _Greeted(sock, greeting)), packetizer_class=_Packetizer)
        self._opening = threading.local()
        self._goodbye = ""

    def open_unix_socket(self, path: str, timeout: float) -> paramiko.Channel:
        """Have sshd connect to a unix socket (OpenSSH's PROTOCOL, section 2.4).

        Raises:
            paramiko.ChannelException: It refuses, or can't.
        """
        self._opening.path = path
        try:
            return self.open_channel("direct-streamlocal@openssh.com", timeout=timeout)
        finally:
            self._opening.path = ""

    def last_words(self) -> str:
        """Why it ended: the server's own words where it had any."""
        error = self.get_exception()
        return self._goodbye or (str(error) if error else "") or "it was closed by the other side"

    @property
    def said_goodbye(self) -> bool:
        """Whether the server has said why it ends the connection."""
        return bool(self._goodbye)

    def run(self) -> None:
        """Be the thread that reads; where the way is gone before it can say goodbye, there is nobody to tell."""
        with contextlib.suppress(*BROKEN):
            super().run()

    def close(self) -> None:
        """Close at once, in whatever state."""
        # Whoever else is closing it, or the jump host's connection that it goes through, may be quicker.
        with contextlib.suppress(*BROKEN):
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        with contextlib.suppress(*BROKEN):
            super().close()
        with contextlib.suppress(*BROKEN):
            self.sock.close()

    def _send_user_message(self, data: paramiko.Message) -> None:
        # The first message that a thread sends in open_channel is the one that opens it. paramiko knows no way to add
        # the fields that this kind of channel has at its end: the path, and two that are reserved.
        if path := getattr(self._opening, "path", ""):
            self._opening.path = ""
            data.add_string(path)
            data.add_string("")
            data.add_int(0)
        super()._send_user_message(data)  # type: ignore[misc]  # not in the stubs

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        # paramiko only logs it, and it is what says "Too many authentication failures".
        message.get_int()
        self._goodbye = message.get_text()


class _Packetizer(paramiko.packet.Packetizer):
    """paramiko's, without the thread that times each handshake: we have a deadline, and that one outlives Ctrl-C."""

    def start_handshake(self, timeout: float) -> None:
        del timeout


class _Greeted:
    """A socket or channel whose greeting was read already, and is read once more by paramiko."""

    def __init__(self, sock: _Socket, greeting: bytes) -> None:
        self._sock = sock
        self._greeting = greeting

    def recv(self, size: int) -> bytes:
        if self._greeting:
            first, self._greeting = self._greeting[:size], self._greeting[size:]
            return first
        return self._sock.recv(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def log_in_hop_by_hop(target: Target, settings: SshSettings, deadline: Deadline) -> list[Transport]:
    """Log in to a server, through the others on the way.

    Returns:
        A connection for each hop, the server's own last.

    Raises:
        SshError: It, or one on the way, can't be reached; nothing is left open.
    """
    with contextlib.ExitStack() as opened:
        transports: list[Transport] = []
        route = list(_route(target))
        for i, hop in enumerate(route):
            sock = _through(transports[-1], route[i - 1], hop, deadline) if i else None
            try:
                transport = _log_in(hop, sock or _dial(hop, deadline), settings, deadline)
            except SshError as error:
                if hop is target:
                    raise
                raise JumpHostError(
                    target.label, hop.label, str(error), *error.next_steps, passes=error.passes
                ) from error
            transports.append(transport)
            opened.callback(transport.close)
        opened.pop_all()
        return transports


def _route(target: Target) -> Iterator[Target]:
    for hop in target.jump:
        yield from _route(hop)
    yield target


# The way there --------------------------------------------------------------------------------------------------


def _dial(target: Target, deadline: Deadline) -> socket.socket:
    """Connect to the first of a name's addresses that answers."""
    addresses = _look_up(target, deadline)
    errors: list[OSError] = []
    for i, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            # An address that swallows everything (IPv6 behind a bad router) leaves the others their share of time.
            sock.settimeout(max(0.1, deadline.left / (len(addresses) - i)))
            sock.connect(address)
        except OSError as error:
            sock.close()
            errors.append(error)
        else:
            return _tuned(sock)
    if any(isinstance(error, ConnectionRefusedError) for error in errors):
        raise RefusedError(target.label)
    if all(isinstance(error, TimeoutError) for error in errors):
        raise NoRouteError(target.label, f"nothing answers within {deadline.seconds:.0f} s")
    raise NoRouteError(target.label, "; ".join(dict.fromkeys(error.strerror or str(error) for error in errors)))


def _tuned(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GIVE_UP_SEC * 1000)
    return sock


def _look_up(target: Target, deadline: Deadline) -> list[Any]:
    """Addresses of a name, as `socket.getaddrinfo` gives them; that knows no timeout, so a thread asks."""
    answer: list[Any] = []

    def ask(flags: int = 0) -> None:
        try:
            answer.append(socket.getaddrinfo(target.address, target.port, type=socket.SOCK_STREAM, flags=flags))
        except (OSError, UnicodeError) as error:  # UnicodeError: no name of the Internet can be like this
            answer.append(error)

    ask(socket.AI_NUMERICHOST)
    if isinstance(answer[0], Exception):
        answer.clear()
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(deadline.left)
    match answer:
        case [list(addresses)]:
            return addresses
        case [error]:
            raise NameNotFoundError(target.address, getattr(error, "strerror", "") or str(error))
        case _:
            raise NameNotFoundError(target.address, f"the name server has not answered within {deadline.seconds:.0f} s")


def _through(jump: Transport, via: Target, target: Target, deadline: Deadline) -> paramiko.Channel:
    """Connect to a server from the one before it."""
    place = (target.address, target.port)
    try:
        return jump.open_channel("direct-tcpip", place, ("127.0.0.1", 0), timeout=max(0.1, deadline.left))
    except paramiko.ChannelException as error:
        if error.code == _PROHIBITED:
            reason, step = "it forbids to be jumped through", "AllowTcpForwarding yes   # in its /etc/ssh/sshd_config"
        else:
            reason, step = f"it can't connect further: {error.text}", f"ssh {via.arguments} ping {target.address}"
    except BROKEN as error:
        reason, step = f"it does not connect further: {error}", f"ssh {via.arguments} ping {target.address}"
    raise JumpHostError(target.label, via.label, reason, step)


# The handshake --------------------------------------------------------------------------------------------------


def _log_in(target: Target, sock: _Socket, settings: SshSettings, deadline: Deadline) -> Transport:
    with contextlib.ExitStack() as opened:
        opened.callback(sock.close)
        transport = Transport(sock, _greeting(target, sock, deadline))
        opened.callback(transport.close)
        known_hosts.verify(target, _exchange_keys(transport, target, deadline))
        _authenticate(transport, target, settings, deadline)
        transport.set_keepalive(_KEEPALIVE_SEC)
        opened.pop_all()
        return transport


def _greeting(target: Target, sock: _Socket, deadline: Deadline) -> bytes:
    """Read until a server has said that it speaks SSH; returns that line, and what came with it."""
    said = b""
    patience = deadline
    while True:
        try:
            sock.settimeout(max(0.01, patience.left))
            data = sock.recv(_LONGEST_GREETING)
        except TimeoutError:
            if said:
                raise NotSshError(target.label, _first_line(said)) from None
            raise SilentError(target.label, deadline.seconds) from None
        except OSError as error:
            raise ConnectionLimitError(target.label, error.strerror or "") from error
        if not said:
            patience = Deadline(min(_GREETING_LINE_SEC, deadline.left))
        said += data
        start = 0 if said.startswith(b"SSH-") else said.find(b"\nSSH-") + 1
        if said.startswith(b"SSH-", start) and b"\n" in said[start:]:
            return said[start:]
        if any(words in said for words in _LIMIT_WORDS) or not said:
            raise ConnectionLimitError(target.label, _first_line(said))
        if not data or len(said) > _LONGEST_GREETING:
            raise NotSshError(target.label, _first_line(said))


def _first_line(said: bytes) -> str:
    return said.partition(b"\n")[0].decode(errors="replace").strip()


def _exchange_keys(transport: Transport, target: Target, deadline: Deadline) -> paramiko.PKey:
    """Agree on keys; returns the server's own, which is not trusted yet."""
    options = transport.get_security_options()
    options.key_types = known_hosts.preferred_algorithms(known_hosts.known_keys(target), options.key_types)
    transport.banner_timeout = deadline.left + 1  # ours comes first
    done = threading.Event()
    transport.start_client(event=done)
    if not done.wait(deadline.left):
        raise HandshakeTimeoutError(target.label, "key exchange", deadline.seconds)
    try:
        return transport.get_remote_server_key()
    except paramiko.SSHException:  # there is none
        error = transport.get_exception()
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            raise IncompatibleError(target.label, str(error)) from error
        reason = str(error or "") or transport.last_words()
        raise HandshakeBrokenError(target.label, "key exchange", reason) from error


def _authenticate(transport: Transport, target: Target, settings: SshSettings, deadline: Deadline) -> None:
    tried: list[str] = []
    why = ""
    with keys_for(target, settings) as keys:
        for name, key in keys.usable:
            tried.append(name)
            transport.auth_timeout = max(0.1, deadline.left)
            try:
                more = transport.auth_publickey(target.user, key)
            except paramiko.BadAuthenticationType as error:
                why = f"it only takes: {', '.join(error.allowed_types)}"
                break
            except BROKEN as error:
                if not deadline.left:
                    raise HandshakeTimeoutError(target.label, "login", deadline.seconds) from error
                if transport.is_active():  # this key is not the one
                    continue
                if not transport.said_goodbye and len(tried) == 1:
                    raise HandshakeBrokenError(target.label, "login", transport.last_words()) from error
                why = f"then it hung up ({transport.last_words()})"
                break
            if not more:
                return
            why = f"a key is not enough there, it also wants: {', '.join(more)}"
            break
    if keys.notes and not tried:
        raise KeyFileError(target.login, keys.notes, *keys.steps)
    raise NoKeyAcceptedError(target.login, target.arguments, tried, keys.notes, why)
