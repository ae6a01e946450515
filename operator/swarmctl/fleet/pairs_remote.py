"""Runs on the other machine: whether what it sends arrives, and whether what others send arrives here.

``pairs.sh`` hands this text to the machine's own python3, so it imports the standard library only and keeps to
Python 3.7. It ends by itself, writes no file, and leaves alone whatever listens already.

UDP gives no answer by itself. Each datagram therefore carries who sent it to whom; who receives it says so in an
answer and in its report. A port that has an owner, such as Docker's engine or the kernel's VXLAN, is watched through a
raw socket: that is given a copy after the machine's firewall has let the datagram pass (a packet socket would see it
before), and what the owner gets is nothing that it understands, so it drops it.

Machines start seconds apart. Whoever is done says so in its datagrams, and everybody stays until those that it awaits
have said so, or for some time after the first sign of life from them, or to the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import sys
import time

_MAGIC = b"swarmctl-doctor"  # its first byte is no VXLAN header (flag 0x08 unset)
_MORE, _DONE = b"more", b"done"
_ROUND_SEC = 0.3
_LINGER_SEC = 1.0  # for those whose answer got lost
# Linux's names that the socket module lacks; ICMP codes of "administratively prohibited" (RFC 792, RFC 1812).
_IP_RECVERR, _MSG_ERRQUEUE, _FROM_ICMP = 11, 0x2000, 2
_PROHIBITED = {9, 10, 13}


class Edge:
    """What is sent to one target, and what came of it."""

    def __init__(self, index: str, address: str, tcp: str, udp: str, there: str) -> None:
        self.index, self.address = index, address
        self.there = there == "yes"  # it runs this, too
        self.tcp = dict.fromkeys(_ports(tcp), "")  # port -> word
        self.udp = dict.fromkeys(_ports(udp), "sent")
        self.taken_leave = not self.udp  # it knows that we are done with it

    @property
    def is_done(self) -> bool:
        """Whether all connections are made; what is refused may not be a moment later."""
        return all(word not in {"", "refused"} for word in self.tcp.values())

    @property
    def is_well(self) -> bool:
        """Whether all is known that can be."""
        return self.is_done and self.taken_leave and all(word == "heard" for word in self.udp.values())


class Pairs:
    """The tests of one machine."""

    def __init__(self, run: str, me: str, seconds: str, patience: str, expected: str, listen: str, edges: str) -> None:
        self.run, self.me = run.encode(), me.encode()
        self.began = time.monotonic()
        self.end = self.began + float(seconds)
        self.patience_sec = float(patience)
        self.edges = [Edge(*line.split(" ")) for line in edges.splitlines()]
        self.by_index = {edge.index: edge for edge in self.edges}
        self.selector = selectors.DefaultSelector()
        self.connecting: dict[socket.socket, tuple[Edge, int]] = {}
        self.sees: dict[int, str] = {}
        self.got: set[tuple[str, int]] = set()
        self.alive_at: dict[str, float] = {}  # first sign of life, by index
        self.leavers: set[str] = set()
        self.heard_at = self.began
        tcp, udp = (_ports(ports) for ports in listen.split(" "))
        for port in tcp:
            self._listen(port)
        self._watch(udp)
        watching = "yes" in self.sees.values()
        self.expected = {index for index in expected.split(",") if index != "-"} if watching else set()
        self.sender = _socket(socket.SOCK_DGRAM)
        self.selector.register(self.sender, selectors.EVENT_READ, self._take_answer)

    # Receiving -----------------------------------------------------------------------------------------------

    def _listen(self, port: int) -> None:
        """Accept connections where nobody does; who is there already answers for itself."""
        server = _socket(socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
            server.listen(128)
        except OSError:
            server.close()
        else:
            self.selector.register(server, selectors.EVENT_READ, _accept)

    def _watch(self, ports: list[int]) -> None:
        try:
            raw = _socket(socket.SOCK_RAW, socket.IPPROTO_UDP)
        except PermissionError:
            for port in ports:
                self._bind(port)
            return
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.selector.register(raw, selectors.EVENT_READ, self._take_raw)
        self.sees = dict.fromkeys(ports, "yes")

    def _bind(self, port: int) -> None:
        """Without root only a port that nobody has can be watched."""
        bound = _socket(socket.SOCK_DGRAM)
        try:
            bound.bind(("", port))
        except OSError as error:
            bound.close()
            self.sees[port] = "no root" if error.errno == errno.EADDRINUSE else "no " + str(error.strerror)
        else:
            self.selector.register(bound, selectors.EVENT_READ, self._take_bound)
            self.sees[port] = "yes"

    def _take_raw(self, raw: socket.socket) -> None:
        packet, (source, _) = raw.recvfrom(65535)
        header = (packet[0] & 15) * 4
        from_port, port = struct.unpack("!HH", packet[header : header + 4])
        answer = self._take(packet[header + 8 :], port)
        if answer:
            # A zero checksum is none (RFC 768); the kernel adds the IP header.
            self._send(raw, struct.pack("!HHHH", port, from_port, 8 + len(answer), 0) + answer, (source, 0))

    def _take_bound(self, bound: socket.socket) -> None:
        payload, sender = bound.recvfrom(65535)
        answer = self._take(payload, bound.getsockname()[1])
        if answer:
            self._send(bound, answer, sender)

    def _take(self, payload: bytes, port: int) -> bytes:
        """Note a datagram that is for us; the answer to it."""
        words = payload.split()
        if len(words) != 6 or words[:2] != [_MAGIC, self.run] or words[3] != self.me or port not in self.sees:
            return b""
        source = words[2].decode("ascii", "replace")
        self.got.add((source, port))
        self.heard_at = time.monotonic()
        self.alive_at.setdefault(source, self.heard_at)
        if words[5] == _DONE:
            self.leavers.add(source)
        return b" ".join([*words, b"heard"])

    # Sending -------------------------------------------------------------------------------------------------

    def _take_answer(self, sender: socket.socket) -> None:
        words = sender.recv(65535).split()
        if len(words) != 7 or words[:3] != [_MAGIC, self.run, self.me]:
            return
        edge = self.by_index.get(words[3].decode("ascii", "replace"))
        if edge and words[4].isdigit() and int(words[4]) in edge.udp:
            self.alive_at.setdefault(edge.index, time.monotonic())
            edge.udp[int(words[4])] = "heard"
            edge.taken_leave = edge.taken_leave or words[5] == _DONE

    def _send_round(self) -> None:
        """Try all that is not known yet; connections first, so that who hears of us can have had them."""
        for edge in self.edges:
            for port, word in edge.tcp.items():
                if word in {"", "refused"} and (edge, port) not in self.connecting.values():
                    self._connect(edge, port)
            for port, word in edge.udp.items():
                if word != "heard" or (edge.is_done and not edge.taken_leave):
                    last = _DONE if edge.is_done else _MORE
                    words = [_MAGIC, self.run, self.me, edge.index.encode(), str(port).encode(), last]
                    edge.udp[port] = self._send(self.sender, b" ".join(words), (edge.address, port)) or word

    def _send(self, sender: socket.socket, payload: bytes, address: tuple[str, int]) -> str:
        try:
            sender.sendto(payload, address)
        except BlockingIOError:
            return ""  # the queue is full; there is another round
        except OSError as error:
            return "failed " + str(error.strerror)
        return ""

    def _connect(self, edge: Edge, port: int) -> None:
        family = socket.AF_INET6 if ":" in edge.address else socket.AF_INET
        client = _socket(socket.SOCK_STREAM, family=family)
        if family == socket.AF_INET:
            client.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        self.connecting[client] = (edge, port)
        error = client.connect_ex((edge.address, port))
        if error in {0, errno.EINPROGRESS}:
            self.selector.register(client, selectors.EVENT_WRITE, self._connected)
        else:
            self._settle(client, error)

    def _connected(self, client: socket.socket) -> None:
        self.selector.unregister(client)
        self._settle(client, client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _settle(self, client: socket.socket, error: int) -> None:
        edge, port = self.connecting.pop(client)
        if not error:
            word = "open"
        elif error == errno.ECONNREFUSED:
            word = "refused"
        elif error == errno.ETIMEDOUT:
            word = "silent"
        elif error in {errno.EHOSTUNREACH, errno.ENETUNREACH}:
            word = "rejected" if _icmp_code(client) in _PROHIBITED else "unreachable"
        else:
            word = "failed " + os.strerror(error)
        client.close()
        edge.tcp[port] = word

    # All together --------------------------------------------------------------------------------------------

    def go(self) -> None:
        """Send and receive until all is known that can be, or the time is over."""
        next_round = self.began
        while time.monotonic() < self.end and not self._is_over():
            if time.monotonic() >= next_round:
                self._send_round()
                next_round = time.monotonic() + _ROUND_SEC
            wait = max(0.0, min(next_round, self.end) - time.monotonic())
            for key, _ in self.selector.select(wait):
                key.data(key.fileobj)

    def _is_over(self) -> bool:
        """Whether we know all, and the others had time for theirs."""
        now = time.monotonic()
        if any(not edge.is_well and not self._is_overdue(edge.index, now, edge.there) for edge in self.edges):
            return False
        if any(index not in self.leavers and not self._is_overdue(index, now, True) for index in self.expected):
            return False
        return now >= self.heard_at + _LINGER_SEC

    def _is_overdue(self, index: str, now: float, there: bool) -> bool:
        """Whether a machine has been at it for so long that what has not come by now never will."""
        alive_at = self.alive_at.get(index) if there else self.began
        return alive_at is not None and now >= alive_at + self.patience_sec

    def report(self) -> None:
        """Say what came of it, one line each; a line goes out whole, since others write to the same pipe."""
        for port, how in self.sees.items():
            _say("see", "-", port, how)
        for edge in self.edges:
            for port, word in edge.tcp.items():
                _say("tcp", edge.index, port, word or "silent")
            for port, word in edge.udp.items():
                _say("udp", edge.index, port, word)
        for source, port in sorted(self.got):
            _say("got", source, port, "-")


def _accept(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side may be gone already
        server.accept()[0].close()


def _icmp_code(client: socket.socket) -> int | None:
    """What a router or a firewall said; the error alone does not tell "not there" from "not allowed"."""
    with contextlib.suppress(OSError):
        for _, kind, data in client.recvmsg(1, 512, _MSG_ERRQUEUE)[1]:
            # struct sock_extended_err of linux/errqueue.h: errno, origin, type, code, …
            if kind == _IP_RECVERR and len(data) >= 8 and data[4] == _FROM_ICMP:
                return data[6]
    return None


def _socket(kind: int, protocol: int = 0, family: int = socket.AF_INET) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    return made


def _ports(text: str) -> list[int]:
    return [int(port) for port in text.split(",") if port != "-"]


def _say(*words: object) -> None:
    print("\t".join(str(word) for word in words), flush=True)


def main(arguments: list[str]) -> None:
    """Run the tests that ``pairs.sh`` was asked for."""
    pairs = Pairs(*arguments)
    pairs.go()
    pairs.report()


if __name__ == "__main__":
    main(sys.argv[1:])
