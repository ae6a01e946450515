"""Talk to the agent in this container, from within it.

    python3 -m swarm_agent.ask GET /status
    python3 -m swarm_agent.ask POST /control/pause
    python3 -m swarm_agent.ask health

The first two send a request to the coordinator's HTTP server and print what it answers; so no port of a coordinator
has to be published. The last is the image's health check, by which Docker Swarm kills. So a coordinator is healthy as
long as it answers, even that its disk is full: killed, it would lose what it has learnt since the last checkpoint. A
worker is as long as its process is there: how long an honest step may take depends on model and machine, and the
coordinator gives the shard of a silent worker to another.

Exit status: 0 for an HTTP status of 2xx, or healthy; 1 otherwise, with a message on standard error; 2 for a wrong
command line. Imports nothing of ours and little of the standard library: a Raspberry Pi runs it every half minute.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path

_PORT = 7180
_PORT_VARIABLE = "FDTC_NETWORK_HTTP_PORT"
_COMMANDS = ("swarm-coordinator", "swarm-worker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="ask", description="Talk to the agent in this container.")
    parser.add_argument("method", choices=["GET", "POST", "health"])
    parser.add_argument("path", nargs="?", default="/healthz", metavar="PATH", help="such as /status, /control/pause")
    parser.add_argument("body", nargs="?", default="{}", metavar="JSON", help="for POST (default: {})")
    parser.add_argument("--port", type=int, metavar="PORT", help=f"default: the running coordinator's, else {_PORT}")
    parser.add_argument("--timeout", type=float, default=10, metavar="SECONDS", help="default 10")
    options = parser.parse_args(arguments)
    running = _running_agent()
    if options.method == "health" and not running:
        print("ask: neither a coordinator nor a worker runs here", file=sys.stderr)
        return 1
    if options.method == "health" and _command(running) == "swarm-worker":
        print("a worker runs")
        return 0
    method = "GET" if options.method == "health" else options.method
    port = options.port or port_of(running)
    try:
        status = _ask(method, options.path, options.body, port, options.timeout)
    except (OSError, HTTPException) as error:
        print(f"ask: nothing answers {method} {options.path} on 127.0.0.1:{port}: {error}", file=sys.stderr)
        return 1
    return 0 if options.method == "health" else status


def _ask(method: str, path: str, body: str, port: int, timeout: float) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        if method == "POST":
            connection.request(method, path, body.encode(), {"Content-Type": "application/json"})
        else:
            connection.request(method, path)
        reply = connection.getresponse()
        content = reply.read()
    finally:
        connection.close()
    sys.stdout.buffer.write(content if content.endswith(b"\n") else content + b"\n")
    sys.stdout.buffer.flush()
    if 200 <= reply.status < 300:
        return 0
    print(f"ask: {method} {path}: HTTP status {reply.status}: {_reason(content)}", file=sys.stderr)
    return 1


def _reason(content: bytes) -> str:
    """The message in an answer of ours; any other answer as it is."""
    text = content.decode(errors="replace").strip()
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text


def _running_agent() -> Sequence[str]:
    """The command line of the agent in this container; empty where there is none."""
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it ended while we looked
            continue
        if _command(words):
            return words
    return ()


def _command(words: Sequence[str]) -> str:
    """Which of the agent's commands it is, if any: maybe behind an interpreter or an init."""
    names = (os.path.basename(word) for word in words)  # noqa: PTH119 - any text, not a path of ours
    return next((name for name in names if name in _COMMANDS), "")


def port_of(running: Sequence[str]) -> int:
    """Where the coordinator that runs here answers: by its option, its environment (ours too) or its file."""
    options = {}
    for word, following in pairwise([*running, ""]):
        name, _, value = word.partition("=")
        options[name] = value or following
    for name, value in options.items():
        if name.startswith("--ht") and "--http-port".startswith(name):  # argparse takes a shortened option too
            return int(value)
    if _PORT_VARIABLE in os.environ:
        return int(os.environ[_PORT_VARIABLE])
    if "--config" in options:
        import tomllib  # takes a tenth of this program's time

        settings = tomllib.loads(Path(options["--config"]).read_text(encoding="utf-8"))
        return int(settings.get("network", {}).get("http_port", _PORT))
    return _PORT


if __name__ == "__main__":
    sys.exit(main())
