"""The coordinator: the only authority on weights, version, membership and data.

Each connection has a thread that reads and one that writes, so a slow worker holds up nobody; a timer ends the leases
of silent ones, and another thread writes checkpoints. What a gradient does is ``master``'s affair, who holds which
shard is ``ledger``'s, and what the bytes mean is ``fdtc``'s.

May import: everything of the agent but ``worker`` and the commands.
"""

import functools
import queue
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

import fdtc
from fdtc import ErrorCode, LocalProtocolError, Profile, RemoteProtocolError, State

from . import checkpoint, hardware, models, optim
from .config import CoordinatorConfig
from .errors import CheckpointError, ConfigError, DivergedError
from .http import HttpServer
from .ledger import ShardLedger
from .master import Master, Outcome, Refusal, Vector
from .net import Buffer, close_socket, listen, see_off, send_buffers, tune

log = structlog.get_logger()
DEFAULT_DIRECTORY = Path("/checkpoints")
PAUSE_MARK = ".paused"
GREETING_SECONDS = 10.0  # within which a new connection must register
OUTBOX_LIMIT = 1024  # messages waiting for a worker that does not read
CONVERSATION_OVER = (State.LEAVING, State.FAILED, State.CLOSED)
RATE_WINDOW = 30.0  # seconds that tokens per second are taken over
FLUSH_SECONDS = 5.0  # for workers to be told of a shutdown and to say goodbye
FAREWELL_SECONDS = 2.0  # for a last message to arrive


class _SendWeights:
    """Stands in an outbox for the weights, which are copied only when it is their turn."""


@dataclass(eq=False)
class Peer:
    """One connection, and after REGISTER the worker behind it.

    Attributes:
        base_version: The version last sent to it, which a version-1 gradient is taken to be computed from.
        weights: Where the weights are copied for sending; kept, so that a pull takes no new memory.
    """

    socket: socket.socket
    address: str
    wire: fdtc.Connection = field(default_factory=lambda: fdtc.Connection(fdtc.Role.COORDINATOR))
    lock: threading.Lock = field(default_factory=threading.Lock)
    outbox: "queue.SimpleQueue[fdtc.Message | _SendWeights | None]" = field(default_factory=queue.SimpleQueue)
    connected: float = field(default_factory=time.monotonic)
    last_seen: float = field(default_factory=time.monotonic)
    left: bool = False
    worker: fdtc.Register | None = None
    accumulation: int = 1
    batch_size: int = 1
    base_version: int | None = None
    weights: Vector | None = None
    local_step: int | None = None
    loss: float | None = None
    samples_per_sec: float = 0.0
    status: fdtc.Status | None = None
    pushes: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    staleness: deque[int] = field(default_factory=lambda: deque(maxlen=128))

    @property
    def name(self) -> str:
        """The worker's id, or where the connection comes from while it has none."""
        return self.worker.worker_id if self.worker else self.address

    def send(self, message: "fdtc.Message | _SendWeights") -> None:
        """Queue a message; a worker that lets too many pile up is disconnected."""
        if self.outbox.qsize() > OUTBOX_LIMIT:
            close_socket(self.socket)
            return
        self.outbox.put(message)


