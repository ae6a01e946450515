"""The worker: fetches weights, computes gradients on its shard of the data, pushes them, and survives its links.

The training loop runs in the caller's thread. A session, which is one connection, has two more: one that reads, so
that control messages and status requests are answered during a long computation, and one that sends heartbeats.

May import: everything of the agent but ``coordinator`` and the commands.
"""

import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import psutil
import structlog
from numpy.typing import NDArray

import fdtc
from fdtc import Compression, ErrorCode, RemoteProtocolError

from . import hardware, master, optim
from .compression import Compressor
from .config import WorkerConfig
from .errors import ConfigError, DataError, ModelError, RefusedError, UnreachableError
from .models import DataFactory, DataSource, TrainableModel, parameters_of
from .net import close_socket, see_off, send_buffers, tune
from .theirs import calling

log = structlog.get_logger()
CONNECT_SECONDS = 20.0
MOST_NOT_FINITE = 10
COMPLAINT_SECONDS = 1.0
MISSED_HEARTBEATS = 3
SOURCE = ("next_batch", "reset", "close")  # what a data source can do
SMALLER = "Choose a smaller --batch-size or --context."
# What trying again will not mend.
FINAL_ERRORS = (
    ErrorCode.MODEL_MISMATCH,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.DUPLICATE_ID,
    ErrorCode.REFUSED,
)

Vector = NDArray[np.float32]
T = TypeVar("T")


class Disconnected(ConnectionError):  # noqa: N818 - an event, not a fault
    """The session is over; the worker connects again."""


class Stopped(Exception):  # noqa: N818
    """The worker should end cleanly: it was told to, by its owner or by the coordinator."""


