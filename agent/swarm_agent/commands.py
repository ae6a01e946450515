"""What the agent's commands share: options, errors as one message, and signals that end a run cleanly.

May import: ``config``, ``errors``, ``logs``.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TypeVar

import fdtc

from . import config as configuration
from . import logs
from .errors import AgentError

C = TypeVar("C", bound=configuration.Config)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that coordinator and worker have in common."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; options here win over it")
    parser.add_argument("--model", dest="model.name", metavar="NAME", help="rwkv-tiny, …, or package.module:factory")
    parser.add_argument("--data", dest="data.path", metavar="PATH", help="shakespeare, or a .txt, .jsonl or .bin file")
    parser.add_argument("--compression", dest="compression.type", choices=["none", "fp16", "topk", "qsgd"])
    parser.add_argument("--topk-ratio", dest="compression.topk_ratio", type=float, metavar="R", help="such as 0.1")
    parser.add_argument("--steps", dest="training.steps", type=int, metavar="N", help="stop after this many")
    parser.add_argument("--context", dest="training.context", type=int, metavar="N", help="tokens in one sample")
    parser.add_argument("--seed", dest="training.seed", type=int, metavar="N")
    parser.add_argument("--log-format", choices=["human", "json"], help="by default human on a terminal")
    parser.add_argument(
        "--version",
        action="version",
        version=f"%(prog)s {metadata.version('swarmctl')}, FDTC version {fdtc.PROTOCOL_VERSION}",
    )


def read_config(kind: type[C], options: argparse.Namespace) -> C:
    """Read the configuration that the command's options lead to.

    Raises:
        ConfigError: Something in it is wrong.
    """
    flags = {name: value for name, value in vars(options).items() if "." in name}
    return configuration.load(kind, options.config, flags, options=options.names)


def run_command(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], arguments: Sequence[str] | None
) -> int:
    """Parse the options, run, and turn what a user can mend into one message and status 1."""
    options = parser.parse_args(arguments)
    options.names = {action.dest: action.option_strings[0] for action in parser._actions if action.option_strings}
    logs.configure(json=None if options.log_format is None else options.log_format == "json")
    try:
        return run(options)
    except AgentError as error:
        with suppress(OSError):  # nowhere to say it; the status still tells
            print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before `on_termination`, so there is nothing to save
        return 128 + signal.SIGINT


def on_termination(stop: Callable[[], None]) -> None:
    """Call `stop` at SIGTERM or Ctrl-C; a second one ends the process at once."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # In a thread of its own, since the handler may have interrupted the holder of a lock that `stop` needs.
        threading.Thread(target=stop, name="stop", daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def limit_threads(threads: int) -> None:
    """Let the BLAS of this process use so many threads."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