class Coordinator:
    """Trains named arrays with whoever connects.

    Args:
        parameters: The model's arrays by name, at their first values; copied.
        config: All settings; ``CoordinatorConfig()`` has the defaults of ``coordinator.toml``.
        context: Tokens in one sample, for counting tokens.
        model_name: Shown in ``/status``.

    Raises:
        ModelError: The arrays can't be trained, or are too large for the protocol.
        ConfigError: The update rule is not a possible one.
    """

    def __init__(
        self,
        parameters: Mapping[str, NDArray[np.floating]],
        config: CoordinatorConfig | None = None,
        *,
        context: int = 1,
        model_name: str = "",
    ) -> None:
        self.config = config or CoordinatorConfig()
        self.context = self.config.training.context or context
        self.model_name = model_name or "own model"
        threads = min(hardware.usable_cores(), hardware.MOST_THREADS)
        arithmetic = _arithmetic(self.config.training.optimizer)
        self.master = Master(parameters, self.config.training, threads=threads, arithmetic=arithmetic)
        self._arithmetic = arithmetic.name
        self._check_size()
        self.ledger = ShardLedger(self.config.data.shards)
        self.directory = Path(self.config.checkpointing.directory)
        self.port = self.config.network.port
        self.http_port = self.config.network.http_port
        self.tokens = 0
        self._bytes_of_the_gone = [0, 0]  # received from and sent to workers that have left
        self.loss: float | None = None
        self.checkpoint_error: str | None = None
        self._checkpoint: tuple[int, Path, float] | None = None
        self._lock = threading.RLock()  # membership, ledger, run state and figures
        self._peers: set[Peer] = set()
        self._started = False
        self._paused = False
        self._stopping = threading.Event()  # no more connections, leases or periodic checkpoints
        self._finished = threading.Event()  # all steps are done, or a shutdown was asked for
        self._checkpoint_due = threading.Event()
        self._checkpoint_lock = threading.Lock()
        self._applying = threading.Lock()
        self._unpacked: Vector | None = None  # where compressed gradients are unpacked; kept, so that it is taken once
        self._threads: list[threading.Thread] = []
        self._recent: deque[tuple[float, int]] = deque()
        self._begun = time.monotonic()
        self._lease = self.config.network.heartbeat_interval_sec * self.config.network.missed_heartbeats
        self._listener: socket.socket | None = None
        self._http: HttpServer | None = None
        self._directory_lock: IO[str] | None = None

    # ------------------------------------------------------------------------------------------ for the owner

    def start(self) -> None:
        """Resume from the newest whole checkpoint if there is one, then listen and return.

        Raises:
            CheckpointError: The directory can't be written, or holds no whole checkpoint though it holds some.
            AgentError: A port can't be listened on.
        """
        network = self.config.network
        if network.port == network.http_port != 0:
            raise ConfigError(f"port {network.port} can't serve both: give --port and --http-port different numbers.")
        with ExitStack() as undo:
            self._listener = undo.enter_context(listen(network.host, network.port, "--port"))
            http_listener = undo.enter_context(listen(network.host, network.http_port, "--http-port"))
            self._resume(undo)
            undo.pop_all()
        self.port = self._listener.getsockname()[1]
        self.http_port = http_listener.getsockname()[1]
        self._http = HttpServer(self, http_listener)
        self._http.start()
        self._spawn(self._accept, "accept")
        self._spawn(self._watch_leases, "leases")
        self._spawn(self._write_checkpoints, "checkpoints")
        if self._steps_done() and not self.config.network.restarts:
            self._finished.set()
        log.info(
            "coordinator listens",
            model=self.model_name,
            parameters=self.master.layout.size,
            version=self.step,
            port=self.port,
            http_port=self.http_port,
            min_workers=self.config.training.min_workers,
            arithmetic=self._arithmetic,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all steps are done or a shutdown is asked for; False when the time is up first."""
        return self._finished.wait(timeout)

    def stop(self) -> None:
        """Tell the workers to stop, save a last checkpoint and free the ports.

        Raises:
            CheckpointError: The last checkpoint could not be written.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._finished.set()
        self._checkpoint_due.set()
        if self._listener:
            close_socket(self._listener)
        peers = self._all_peers()
        for peer in peers:
            if peer.worker and not self.config.network.restarts:
                peer.send(fdtc.Shutdown())
            peer.outbox.put(None)
        deadline = time.monotonic() + FLUSH_SECONDS
        self._join_until(deadline, "write ")
        self._join_until(deadline, "read ")
        for peer in peers:
            close_socket(peer.socket)
        self._join_until(time.monotonic() + FLUSH_SECONDS, "")
        if self._http:
            self._http.stop()
        if self.step > (self._checkpoint[0] if self._checkpoint else 0):
            self.save_checkpoint()
        if self._directory_lock:
            self._directory_lock.close()
        log.info("coordinator has stopped", version=self.step, tokens=self.tokens)

    def pause(self) -> None:
        """Tell all workers to stop after their present batch; gradients on their way are still applied."""
        with self._lock:
            self._paused = True
            self._keep_pause()
            self._broadcast(fdtc.Pause())
        log.info("paused", version=self.step)

    def resume(self) -> None:
        """Let all workers go on."""
        with self._lock:
            self._paused = False
            self._keep_pause()
            if not self._steps_done():
                self._broadcast(fdtc.Resume())
        log.info("resumed", version=self.step)

    def _keep_pause(self) -> None:
        """Leave a mark on the disk, so that a coordinator that is started again is still paused."""
        mark = self.directory / PAUSE_MARK
        try:
            if self._paused:
                mark.touch()
            else:
                mark.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a restart will not know about the pause", path=str(mark), reason=error.strerror)

    def sync(self) -> None:
        """Tell all workers to drop what they compute and fetch the present weights."""
        self._broadcast(fdtc.Sync())

    def shut_down(self) -> None:
        """Ask the owner, who is in `wait`, to call `stop`."""
        self._finished.set()
        log.info("shutdown was asked for")

    def save_checkpoint(self) -> Path:
        """Write a checkpoint of this moment and return its directory.

        Raises:
            CheckpointError: It could not be written; earlier ones are untouched.
        """
        with self._checkpoint_lock:
            version, weights, optimizer = self.master.copy_state()
            if self._checkpoint and self._checkpoint[0] == version and self._checkpoint[1].exists():
                return self._checkpoint[1]  # to write it again it would have to be removed first
            with self._lock:
                facts = {
                    "model": self.model_name,
                    "fingerprint": self.master.fingerprint,
                    "parameters": self.master.layout.size,
                    "tokens": self.tokens,
                    "loss": self.loss,
                    "bytes": self._bytes(),
                    "optimizer": self.config.training.optimizer,
                    "data": {"path": self.config.data.path, "passes": list(self.ledger.passes)},
                    "config": msgspec.to_builtins(self.config),
                    "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                }
            try:
                path = checkpoint.save(
                    self.directory, version, weights, optimizer, facts, keep=self.config.checkpointing.keep
                )
            except CheckpointError as error:
                self.checkpoint_error = str(error)
                raise
            self.checkpoint_error = None
            self._checkpoint = (version, path, time.monotonic())
        log.info("checkpoint written", version=version, path=str(path))
        return path

    def tell_workers_of_checkpoint(self) -> None:
        """Ask all workers to push what they have accumulated, so that a checkpoint misses little."""
        self._broadcast(fdtc.Checkpoint())

    @property
    def step(self) -> int:
        """The version of the weights: how many updates they have had."""
        return self.master.version

    @property
    def num_workers(self) -> int:
        """How many workers are registered and alive."""
        return len(self._workers())

    def weights(self) -> dict[str, Vector]:
        """Copy the present weights, by name."""
        return self.master.copy_state()[1]

    def status(self) -> dict[str, Any]:
        """Everything that ``/status`` shows; JSON values. See ``docs/agent.md`` for the keys."""
        now = time.monotonic()
        training = self.config.training
        with self._lock:
            saved = self._checkpoint
            received, sent = self._bytes()
            return {
                "run": {"model": self.model_name, "state": self._run_state(), "steps": training.steps},
                "version": self.master.version,
                "loss": self.loss,
                "tokens": self.tokens,
                "tokens_per_sec": self._tokens_per_second(now),
                "bytes_received": received,
                "bytes_sent": sent,
                "parameters": self.master.layout.size,
                "fingerprint": self.master.fingerprint,
                "gradients_applied": self.master.gradients_applied,
                "gradients_refused": dict(self.master.gradients_refused),
                "weights_pulled": self.master.weights_pulled,
                "avg_staleness": round(self.master.average_staleness, 3),
                "max_staleness": training.max_staleness,
                "min_workers": training.min_workers,
                "compression": self.config.compression.type,
                "optimizer": training.optimizer,
                "learning_rate": self.master.learning_rate,
                "context": self.context,
                "data": {
                    "path": self.config.data.path,
                    "shards": self.ledger.total,
                    "passes_min": min(self.ledger.passes),
                    "passes_max": max(self.ledger.passes),
                },
                "uptime_sec": round(now - self._begun, 1),
                "checkpoint": saved
                and {"version": saved[0], "path": str(saved[1]), "age_sec": round(now - saved[2], 1)},
                "checkpoint_error": self.checkpoint_error,
                "workers": [self._worker_status(peer, now) for peer in self._workers()],
            }

    # --------------------------------------------------------------------------------------------- connections

    def _accept(self) -> None:
        assert self._listener
        while not self._stopping.is_set():
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if self._stopping.is_set():
                    return
                # Out of file descriptors, say: those who are connected go on, and we try again.
                log.error("can't accept a connection", reason=str(error))
                self._stopping.wait(0.5)
                continue
            tune(connection, self._lease)
            peer = Peer(connection, f"{address[0]}:{address[1]}")
            peer.wire.limits[fdtc.MessageType.GRADIENTS] = self._largest_gradient
            with self._lock:
                self._peers.add(peer)
            try:
                self._spawn(functools.partial(self._read, peer), f"read {peer.address}")
                self._spawn(functools.partial(self._write, peer), f"write {peer.address}")
            except RuntimeError as error:  # this container has as many threads as it may; later it may have fewer
                log.error("can't serve a connection", peer=peer.address, reason=str(error))
                self._leave(peer, "there is no thread for it")
                close_socket(connection)
                self._stopping.wait(0.5)

    def _read(self, peer: Peer) -> None:
        reason = "connection closed"
        try:
            while size := peer.socket.recv_into(peer.wire.get_buffer()):
                peer.last_seen = time.monotonic()
                peer.bytes_received += size
                if over := self._take(peer, size):
                    reason = over
                    break
        except RemoteProtocolError as error:
            reason = f"protocol error: {error}"
            log.warning("a peer was disconnected", peer=peer.name, address=peer.address, reason=str(error))
            peer.send(fdtc.Error(error.code, str(error)))
        except OSError as error:
            reason = str(error)
        self._leave(peer, reason)
        see_off(peer.socket, FAREWELL_SECONDS)

    def _end_later(self, peer: Peer) -> None:
        """Give a last message time to arrive, then end a connection whose other side may never do so."""
        self._stopping.wait(FAREWELL_SECONDS)
        close_socket(peer.socket)

    def _take(self, peer: Peer, size: int) -> str | None:
        """Handle what has arrived; at the last message, why the conversation is over."""
        with peer.lock:
            peer.wire.received(size)
        while True:
            with peer.lock:
                message = peer.wire.next_message()
            match message:
                case None:
                    return None
                case fdtc.Gradients():
                    self._gradient(peer, message)
                case fdtc.Heartbeat():
                    self._heartbeat(peer, message)
                case fdtc.WeightsRequest():
                    peer.send(_SendWeights())
                case fdtc.Status():
                    peer.status = message
                case fdtc.Register():
                    self._register(peer, message)
                case fdtc.Deregister():
                    return "deregistered"
                case fdtc.Error():
                    log.warning("a worker reports an error", worker=peer.name, reason=message.message)
                    return "it reported an error"
                case _:
                    raise AssertionError(f"the state table let {message!r} through")

    def _write(self, peer: Peer) -> None:
        try:
            while (message := peer.outbox.get()) is not None:
                buffers = self._encode(peer, message)
                peer.bytes_sent += send_buffers(peer.socket, buffers)
        except OSError as error:
            log.info("can't write to a peer", peer=peer.name, reason=str(error))
            close_socket(peer.socket)
            return
        except DivergedError as error:
            close_socket(peer.socket)
            self._give_up(error)
            return
        with suppress(OSError):  # the other side was quicker
            peer.socket.shutdown(socket.SHUT_WR)

    def _encode(self, peer: Peer, message: "fdtc.Message | _SendWeights") -> Sequence[Buffer]:
        if isinstance(message, _SendWeights):
            return self._encode_weights(peer)
        with peer.lock:
            try:
                return peer.wire.send(message)
            except LocalProtocolError:
                # The worker may have ended the conversation since this was queued; anything else is our fault.
                if peer.wire.state not in CONVERSATION_OVER:
                    raise
                return []

    def _encode_weights(self, peer: Peer) -> Sequence[Buffer]:
        if peer.weights is None:
            peer.weights = np.empty(self.master.layout.size, np.float32)
        version = self.master.snapshot(peer.weights)
        meta = fdtc.WeightsMeta(version, self.master.learning_rate, self.master.specs)
        data = fdtc.encode_tensors(peer.weights, self.master.specs, fdtc.Compression.NONE)
        with peer.lock:
            if peer.wire.state in CONVERSATION_OVER:
                return []
            peer.base_version = version
            return [*peer.wire.send(meta), *peer.wire.send(fdtc.Weights(memoryview(data)))]

    def _leave(self, peer: Peer, reason: str) -> None:
        peer.outbox.put(None)  # the writer sends what is queued, then closes the socket
        with self._lock:
            if peer.left:
                return
            peer.left = True
            self._peers.discard(peer)
            self._bytes_of_the_gone[0] += peer.bytes_received
            self._bytes_of_the_gone[1] += peer.bytes_sent
            if not peer.worker:
                return
            self.ledger.release(peer.name)
            workers = self.num_workers
        log.info("worker has left", worker=peer.name, reason=reason, workers=workers)
        if self._started and workers < self.config.training.min_workers and not self._stopping.is_set():
            log.warning(
                "fewer workers than min_workers; training goes on",
                workers=workers,
                min_workers=self.config.training.min_workers,
            )

    # ------------------------------------------------------------------------------------------------ messages

    def _register(self, peer: Peer, message: fdtc.Register) -> None:
        if message.protocol_version != fdtc.PROTOCOL_VERSION:
            raise RemoteProtocolError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"protocol version {message.protocol_version} is not spoken here, only {fdtc.PROTOCOL_VERSION}",
            )
        with self._lock:
            if peer.worker:
                self._next_shard(peer, message)
                return
            if self._finished.is_set():
                peer.send(self._acknowledge(message, accepted=False))
                peer.send(fdtc.Error(ErrorCode.REFUSED, "training is over here"))
                return
            self._replace_ghost(message.worker_id)
            peer.worker = message
            peer.batch_size, peer.accumulation = _plan(message)
            shard = self.ledger.take(message.worker_id)
            workers = self.num_workers
            peer.send(self._acknowledge(message, accepted=True, shard=shard))
            if self._paused or self._steps_done():
                peer.send(fdtc.Pause())
            if self._started:
                peer.send(fdtc.Start())
            log.info(
                "worker has joined",
                worker=peer.name,
                profile=message.profile.name,
                shard=shard,
                batch_size=peer.batch_size,
                workers=workers,
            )
            self._start_training(workers)

    def _start_training(self, workers: int) -> None:
        wanted = self.config.training.min_workers
        if self._started:
            return
        if workers < wanted:
            log.info("waiting for more workers", workers=workers, min_workers=wanted)
            return
        self._started = True
        self._broadcast(fdtc.Start())
        log.info("training starts", workers=workers, version=self.step)

    def _next_shard(self, peer: Peer, message: fdtc.Register) -> None:
        if message.worker_id != peer.name:
            raise RemoteProtocolError(
                ErrorCode.ILLEGAL_STATE,
                f"this connection belongs to {peer.name!r}, not {message.worker_id!r}",
            )
        self.ledger.finish(peer.name)
        shard = self.ledger.take(peer.name)
        peer.send(self._acknowledge(message, accepted=True, shard=shard))
        if self._started:  # a version-1 peer may wait for it after every REGISTER
            peer.send(fdtc.Start())

    def _replace_ghost(self, worker_id: str) -> None:
        for ghost in self._workers():
            if ghost.name == worker_id:
                log.info("worker is back, its old connection ends", worker=worker_id)
                ghost.send(fdtc.Error(ErrorCode.DUPLICATE_ID, "a newer connection with this worker id took over"))
                self._leave(ghost, "replaced by a newer connection")
                self._spawn(functools.partial(self._end_later, ghost), f"end {ghost.address}")

    def _acknowledge(self, message: fdtc.Register, *, accepted: bool, shard: int = 0) -> fdtc.RegisterAck:
        batch, accumulation = _plan(message)
        compression = self.config.compression
        return fdtc.RegisterAck(
            accepted=accepted,
            assigned_shard=shard,
            total_shards=self.ledger.total,
            batch_size=batch,
            accumulation_steps=accumulation,
            compression=fdtc.Compression[compression.type.upper()],
            topk_ratio=compression.topk_ratio,
            global_step=self.step,
        )

    def _heartbeat(self, peer: Peer, message: fdtc.Heartbeat) -> None:
        self._check_sender(peer, message.worker_id)
        peer.samples_per_sec = message.samples_per_sec
        if peer.local_step is None:
            peer.local_step = message.local_step
        if message.local_step and np.isfinite(message.current_loss):
            peer.loss = message.current_loss
        peer.send(fdtc.HeartbeatAck())
        peer.send(fdtc.StatusRequest())

    def _gradient(self, peer: Peer, message: fdtc.Gradients) -> None:
        self._check_sender(peer, message.worker_id)
        outcome = self._apply(peer, message)
        # Version 1 has no word for "refused": an acknowledgement, then SYNC, makes the worker fetch and go on.
        peer.send(fdtc.GradientsAck())
        if outcome.refusal:
            peer.refused[outcome.refusal] += 1
            peer.local_step = message.local_step
            say = log.debug if outcome.refusal is Refusal.FINISHED else log.info
            say("gradient refused", worker=peer.name, reason=outcome.refusal, staleness=outcome.staleness)
            peer.send(fdtc.Sync())
            return
        self._count(peer, message, outcome)
        if outcome.version % self.config.checkpointing.interval == 0:
            self._checkpoint_due.set()
        if self._steps_done() and not self._finished.is_set():
            self._finish(outcome.version)

    def _finish(self, version: int) -> None:
        """All steps are done. Where an end would only mean a new start, stay: idle, with the workers at rest."""
        log.info("all steps are done", version=version)
        if self.config.network.restarts:
            self._broadcast(fdtc.Pause())
            self._checkpoint_due.set()
        else:
            self._broadcast(fdtc.Shutdown())
            self._finished.set()

    def _apply(self, peer: Peer, message: fdtc.Gradients) -> Outcome:
        specs = self.master.specs
        if message.num_tensors != len(specs) or message.uncompressed_size != 4 * self.master.layout.size:
            raise RemoteProtocolError(
                ErrorCode.MODEL_MISMATCH,
                f"a gradient of {message.num_tensors} tensors and {message.uncompressed_size} bytes, where this model "
                f"has {len(specs)} and {4 * self.master.layout.size}: both sides need the same --model",
            )
        # One at a time: threads that compute at once wait for one another's turns in the interpreter, and with eight
        # workers that took more time than the second core saved. So one buffer will do for all workers, too.
        with self._applying:
            if message.compression != fdtc.Compression.NONE and self._unpacked is None:
                self._unpacked = np.empty(self.master.layout.size, np.float32)
            out = None if message.compression == fdtc.Compression.NONE else self._unpacked
            gradient = fdtc.decode_tensors(message.data, specs, message.compression, out)
            if self._finished.is_set() or self._steps_done():
                return self.master.refuse(Refusal.FINISHED)
            if not self._started:
                return self.master.refuse(Refusal.NOT_STARTED)
            if peer.base_version is None:
                return self.master.refuse(Refusal.NO_WEIGHTS)
            return self.master.apply(gradient, peer.base_version)

    def _count(self, peer: Peer, message: fdtc.Gradients, outcome: Outcome) -> None:
        minibatches = self._minibatches_since(peer, message.local_step)
        peer.accumulation = minibatches
        tokens = minibatches * peer.batch_size * self.context
        with self._lock:
            peer.pushes += 1
            peer.tokens += tokens
            peer.staleness.append(outcome.staleness)
            self.tokens += tokens
            self._recent.append((time.monotonic(), tokens))
            if peer.loss is not None:
                self.loss = peer.loss if self.loss is None else 0.95 * self.loss + 0.05 * peer.loss

    def _minibatches_since(self, peer: Peer, local_step: int) -> int:
        """Mini-batches behind a push; local_step counts them, from any number on when a worker has come back."""
        before, peer.local_step = peer.local_step, local_step
        if before is None:
            return max(1, min(local_step, peer.accumulation))
        if not 0 < local_step - before <= 1024:
            return peer.accumulation  # a peer that counts otherwise is credited what it was assigned
        return local_step - before

    def _check_sender(self, peer: Peer, worker_id: str) -> None:
        if worker_id != peer.name:
            raise RemoteProtocolError(
                ErrorCode.ILLEGAL_STATE, f"worker {peer.name!r} signs as {worker_id!r} on its own connection"
            )

    # ---------------------------------------------------------------------------------------------- background

    def _watch_leases(self) -> None:
        lease = self._lease
        while not self._stopping.wait(min(1.0, lease / 4)):
            now = time.monotonic()
            for peer in self._all_peers():
                if not peer.worker and now - peer.connected > max(GREETING_SECONDS, lease):
                    self._leave(peer, "did not register")
                    close_socket(peer.socket)
                elif now - peer.last_seen > lease:
                    self._leave(peer, f"silent for {lease:g} s")
                    close_socket(peer.socket)

    def _write_checkpoints(self) -> None:
        while self._checkpoint_due.wait() and not self._stopping.is_set():
            self._checkpoint_due.clear()
            try:
                self.save_checkpoint()
            except DivergedError as error:
                self._give_up(error)
            except CheckpointError as error:
                log.error("checkpoint failed; training goes on, the next one is tried in time", reason=str(error))

    def _give_up(self, error: DivergedError) -> None:
        """Have the owner call `stop`, which raises the same error, since there is nothing to save."""
        if not self._finished.is_set():
            log.error("the run ends", reason=str(error))
        self._finished.set()

    def _resume(self, undo: ExitStack) -> None:
        self.directory = _writable(self.directory)
        self._directory_lock = undo.enter_context(checkpoint.lock(self.directory))
        self._paused = (self.directory / PAUSE_MARK).exists()
        if self._paused:
            log.warning("training is paused, as it was before; resume it with POST /control/resume")
        found = checkpoint.load_newest(self.directory, set_damaged_aside=True)
        if found is None:
            return
        try:
            self.master.restore(found.version, found.weights, found.optimizer)
        except CheckpointError as error:
            raise CheckpointError(f"{found.path}: {error}") from error
        self.tokens = int(found.manifest.get("tokens", 0))
        self.loss = found.manifest.get("loss")
        self._bytes_of_the_gone = list(found.manifest.get("bytes", [0, 0]))
        passes = found.manifest.get("data", {}).get("passes", [])
        if len(passes) == self.ledger.total:
            self.ledger = ShardLedger(self.ledger.total, passes)
        self._checkpoint = (found.version, found.path, time.monotonic())
        log.info("resumed from a checkpoint", version=found.version, tokens=self.tokens, path=str(found.path))

    # ------------------------------------------------------------------------------------------------- helpers

    def _check_size(self) -> None:
        models.check_sendable(self.master.specs)
        self._largest_gradient = 80 + max(
            fdtc.max_encoded_size(self.master.specs, compression) for compression in fdtc.Compression
        )

    def _steps_done(self) -> bool:
        steps = self.config.training.steps
        return bool(steps) and self.step >= steps

    def _run_state(self) -> str:
        if self._finished.is_set() or self._steps_done():
            return "finished"
        if self._paused:
            return "paused"
        return "training" if self._started else "waiting"

    def _bytes(self) -> list[int]:
        """Bytes received from and sent to workers since the run began, over restarts too."""
        with self._lock:
            received, sent = self._bytes_of_the_gone
            return [
                received + sum(peer.bytes_received for peer in self._peers),
                sent + sum(peer.bytes_sent for peer in self._peers),
            ]

    def _workers(self) -> list[Peer]:
        with self._lock:
            return sorted((p for p in self._peers if p.worker), key=lambda p: p.name)

    def _all_peers(self) -> list[Peer]:
        with self._lock:
            return list(self._peers)

    def _broadcast(self, message: fdtc.Message) -> None:
        for peer in self._workers():
            peer.send(message)

    def _tokens_per_second(self, now: float) -> float:
        while self._recent and now - self._recent[0][0] > RATE_WINDOW:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        return round(sum(tokens for _, tokens in self._recent) / max(1.0, min(RATE_WINDOW, now - self._begun)), 1)

    def _worker_status(self, peer: Peer, now: float) -> dict[str, Any]:
        assert peer.worker
        spec = fdtc.PROFILES[peer.worker.profile]
        state = "paused" if self._paused else "training" if peer.pushes or self._started else "registered"
        return {
            "id": peer.name,
            "address": peer.address,
            "profile": peer.worker.profile.name,
            "class": spec.hardware_class,
            "state": state,
            "connected_sec": round(now - peer.connected, 1),
            "shard": self.ledger.held_by(peer.name),
            "cores": peer.worker.num_cores,
            "memory_mb": peer.worker.memory_mb,
            "memory_used_mb": peer.status.memory_used_mb if peer.status else None,
            "batch_size": peer.batch_size,
            "accumulation_steps": peer.accumulation,
            "version": peer.base_version,
            "pushes": peer.pushes,
            "refused": dict(peer.refused),
            "tokens": peer.tokens,
            "loss": peer.loss,
            "samples_per_sec": round(peer.samples_per_sec, 2),
            "avg_staleness": round(sum(peer.staleness) / len(peer.staleness), 3) if peer.staleness else 0.0,
            "bytes_received": peer.bytes_received,
            "bytes_sent": peer.bytes_sent,
            "last_seen_sec": round(now - peer.last_seen, 1),
        }

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _join_until(self, deadline: float, prefix: str) -> None:
        with self._lock:
            waited_for: Iterable[threading.Thread] = [t for t in self._threads if t.name.startswith(prefix)]
        for thread in waited_for:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _arithmetic(optimizer: str) -> optim.Arithmetic:
    """The fastest there is for this optimizer: numba, where it is installed, is three times as fast as numpy."""
    if optimizer not in optim.ADAMS:
        return optim.NUMPY  # as fast
    try:
        from .fused import FUSED
    except Exception as error:  # noqa: BLE001 - a numpy that it does not know, a library that it misses, and what not
        if not (isinstance(error, ImportError) and error.name == "numba"):  # it is there, and does not work
            log.warning("numba can't be used; numpy does its work, more slowly", reason=str(error))
        return optim.NUMPY
    return FUSED


def _plan(message: fdtc.Register) -> tuple[int, int]:
    """Batch size and accumulation for a worker: its own batch if it names one, and its profile's effective batch."""
    spec = fdtc.PROFILES.get(message.profile, fdtc.PROFILES[Profile.UNKNOWN])
    if not message.suggested_batch_size:
        return spec.batch_size, spec.accumulation_steps
    effective = spec.batch_size * spec.accumulation_steps
    return message.suggested_batch_size, max(1, round(effective / message.suggested_batch_size))


def _writable(directory: Path) -> Path:
    """Make the checkpoint directory; away from a container its default place may not be ours."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if directory == DEFAULT_DIRECTORY:
            here = Path.cwd() / "checkpoints"
            log.warning("can't write to /checkpoints, using the current folder", reason=error.strerror, path=str(here))
            return _writable(here)
        raise CheckpointError(
            f"can't write to {directory}: {error.strerror}. Name a folder that can be written with --checkpoint-dir."
        ) from error
    return directory