class Session:
    """One connection to a coordinator.

    Everything that the reading thread learns is kept here under one condition, and the training loop waits on it.
    """

    def __init__(self, worker: "Worker", connection: socket.socket) -> None:
        self.worker = worker
        self.socket = connection
        self.wire = fdtc.Connection(fdtc.Role.WORKER)
        self.ack: fdtc.RegisterAck | None = None
        self.started = False
        self.paused = False
        self.rebase = False  # what is being computed is of no use any more
        self.push_now = False
        self.shut_down = False
        self.meta: fdtc.WeightsMeta | None = None
        self.base: fdtc.WeightsMeta | None = None
        self.pushes_acknowledged = 0
        self._weights_wanted: Vector | None = None
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._sending = threading.RLock()
        self._last_received = time.monotonic()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, name="session-read", daemon=True),
            threading.Thread(target=self._beat, name="session-heartbeat", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------------------------- for the training loop

    def register(self, message: fdtc.Register) -> fdtc.RegisterAck:
        """Ask for a place and a shard; return what the coordinator assigns.

        Raises:
            RefusedError: The coordinator does not want this worker.
            Disconnected: The connection broke.
            Stopped: The worker should end.
        """
        self.ack = None
        self.send(message)
        ack = self.wait(lambda: self.ack)
        if not ack.accepted:
            self._closed.wait(CONNECT_SECONDS)  # the reason follows, then the connection ends
            reason = f": {self._error}" if self._error else "."
            raise RefusedError(f"the coordinator does not accept this worker{reason}")
        return ack

    def pull(self, weights: Vector | None) -> tuple[fdtc.WeightsMeta, Vector]:
        """Fetch the present weights into `weights`, or into a new vector where that is None or does not fit.

        Raises:
            Disconnected: The connection broke.
            Stopped: The worker should end.
        """
        with self._changed:
            self.meta = self.base = None
            self.rebase = False
            self._weights_wanted = np.empty(0, np.float32) if weights is None else weights
        self.send(fdtc.WeightsRequest())
        base = self.wait(lambda: self.base)
        received, self._weights_wanted = self._weights_wanted, None
        assert received is not None
        return base, received

    def push(self, message: fdtc.Gradients, heartbeat: fdtc.Heartbeat) -> None:
        """Send a gradient, with the loss before it since version 1 has no place for it, and await its receipt."""
        before = self.pushes_acknowledged
        with self._sending:
            self.send(heartbeat)
            self.send(message)
        self.wait(lambda: self.pushes_acknowledged > before)

    def wait(self, condition: Callable[[], T | None]) -> T:
        """Wait until something that the coordinator says makes `condition` true, and return what it gave.

        Raises:
            Disconnected: The connection broke.
            Stopped: The worker should end.
        """
        with self._changed:
            while not (found := condition()):
                self.check()
                self._changed.wait()
            self.check()
            return found

    def check(self) -> None:
        """Raise what ends the session, if anything does."""
        if self.shut_down or self.worker.stopping:
            raise Stopped
        if self._error is not None:
            raise self._error

    @property
    def given_up(self) -> bool:
        """Whether what is being computed is of no use any more: rebase, shutdown, or a broken connection."""
        return self.rebase or self.shut_down or self.worker.stopping or self._error is not None

    def send(self, message: fdtc.Message) -> None:
        """Send one message, from the training loop.

        Raises:
            Disconnected: The connection broke.
            Stopped: It broke, and the worker should end anyway.
        """
        try:
            self._transmit(message)
        except OSError as error:
            if self._error is None:
                self._end(error)
            self.check()
            raise

    def leave(self) -> None:
        """Say goodbye, so that the coordinator need not wait for silence; nothing is sent after it."""
        with self._sending:
            if self.ack and not self._closed.is_set():
                with suppress(OSError):  # the connection is gone: so are we
                    self._transmit(fdtc.Deregister(self.worker.worker_id))
            self._closed.set()

    def wake(self) -> None:
        """Make the training loop look whether the worker is stopping."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the connection and its threads."""
        self._closed.set()
        if isinstance(self._error, RemoteProtocolError):  # which the reader is telling the coordinator
            self._threads[0].join(2 * COMPLAINT_SECONDS)
        close_socket(self.socket)
        for thread in self._threads:
            thread.join()

    # ------------------------------------------------------------------------------------------------- threads

    def _read(self) -> None:
        try:
            while size := self.socket.recv_into(self.wire.get_buffer()):
                self._last_received = time.monotonic()
                with self._changed:
                    self.wire.received(size)
                while True:
                    with self._changed:
                        message = self._next_message()
                        if message is None:
                            break
                        self._take(message)
                        self._changed.notify_all()
                    if isinstance(message, fdtc.StatusRequest):
                        self._transmit(self.worker.status())
            self._end(Disconnected("the coordinator closed the connection"))
        except RemoteProtocolError as error:
            self._complain(error)
            self._end(error)
        except OSError as error:
            self._end(error)

    def _next_message(self) -> fdtc.Message | None:
        try:
            return self.wire.next_message()
        except RemoteProtocolError as error:
            self._error = self._error or error  # at once, so that no other thread sends on
            raise

    def _transmit(self, message: fdtc.Message) -> None:
        with self._sending:
            with self._changed:
                if self._closed.is_set() or self._error is not None:
                    raise Disconnected("the session is over")
                buffers = self.wire.send(message)
            self.worker.bytes_sent += send_buffers(self.socket, buffers)

    def _complain(self, error: RemoteProtocolError) -> None:
        """Tell the coordinator what it did wrong, unless it has said goodbye or does not read."""
        if self._error is not error or not self._sending.acquire(timeout=COMPLAINT_SECONDS):
            return
        try:
            send_buffers(self.socket, self.wire.send(fdtc.Error(error.code, str(error))))
            self.socket.shutdown(socket.SHUT_WR)
            see_off(self.socket, COMPLAINT_SECONDS)
        except OSError:
            log.debug("the complaint did not arrive", reason=str(error))
        finally:
            self._sending.release()

    def _take(self, message: fdtc.Message) -> None:
        match message:
            case fdtc.RegisterAck():
                self.ack = message
            case fdtc.WeightsMeta():
                self.meta = message
            case fdtc.Weights():
                self._take_weights(message)
            case fdtc.GradientsAck():
                self.pushes_acknowledged += 1
            case fdtc.Start():
                self.started = True
            case fdtc.Pause():
                self.paused = True
            case fdtc.Resume():
                self.paused = False
            case fdtc.Sync():
                self.rebase = True
            case fdtc.Checkpoint():
                self.push_now = True
            case fdtc.Shutdown():
                self.shut_down = True
            case fdtc.Error():
                self._end(_error_from(message))
            case fdtc.HeartbeatAck() | fdtc.StatusRequest():
                pass  # the one only shows that the coordinator lives; the other is answered by the caller
            case _:
                raise AssertionError(f"the state table let {message!r} through")

    def _take_weights(self, message: fdtc.Weights) -> None:
        # Weights that nobody asked for would change the model under a running computation.
        if self.meta is None or self._weights_wanted is None or self.base is not None:
            return
        flat = fdtc.decode_tensors(message.data, self.meta.tensors, Compression.NONE)
        if self._weights_wanted.size != flat.size:
            self._weights_wanted = np.empty(flat.size, np.float32)
        np.copyto(self._weights_wanted, flat)
        self.base = self.meta

    def _beat(self) -> None:
        interval = self.worker.config.network.heartbeat_interval_sec
        while not self._closed.wait(interval):
            if time.monotonic() - self._last_received > MISSED_HEARTBEATS * interval:
                doubt = "" if self.ack else "; is this its port for workers (7100), not that for HTTP?"
                self._end(Disconnected(f"the coordinator was silent for {MISSED_HEARTBEATS * interval:g} s{doubt}"))
                return
            if self.ack is None:
                continue
            try:
                self._transmit(self.worker.heartbeat())
            except OSError as error:
                if self._error is None:
                    self._end(error)
                return

    def _end(self, error: Exception) -> None:
        with self._changed:
            if self._error is None:
                self._error = Disconnected(str(error)) if isinstance(error, OSError) else error
            self._closed.set()
            self._changed.notify_all()
        close_socket(self.socket)


class Worker:
    """Trains a model with a coordinator until that ends the run.

    Args:
        model: Has ``parameters`` and ``loss_and_gradients(batch)``.
        data: A source, or a function ``(shard, total_shards) -> source``.
        config: All settings; ``WorkerConfig()`` has the defaults of ``worker.toml``.
        worker_id: A name that no other worker has, at most 64 bytes; made up where empty.

    Raises:
        ModelError: The model's parameters can't be trained.
        ConfigError: The profile is unknown, or the id is too long.
    """

    def __init__(
        self,
        model: TrainableModel,
        data: DataSource | DataFactory,
        config: WorkerConfig | None = None,
        *,
        worker_id: str = "",
    ) -> None:
        self.config = config or WorkerConfig()
        self.model = model
        parameters = parameters_of(model)
        self.specs = master.specs_of(parameters)
        for name, array in parameters.items():
            if not array.flags.writeable:
                raise ModelError(f"parameter {name!r} can't be written to, and new weights go there; copy it first.")
        self._layout = optim.Layout.from_shapes({spec.name: spec.shape for spec in self.specs})
        self.machine = hardware.detect(self.config.hardware)
        self.worker_id = _worker_id(worker_id)
        self._make_source = _factory(data)
        self._source: DataSource | None = None
        self._shard: tuple[int, int] | None = None
        self._session: Session | None = None
        self._stop = threading.Event()
        self._compressor: Compressor | None = None
        self._weights: Vector | None = None
        self._gradient: Vector | None = None
        self.local_step = 0  # mini-batches
        self.pushes = 0
        self.samples = 0
        self.loss = float("nan")
        self.average_loss = float("nan")
        self.samples_per_sec = 0.0
        self.bytes_sent = 0
        self._not_finite = 0

    # ----------------------------------------------------------------------------------------------- for the owner

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def run(self) -> None:
        """Train until the coordinator ends the run, `steps` pushes are done, or `stop` is called.

        Raises:
            ConfigError: The coordinator's name can't be one.
            UnreachableError: No connection within the configured attempts.
            RefusedError: The coordinator turned this worker away for good.
            ModelError: The coordinator trains another model.
            DataError: The data is missing or broken.
        """
        failures = 0
        try:
            while not self.stopping:
                try:
                    session = self._connect()
                    try:
                        self._register(session)
                        session.send(self.heartbeat())  # tells where this worker's counts stand
                        failures = 0
                        self._train(session)
                    except Stopped:
                        session.leave()
                        break
                    finally:
                        session.close()
                except (OSError, RemoteProtocolError) as error:
                    failures += 1
                    self._wait_before_retry(failures, error)
        finally:
            self._close_source()
        log.info("worker has stopped", worker=self.worker_id, pushes=self.pushes, samples=self.samples)

    def stop(self) -> None:
        """Make `run` return after the batch that is being computed. May be called from another thread."""
        self._stop.set()
        if session := self._session:
            session.wake()

    def heartbeat(self) -> fdtc.Heartbeat:
        """Describe the present state in a HEARTBEAT."""
        return fdtc.Heartbeat(self.worker_id, self.local_step, self.loss, self.samples_per_sec)

    def status(self) -> fdtc.Status:
        """Describe the present state in a STATUS."""
        session = self._session
        return fdtc.Status(
            worker_id=self.worker_id,
            local_step=self.local_step,
            samples_processed=self.samples % 2**32,
            current_loss=self.loss,
            avg_loss=self.average_loss,
            samples_per_sec=self.samples_per_sec,
            memory_used_mb=psutil.Process().memory_info().rss // 2**20,
            is_training=session is not None and session.started and not session.paused,
        )

    # ------------------------------------------------------------------------------------------------- connection

    def _connect(self) -> Session:
        network = self.config.network
        address = (network.coordinator_host, network.coordinator_port)
        try:
            connection = socket.create_connection(address, timeout=CONNECT_SECONDS)
        except UnicodeError as error:  # of the rules for names, which no resolver was asked about
            raise ConfigError(
                f"{address[0]!r} can't be the name of a machine: {error}. Give another --host."
            ) from error
        connection.settimeout(None)
        tune(connection, MISSED_HEARTBEATS * network.heartbeat_interval_sec)
        self._session = Session(self, connection)
        return self._session

    def _wait_before_retry(self, failures: int, error: Exception) -> None:
        network = self.config.network
        where = f"{network.coordinator_host}:{network.coordinator_port}"
        if network.reconnect_attempts and failures >= network.reconnect_attempts:
            raise UnreachableError(
                f"no coordinator at {where} after {failures} attempts (the last: {error}). "
                "Is it running, and are --host and --port right? It is started with `swarm-coordinator`."
            ) from error
        # Jitter, so that a fleet does not come back in one instant (and again, and again).
        delay = network.reconnect_delay_sec * random.uniform(0.5, 1.5)
        log.warning("no connection, trying again", coordinator=where, reason=str(error), seconds=round(delay, 1))
        self._stop.wait(delay)

    def _register(self, session: Session) -> fdtc.RegisterAck:
        ack = session.register(
            fdtc.Register(
                worker_id=self.worker_id,
                protocol_version=fdtc.PROTOCOL_VERSION,
                profile=fdtc.nearest_v1(self.machine.profile),
                num_cores=self.machine.cores,
                memory_mb=self.machine.memory_mb,
                suggested_batch_size=self.config.training.batch_size,
            )
        )
        first = self._shard is None
        self._take_shard(ack)
        self._choose_compression(ack)
        log.info(
            "registered" if first else "next shard",
            worker=self.worker_id,
            shard=ack.assigned_shard,
            batch_size=ack.batch_size,
            accumulation_steps=self._accumulation(ack),
            compression=self._compressor.compression.name if self._compressor else "",
        )
        return ack

    def _take_shard(self, ack: fdtc.RegisterAck) -> None:
        own = self.config.data.shard_index
        total = max(1, ack.total_shards)
        if own >= total:
            raise DataError(f"[data] shard_index = {own}: the coordinator has {total} shards, 0 to {total - 1}.")
        shard = (ack.assigned_shard if own < 0 else own, total)
        if shard == self._shard and self._source:
            return
        self._close_source()
        with calling("the data's factory, which is called with a shard and their number,", DataError):
            source = self._make_source(*shard)
            missing = [name for name in SOURCE if not callable(getattr(source, name, None))]
        if missing:
            raise DataError(f"what the data's factory returned has no {' and no '.join(missing)}: see docs/agent.md.")
        self._source = source
        self._shard = shard

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source:
            with calling("the data's `close`", DataError):
                source.close()

    def _choose_compression(self, ack: fdtc.RegisterAck) -> None:
        own = self.config.compression
        kind = Compression[own.type.upper()] if own.type else ack.compression
        ratio = own.topk_ratio or ack.topk_ratio
        old = self._compressor
        if old and (old.compression, old.topk_ratio) == (kind, ratio):
            return  # and its residual stays
        self._compressor = Compressor(
            self.specs, kind, topk_ratio=ratio, levels=own.levels or 255, seed=self.config.training.seed
        )

    def _accumulation(self, ack: fdtc.RegisterAck) -> int:
        return self.config.training.accumulation_steps or max(1, ack.accumulation_steps)

    # --------------------------------------------------------------------------------------------------- training

    def _train(self, session: Session) -> None:
        steps = self.config.training.steps
        while not steps or self.pushes < steps:
            if not session.started:
                log.info("waiting for the coordinator to start")
            session.wait(lambda: session.started and not session.paused)
            meta, weights = session.pull(self._weights)
            self._load(session, meta, weights)
            begun = time.monotonic()
            samples = self._accumulate(session)
            if samples == 0:
                session.check()
                continue
            self.samples_per_sec = samples / max(1e-9, time.monotonic() - begun)
            self._push(session)
        raise Stopped

    def _load(self, session: Session, meta: fdtc.WeightsMeta, weights: Vector) -> None:
        """Write new weights into the model's own arrays."""
        if meta.tensors != self.specs:
            ours = {spec.name: spec.shape for spec in self.specs}
            theirs = {spec.name: spec.shape for spec in meta.tensors}
            text = f"the coordinator trains another model: {master.differences(ours, theirs)}"
            session.send(fdtc.Error(ErrorCode.MODEL_MISMATCH, f"worker {self.worker_id} has another model"))
            raise ModelError(f"{text}. Give both sides the same --model.")
        self._weights = weights
        for name, view in self._layout.views(weights).items():
            np.copyto(self.model.parameters[name], view, casting="same_kind")

    def _accumulate(self, session: Session) -> int:
        """Compute the mean gradient of a few mini-batches; return the samples in it, 0 if there is nothing to push."""
        assert session.ack
        losses = 0.0
        samples = 0
        session.push_now = False
        for _ in range(self._accumulation(session.ack)):
            batch = self._next_batch(session)
            size = _size_of(batch)
            with calling("the model's `loss_and_gradients`", ModelError, SMALLER):
                returned = self.model.loss_and_gradients(batch)
            loss, gradients = _loss_and_gradients(returned)
            self._add(gradients, size, first=samples == 0)
            samples += size
            losses += loss * size
            self.local_step += 1
            if session.given_up:
                return 0
            if session.push_now or session.paused:  # what there is goes out now
                break
        assert self._gradient is not None
        self._gradient /= np.float32(samples)
        if not self._is_finite(losses, self._gradient):
            return 0
        self.samples += samples
        self.loss = losses / samples
        self.average_loss = self.loss if np.isnan(self.average_loss) else 0.98 * self.average_loss + 0.02 * self.loss
        return samples

    def _is_finite(self, losses: float, gradient: Vector) -> bool:
        """Whether loss and gradient can be pushed: one bad batch is left out, many in a row end the worker."""
        if np.isfinite(losses) and np.isfinite(gradient).all():
            self._not_finite = 0
            return True
        self._not_finite += 1
        log.warning("loss or gradient is not finite, left out", local_step=self.local_step, in_a_row=self._not_finite)
        if self._not_finite >= MOST_NOT_FINITE:
            raise ModelError(
                f"loss or gradient was not finite {MOST_NOT_FINITE} times in a row (the loss: {losses}). "
                "A lower learning rate or clip_norm = 1 helps; or the model's code divides by zero."
            )
        return False

    def _add(self, gradients: Mapping[str, NDArray[np.floating]], samples: int, *, first: bool) -> None:
        if self._gradient is None:
            self._gradient = np.empty(self._layout.size, np.float32)
        for name, view in self._layout.views(self._gradient).items():
            gradient = gradients.get(name)
            if gradient is None:
                raise ModelError(f"loss_and_gradients returned no gradient for {name!r}.")
            if not isinstance(gradient, np.ndarray) or gradient.dtype.kind != "f" or gradient.shape != view.shape:
                raise ModelError(
                    f"the gradient of {name!r} must be a numpy array of floats of shape {list(view.shape)}, like the "
                    f"parameter; loss_and_gradients returned {_in_words(gradient)}."
                )
            if first:
                np.multiply(gradient, samples, out=view, casting="same_kind")
            else:
                view += gradient * np.float32(samples)

    def _next_batch(self, session: Session) -> Any:
        """Take a batch; at the end of the shard ask for the next one."""
        assert self._source
        assert session.ack
        size = session.ack.batch_size
        batch = _batch_of(self._source, size)
        if batch is not None:
            return batch
        with calling("the data's `reset`", DataError):
            self._source.reset()
        if self.config.data.shard_index < 0:
            self._register(session)
        batch = _batch_of(self._source, size)
        if batch is None:
            raise DataError(f"shard {session.ack.assigned_shard} holds no sample; use fewer shards or more data.")
        return batch

    def _push(self, session: Session) -> None:
        assert self._compressor
        assert self._gradient is not None
        data = self._compressor.compress(self._gradient)
        session.push(
            fdtc.Gradients(
                worker_id=self.worker_id,
                local_step=self.local_step,
                num_tensors=len(self.specs),
                compression=self._compressor.compression,
                uncompressed_size=4 * self._gradient.size,
                data=data,
            ),
            self.heartbeat(),
        )
        self.pushes += 1


def _batch_of(source: DataSource, size: int) -> Any:
    with calling("the data's `next_batch`", DataError, SMALLER):
        return source.next_batch(size)


def _size_of(batch: Any) -> int:
    """How many samples a batch has."""
    with calling("len() of what the data's `next_batch` returned", DataError):
        size = len(batch)
    if not size:
        raise DataError("the data's `next_batch` returned an empty batch; at the end of a pass it returns None.")
    return size


def _loss_and_gradients(returned: Any) -> tuple[float, Mapping[str, Any]]:
    match returned:
        case (loss, Mapping() as gradients) if np.ndim(loss) == 0 and np.asarray(loss).dtype.kind in "fiu":
            return float(loss), gradients
    raise ModelError(
        "loss_and_gradients(batch) must return (loss, gradients): a number, and a mapping of parameters' names to "
        f"arrays; it returned {_in_words(returned)}."
    )


def _in_words(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {list(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(_in_words(part) for part in value)})"
    return "None" if value is None else f"a {type(value).__name__}"


def _worker_id(wanted: str) -> str:
    size = len(wanted.encode())
    if size > fdtc.WORKER_ID_SIZE or "\0" in wanted:
        raise ConfigError(
            f"the worker's id {wanted!r} has {size} bytes; at most {fdtc.WORKER_ID_SIZE} fit, and no NUL."
        )
    return wanted or f"{socket.gethostname()[:48]}-{uuid.uuid4().hex[:8]}"


def _error_from(message: fdtc.Error) -> Exception:
    text = f"the coordinator says: {message.message}"
    if message.code in FINAL_ERRORS:
        return RefusedError(text)
    return Disconnected(text)


def _factory(data: DataSource | DataFactory) -> DataFactory:
    if callable(data):
        return data
    return lambda _shard, _total: data
