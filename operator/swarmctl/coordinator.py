"""The coordinator seen over HTTP: its status, and the controls. May import: ``errors``.

Keys that an older or newer coordinator doesn't send are None here; nothing is made up for them.
"""

import re
from collections.abc import Mapping, Sequence
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
        raise UnreachableError(f"the coordinator does not answer on 127.0.0.1:{http_port}") from error
    if not reply.ok:
        raise SwarmctlError(f"the coordinator refuses to {what}: {_reason(reply)}")
    content = reply.json() if reply.content else {}
    return content if isinstance(content, dict) else {}


def without_remedy(text: str) -> str:
    """What the agent says, without the sentence on an option that users of swarmctl do not have."""
    sentences = re.split(r"(?<=\.)\s+", text.strip())
    said = " ".join(sentence for sentence in sentences if "--checkpoint-dir" not in sentence).rstrip(" \n.")
    return f"{said}."


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


def often_stale(who: str, workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say, if it is so, that most gradients of some workers come too late to be of use.

    Args:
        who: A worker, or their class.
        workers: What the coordinator says of each.
    """
    stale = sum((worker.get("refused") or {}).get("stale", 0) for worker in workers)
    pushes = sum(worker.get("pushes") or 0 for worker in workers)
    if stale <= max(10, pushes):
        return []
    return [
        f"{stale} of the {stale + pushes} gradients of {who} were refused as stale: while it computes one, the others "
        "push more than max_staleness; a smaller batch_size for its class helps, or a larger max_staleness"
    ]


def bytes_per_token(status: Json) -> float | None:
    """Bytes that workers have sent for each token that was trained on; both counts go on from a checkpoint."""
    received, tokens = status.get("bytes_received"), status.get("tokens")
    return received / tokens if received and tokens else None


def uncompressed_bytes(status: Json) -> int | None:
    """What the gradients applied so far would have taken as float32: one for each version of the weights."""
    parameters, version = status.get("parameters"), status.get("version")
    return None if parameters is None or version is None else 4 * int(parameters) * int(version)
