"""The coordinator seen over HTTP: its status, and the controls. May import: ``errors``.

Keys that an older or newer coordinator doesn't send are None here; nothing is made up for them.
"""

from collections.abc import Mapping
from typing import Any, Literal

import requests

from .errors import SwarmctlError, UnreachableError

Control = Literal["pause", "resume", "checkpoint", "sync", "shutdown"]
Json = Mapping[str, Any]


def read_status(http_port: int, timeout: float = 3.0) -> Json | None:
    """The coordinator's ``/status``, or None where nothing answers."""
    try:
        reply = requests.get(f"http://127.0.0.1:{http_port}/status", timeout=timeout)
        content = reply.json() if reply.ok else None
    except requests.RequestException:
        return None
    return content if isinstance(content, dict) else None


def control(http_port: int, what: Control, timeout: float) -> Json:
    """Have the coordinator do something, and wait until it says it has.

    Raises:
        UnreachableError: Nothing answers.
        SwarmctlError: It refuses.
    """
    try:
        reply = requests.post(f"http://127.0.0.1:{http_port}/control/{what}", json={}, timeout=timeout)
    except requests.RequestException as error:
        raise UnreachableError(
            f"the coordinator does not answer on 127.0.0.1:{http_port}", "swarmctl status --local"
        ) from error
    if not reply.ok:
        raise SwarmctlError(
            f"the coordinator refuses to {what}: {_reason(reply)}",
            "swarmctl logs coordinator --local --tail 20",
        )
    content = reply.json() if reply.content else {}
    return content if isinstance(content, dict) else {}


def _reason(reply: requests.Response) -> str:
    try:
        return str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {reply.status_code}"


def run_state(status: Json | None) -> str | None:
    """Such as ``training`` or ``paused``; None where unknown."""
    run = status.get("run") if status else None
    return run.get("state") if isinstance(run, dict) else None


def worker(status: Json | None, worker_id: str) -> Json:
    """What the coordinator knows of a worker; empty where it knows nothing."""
    workers = status.get("workers") if status else None
    return next((w for w in workers or [] if w.get("id") == worker_id), {})


def bytes_per_token(status: Json) -> float | None:
    """Bytes that the workers now connected have sent, for each token that they trained on.

    The coordinator's own totals will not do: its tokens go on from a checkpoint, its bytes begin with the process.
    """
    workers = status.get("workers") or []
    received = sum(w.get("bytes_received") or 0 for w in workers)
    tokens = sum(w.get("tokens") or 0 for w in workers)
    return received / tokens if tokens else None


def uncompressed_bytes(status: Json) -> int | None:
    """What the gradients received so far would have taken as float32."""
    parameters, applied = status.get("parameters"), status.get("gradients_applied")
    if parameters is None or applied is None:
        return None
    refused = status.get("gradients_refused") or {}
    return 4 * int(parameters) * (int(applied) + sum(int(count) for count in refused.values()))
