"""Do three unequal workers learn as much from the same number of tokens as one process alone?

    python -m bench.convergence [--tokens 1000000] [--only none topk]

One process trains rwkv-tiny by itself, batch 8, no network. Then a coordinator and three workers (batches 2, 4 and 8,
each one thread) do the same as real processes, once for each compression. Model, data, Adam, clipping and schedule are
the same; momentum is not: asynchrony acts like momentum by itself (Mitliagkas et al., arXiv 1605.09774), so the three
do best with none (beta1 = 0), and the one with 0.9. All are measured on the same held-out text. This takes a quarter
of an hour or so.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import requests

from swarm_agent.config import CoordinatorTraining
from swarm_agent.data import open_data
from swarm_agent.evaluate import evaluate
from swarm_agent.master import Master
from swarm_agent.rwkv7 import PRESETS, RWKV7
from swarm_agent.tokenizers import ByteTokenizer

from .tools import ROOT, Coordinator, command, coordinator, end, table

MODEL = "rwkv-tiny"
CONTEXT = 128
ALONE_BATCH = 8
WORKERS = {"RPI4_4G": 2, "LAPTOP_LIGHT": 4, "SERVER": 8}  # batch by profile
COMPRESSIONS = ("none", "fp16", "qsgd", "topk")
ALONE = {"learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.99}
TOGETHER = {"learning_rate": 2e-3, "beta1": 0.0, "beta2": 0.98}
TRIAL_TOKENS, TRIAL_UPDATES = 100_000, 200  # to learn how the three share the machine: the tokens of one update
REPORT_SECONDS = 15.0


class Result(NamedTuple):
    """What one run came to."""

    name: str
    loss: float
    tokens: int
    updates: int
    staleness: float
    refused: int
    bits_per_parameter: float | None
    seconds: float


def main() -> None:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="for every run (default %(default)s)")
    parser.add_argument("--only", nargs="+", choices=COMPRESSIONS, default=COMPRESSIONS)
    options = parser.parse_args()
    results = [train_alone(options.tokens)]
    trial = train_together("none", TRIAL_TOKENS, TRIAL_UPDATES)
    tokens_per_update = trial.tokens / trial.updates
    say(f"three workers make {tokens_per_update:.0f} tokens an update")
    for compression in options.only:
        updates = round(options.tokens / tokens_per_update)
        results.append(train_together(compression, options.tokens, updates))
        show(results)


def recipe(updates: int, rule: Mapping[str, Any]) -> CoordinatorTraining:
    """The update rule of every run; the schedule ends with the run."""
    return CoordinatorTraining(
        **rule,
        epsilon=1e-18,
        clip_norm=1.0,
        schedule="cosine",
        warmup_steps=min(50, updates // 10),
        total_steps=updates,
        min_workers=len(WORKERS),
    )


# ------------------------------------------------------------------------------------------------------ one process


def train_alone(tokens: int) -> Result:
    """Train in this process: the plain loop that distributed training is measured against."""
    updates = round(tokens / (ALONE_BATCH * CONTEXT))
    model = RWKV7(PRESETS[MODEL])
    master = Master(model.parameters, recipe(updates, ALONE))
    tokenizer = ByteTokenizer()
    source = open_data("shakespeare", tokenizer=tokenizer, context=CONTEXT)
    seen, begun, reported = 0, time.monotonic(), time.monotonic()
    for update in range(updates):
        batch = source.next_batch(ALONE_BATCH)
        if batch is None:
            source.reset()
            batch = source.next_batch(ALONE_BATCH)
        assert batch is not None
        loss, _ = model.loss_and_gradients(batch)
        master.apply(model.flat_gradients, update)
        master.snapshot(model.flat_parameters)
        seen += len(batch) * CONTEXT
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            say(f"alone: update {update + 1} of {updates}, loss {loss:.3f}")
    seconds = time.monotonic() - begun
    held_out = open_data("shakespeare", tokenizer=tokenizer, context=CONTEXT, split="held-out")
    result = Result("one process", evaluate(model, held_out).loss, seen, updates, 0.0, 0, None, seconds)
    say(f"alone: held-out loss {result.loss:.4f} after {seen} tokens in {seconds:.0f} s")
    return result


# ---------------------------------------------------------------------------------------------------- three workers


def train_together(compression: str, tokens: int, updates: int) -> Result:
    """Train with a coordinator and three workers, each a process; `updates` is the schedule's length."""
    training = msgspec.to_builtins(recipe(updates, TOGETHER))
    settings = {f"FDTC_TRAINING_{key.upper()}": str(value) for key, value in training.items()}
    settings |= {"FDTC_CHECKPOINTING_INTERVAL": str(10**9), "OPENBLAS_NUM_THREADS": "1"}
    begun = time.monotonic()
    with ExitStack() as stack:
        leader = stack.enter_context(coordinator("--compression", compression, "--model", MODEL, settings=settings))
        for profile, batch in WORKERS.items():
            stack.callback(end, start_worker(leader.port, profile, batch))
        status = watch(leader, compression, tokens)
        seconds = time.monotonic() - begun
        loss = held_out_loss(leader)
    result = Result(
        f"three workers, {compression}",
        loss["loss"],
        loss["tokens"],
        loss["version"],
        status["avg_staleness"],
        sum(status["gradients_refused"].values()),
        8 * status["bytes_received"] / max(1, status["gradients_applied"]) / status["parameters"],
        seconds,
    )
    say(f"{compression}: held-out loss {result.loss:.4f} after {result.tokens} tokens in {seconds:.0f} s")
    return result


