"""Runs the benchmarks: ``python -m bench`` all of the short ones, ``python -m bench NAME [options]`` one."""

import os
import subprocess
import sys
from pathlib import Path

from .machine import BLAS_VARIABLES

BLOCK = ("--batch", "4", "--time", "256", "--threads", "2")
# Name: what is measured, and the options of each run.
BENCHMARKS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "block": (
        "training step of one block beside PyTorch",
        (("--channels", "256", *BLOCK), ("--channels", "768", *BLOCK)),
    ),
    "ingest": ("gradients taken in and applied beside a bare socket", ((),)),
    "pushes": ("pushes a second with 1, 8 and 32 workers beside a bare socket", ((),)),
    "codecs": ("codecs beside memcpy, frames beside struct", ((),)),
    "memory": ("resident memory of worker and coordinator", ((),)),
    "ngram": ("what counting alone can predict of the text", ((),)),
    "convergence": ("three workers beside one process, half an hour or so", ((),)),
    "fleet": ("bare machines to a labelled swarm in the lab; needs root", ((),)),
    "stack": ("swarmctl deploy beside docker stack deploy in the lab; needs root", ((),)),
}
LONG = ("convergence", "fleet", "stack")  # only when asked for by name


def main(arguments: list[str]) -> int:
    """Run one benchmark, or all that are short; return 1 if one failed."""
    if arguments and arguments[0] not in BENCHMARKS:
        asked_for_help = arguments[0] in ("-h", "--help")
        print(f"{__doc__}\n", *(f"{name:12} {text}" for name, (text, _) in BENCHMARKS.items()), sep="\n")
        return 0 if asked_for_help else 2
    if arguments:
        name, *options = arguments
        return run(name, (tuple(options),) if options else BENCHMARKS[name][1])
    return max(run(name, runs) for name, (_, runs) in BENCHMARKS.items() if name not in LONG)


def run(name: str, runs: tuple[tuple[str, ...], ...]) -> int:
    """Run one benchmark in fresh processes, in which nobody has chosen OpenBLAS's kernel for it."""
    environment = {key: value for key, value in os.environ.items() if key not in BLAS_VARIABLES}
    removed = sorted(os.environ.keys() - environment.keys())
    print(f"\n=== {name}: {BENCHMARKS[name][0]}", flush=True)
    if removed:
        print(f"note     {', '.join(removed)} was set, and is not here")
    status = 0
    for module, *options in (["machine"], *([name, *options] for options in runs)):
        words = [sys.executable, "-m", f"bench.{module}", *options]
        status |= subprocess.run(words, env=environment, cwd=Path(__file__).parent.parent, check=False).returncode
        print(flush=True)
    return min(status, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
