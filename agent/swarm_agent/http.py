"""HTTP beside the protocol: health, status, metrics and control of a coordinator.

``GET /healthz``, ``GET /status``, ``GET /metrics`` (Prometheus), and ``POST /control/WORD``. Served by uvicorn in a
thread of its own. May import: ``checkpoint``, ``errors``; it is given the coordinator.
"""

import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from . import checkpoint
from .errors import AgentError

if TYPE_CHECKING:
    from .coordinator import Coordinator


class HttpServer:
    """Serves one coordinator on a socket that already listens."""

    def __init__(self, coordinator: "Coordinator", listener: socket.socket) -> None:
        config = uvicorn.Config(
            build_app(coordinator),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="http", daemon=True
        )

    def start(self) -> None:
        """Serve from now on, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is being answered and free the port."""
        self._server.should_exit = True
        self._thread.join()


def build_app(coordinator: "Coordinator") -> Starlette:
    """Make the ASGI application for a coordinator."""
    registry = CollectorRegistry()
    registry.register(_Figures(coordinator))

    async def healthz(_request: Request) -> Response:
        if coordinator.checkpoint_error:
            return PlainTextResponse(f"no checkpoint can be written: {coordinator.checkpoint_error}\n", 503)
        return PlainTextResponse("ok\n")

    async def status(_request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(coordinator.status))

    async def metrics(_request: Request) -> Response:
        text = await run_in_threadpool(generate_latest, registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def control(request: Request) -> Response:
        word = request.path_params["word"]
        command = _COMMANDS.get(word)
        if command is None:
            raise HTTPException(404, f"no control word {word!r}; there are {', '.join(_COMMANDS)}")
        # A page in somebody's browser can't send this type across origins, so it can't pause a run.
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            raise HTTPException(415, "send it as Content-Type: application/json")
        try:
            answer = await run_in_threadpool(command, coordinator)
        except AgentError as error:
            raise HTTPException(507, str(error)) from error
        return JSONResponse({"done": word, "version": coordinator.step, **answer})

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/status", status),
            Route("/metrics", metrics),
            Route("/control/{word}", control, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _say_error},
    )


async def _say_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _checkpoint(coordinator: "Coordinator") -> dict[str, Any]:
    coordinator.tell_workers_of_checkpoint()
    path = coordinator.save_checkpoint()
    return {"path": str(path), "version": checkpoint.version_of(path)}  # training goes on meanwhile


def _simply(action: "Callable[[Coordinator], None]") -> "Callable[[Coordinator], dict[str, Any]]":
    def run(coordinator: "Coordinator") -> dict[str, Any]:
        action(coordinator)
        return {}

    return run


_COMMANDS: "dict[str, Callable[[Coordinator], dict[str, str]]]" = {
    "pause": _simply(lambda c: c.pause()),
    "resume": _simply(lambda c: c.resume()),
    "sync": _simply(lambda c: c.sync()),
    "checkpoint": _checkpoint,
    "shutdown": _simply(lambda c: c.shut_down()),
}


class _Figures:
    """Turns a coordinator's status into Prometheus metrics at each scrape."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterable[Metric]:
        status = self._coordinator.status()
        for key, text in _GAUGES.items():
            if status[key] is not None:
                yield GaugeMetricFamily(f"fdtc_{key}", text, value=status[key])
        for key, text in _COUNTERS.items():
            yield CounterMetricFamily(f"fdtc_{key}", text, value=status[key])
        refused = CounterMetricFamily("fdtc_gradients_refused", "Gradients refused, by reason", labels=["reason"])
        for reason, count in status["gradients_refused"].items():
            refused.add_metric([reason], count)
        yield refused
        yield GaugeMetricFamily("fdtc_workers", "Workers registered and alive", value=len(status["workers"]))
        speed = GaugeMetricFamily(
            "fdtc_worker_samples_per_second",
            "Samples a second, as the worker says",
            labels=["worker", "class"],
        )
        for worker in status["workers"]:
            speed.add_metric([worker["id"], worker["class"]], worker["samples_per_sec"])
        yield speed


_GAUGES = {
    "version": "Updates that the weights have had",
    "loss": "Moving mean of the training loss, nats per token",
    "tokens_per_sec": "Tokens a second over the last 30 s",
    "avg_staleness": "Mean staleness of the last 128 applied gradients, versions",
    "learning_rate": "Learning rate of the next update",
}
_COUNTERS = {
    "tokens": "Tokens behind the applied gradients",
    "gradients_applied": "Gradients applied",
    "weights_pulled": "Times that weights were sent",
    "bytes_received": "Bytes received from workers",
    "bytes_sent": "Bytes sent to workers",
}