def start_worker(port: int, profile: str, batch: int) -> "subprocess.Popen[str]":
    """Start one worker with one thread."""
    options = {"--host": "127.0.0.1", "--port": port, "--model": MODEL, "--id": profile.lower(), "--profile": profile}
    options |= {"--batch-size": batch, "--accumulation-steps": 1, "--threads": 1}
    return subprocess.Popen(
        [command("swarm-worker"), *(str(word) for pair in options.items() for word in pair)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def watch(leader: Coordinator, compression: str, tokens: int) -> dict[str, Any]:
    """End the run when so many tokens are done, and return its last status."""
    status: dict[str, Any] = {}
    reported = time.monotonic()
    while leader.process.poll() is None:
        try:
            status = leader.status() or status
        except OSError:
            break  # it has just stopped
        if status.get("tokens", 0) >= tokens:
            shutdown = f"http://127.0.0.1:{leader.http_port}/control/shutdown"
            requests.post(shutdown, json={}, timeout=10).raise_for_status()
            break
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            say(
                f"{compression}: update {status['version']} "
                f"loss {status['loss'] or 0:.3f}, {status['tokens']} tokens, "
                f"staleness {status['avg_staleness']:.1f}, refused {status['gradients_refused']}"
            )
        try:
            leader.process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    leader.process.wait(60)
    return status


def held_out_loss(leader: Coordinator) -> Mapping[str, Any]:
    """Measure the last checkpoint, and tell its version and its tokens."""
    words = [sys.executable, "-m", "swarm_agent.evaluate", str(leader.directory), "--json"]
    facts = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    manifest = json.loads(next(iter(sorted(leader.directory.glob("*/manifest.json")))).read_text())
    return {"loss": facts["loss"], "version": manifest["version"], "tokens": manifest["tokens"]}


# ------------------------------------------------------------------------------------------------------------ words


def show(results: list[Result]) -> None:
    """Print the table of what is done so far."""
    alone = results[0].loss
    rows = [
        [
            result.name,
            f"{result.loss:.4f}",
            f"{100 * (result.loss / alone - 1):+.1f} %",
            f"{result.tokens / 1e6:.2f} M",
            result.updates,
            f"{result.staleness:.1f}",
            result.refused,
            f"{result.bits_per_parameter:.2f}" if result.bits_per_parameter else "-",
            f"{result.seconds:.0f} s",
        ]
        for result in results
    ]
    heads = ["", "held-out loss", "against alone", "tokens", "updates", "staleness", "refused", "bits/param", "time"]
    table(heads, rows)


def say(text: str) -> None:
    """Print progress at once, also into a file."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    main()
