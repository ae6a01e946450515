"""``swarmctl demo``: trains rwkv-tiny on this machine for some minutes and shows what that brought.

The stack lives in a folder and on ports of its own, so it disturbs no other. May import: everything of the operator.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from . import choose, generate, loss_curve, stack
from .console import Story, duration, number, output, overwrites, redrawn, typeable
from .errors import SwarmctlError, UsageError
from .local import checkpoints, engine, ports, status
from .local.observe import observe
from .local.state import Folder
from .paths import expanded

STACK = "rwkv-tiny"
PROMPT = "ROMEO:\n"
SAMPLE_TOKENS = 300
SAMPLE_SEED = 1
LOOK_INTERVAL_SEC = 1.0
LINE_INTERVAL_SEC = 5.0  # where there is no terminal
CURVE_HEIGHT = 14
DEPLOY_TIMEOUT_SEC = 120.0
MEASURED_TOKENS = 32768
# What n-gram counts with Witten-Bell smoothing reach on the held-out plays: docs/data.md, made by bench/ngram.py.
BASELINES = {"guessing": 5.545, "pairs of bytes": 2.533, "threes": 2.092, "fours": 1.802}


@dataclass(frozen=True)
class Measured:
    """What a model is worth: its held-out loss in nats per token, and a text that it wrote."""

    loss: float
    sample: str


@dataclass
class Progress:
    """What was seen of the training so far."""

    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0  # how long it has been going on
    versions: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    latest: dict[str, Any] = field(default_factory=dict)  # the last report of the stack

    def take(self, report: dict[str, Any]) -> None:
        """Take in a report."""
        self.seconds = time.monotonic() - self.began
        training = report["training"]
        if not training:
            return
        self.latest = report
        version, loss = training["version"], training["loss"]
        if loss is not None and (not self.versions or version > self.versions[-1]):
            self.versions.append(version)
            self.losses.append(loss)


def run(*, minutes: float, steps: int | None, state: Path | None) -> None:
    """Run the demo.

    Args:
        minutes: How long to train at most.
        steps: At which version to stop; that of the stack where None.
        state: A folder for it; a new one under swarmctl's state where None.

    Raises:
        SwarmctlError: Something did not work; what was started is stopped.
    """
    wanted = stack.load(STACK)
    wanted = wanted if steps is None else wanted.with_steps(steps)
    folder = _fresh_folder(state)
    folder.make()  # where that can't be, nobody should wait for the measuring first
    story, console = Story(), output()
    _introduce(console, wanted, minutes)
    with story.waiting("measures the untrained model"):
        before = _measure(f"init:{wanted.model}")
    console.print(f"Before training it has a held-out loss of [bold]{before.loss:.3f}[/] nats per byte and writes:")
    _print_sample(console, before.sample)
    port = ports.free_port(7100)
    http_port = ports.free_port(7180, other_than=port)
    try:
        engine.deploy(wanted, folder, story, port=port, http_port=http_port, timeout=DEPLOY_TIMEOUT_SEC)
        progress = _watch(folder, console, minutes)
    finally:
        engine.stop(folder, story)
    found = checkpoints.newest(folder)
    if found is None:
        raise SwarmctlError("the run left no checkpoint", f"cat {folder.log('coordinator')}")
    with story.waiting("measures the trained model"):
        after = _measure(str(found.path))
    _conclude(console, progress, before, after, found)


# The parts of the story ----------------------------------------------------------------------------------------


def _introduce(console: Console, wanted: stack.Stack, minutes: float) -> None:
    workers = [
        f"{count} × {service.removeprefix('worker-')} (batch {wanted.classes[service].batch_size})"
        for service, count in wanted.replicas.items()
        if count
    ]
    end = f"{wanted.steps} updates or {_minutes(minutes)}, whichever comes first" if wanted.steps else _minutes(minutes)
    console.print(
        f"[bold]A language model learns English on this machine[/]\n"
        f"A coordinator holds the weights of {escape(wanted.model)}, an RWKV-7. Unequal workers compute gradients\n"
        f"from {escape(wanted.data)}, byte by byte, and push them compressed ({escape(_compression(wanted))}):\n"
        f"{', '.join(workers)}. It stops after {end}.\n"
    )


def _minutes(count: float) -> str:
    return f"{count:g} minute" + ("" if count == 1 else "s")


def _compression(wanted: stack.Stack) -> str:
    kind = wanted.compression.get("type", "topk")
    return f"the largest {wanted.compression.get('topk_ratio', 0.1):.0%} of them" if kind == "topk" else str(kind)


def _watch(folder: Folder, console: Console, minutes: float) -> Progress:
    progress = Progress()
    if not overwrites(console):
        _look_until_done(folder, progress, minutes, _LinePrinter(console))
        return progress
    with redrawn() as show:
        _look_until_done(folder, progress, minutes, lambda p: show(_picture(p, console, minutes)))
    return progress


def _look_until_done(folder: Folder, progress: Progress, minutes: float, show: Callable[[Progress], None]) -> None:
    while progress.seconds < 60 * minutes:
        observed = observe(folder)
        if observed is None or observed.is_finished:
            return
        if not observed.supervised:
            raise SwarmctlError("the supervisor is gone", f"cat {folder.log('supervisor')}")
        progress.take(status.report(observed))
        show(progress)
        time.sleep(LOOK_INTERVAL_SEC)


class _LinePrinter:
    """Prints a line every few seconds, for a log file."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.next = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.seconds >= self.next and progress.latest:
            self.next = progress.seconds + LINE_INTERVAL_SEC
            self.console.print(f"{progress.seconds:5.0f} s  {_figures(progress)}")


def _picture(progress: Progress, console: Console, minutes: float) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{duration(progress.seconds)} of {minutes:g} min  {_figures(progress)}")]
    if len(progress.versions) > 1:
        width = min(console.width, 100) - 4
        curve = loss_curve.draw(progress.versions, progress.losses, width, CURVE_HEIGHT)
        parts.append(Panel(curve, title="training loss, nats per byte", border_style="dim", expand=False))
    if progress.latest:
        parts.append(status.process_table(progress.latest))
    return Group(*parts)


def _figures(progress: Progress) -> str:
    training = progress.latest.get("training") or {}
    steps, loss = training.get("steps"), training.get("loss")
    return (
        f"version {training.get('version', '-')}{f' of {steps}' if steps else ''}  "
        f"loss {'-' if loss is None else f'{loss:.3f}'}  {number(training.get('tokens_per_sec'), 'tokens/s')}  "
        f"{_saved(training)}"
    )


def _saved(training: dict[str, Any]) -> str:
    ratio = training.get("compression_ratio")
    sent = f"gradients sent: {number(training.get('bytes_received'), 'B')}"
    if not ratio:
        return sent
    return f"{sent} instead of {number(training['bytes_uncompressed'], 'B')} ({ratio:.1f}× less)"


def _conclude(
    console: Console, progress: Progress, before: Measured, after: Measured, found: checkpoints.Checkpoint
) -> None:
    final = {**found.manifest, "bytes_received": (found.manifest.get("bytes") or [None])[0]}
    console.print(f"\nAfter {found.version} updates it writes:")
    _print_sample(console, after.sample)
    console.print(
        f"held-out loss  [bold]{before.loss:.3f}[/] before, [bold green]{after.loss:.3f}[/] after (nats per byte)"
    )
    counted = ", ".join(f"{loss:.2f} by {name}" for name, loss in BASELINES.items())
    console.print(f"               counting alone gets {counted}", style="dim")
    console.print(f"trained on     {number(final.get('tokens'), 'tokens')} in {duration(progress.seconds)}")
    console.print(f"traffic        {_saved(status.traffic(final))}")
    console.print(f"checkpoint     {escape(str(found.path))}", soft_wrap=True)
    again = typeable("swarmctl deploy --stack rwkv-tiny --local")
    write = typeable(f"swarmctl generate --checkpoint {found.path} --prompt 'JULIET:'")
    console.print(f"\n[dim]Next:[/] [bold cyan]{escape(again)}[/]   to train one in the background", soft_wrap=True)
    console.print(f"      [bold cyan]{escape(write)}[/]", soft_wrap=True)


def _print_sample(console: Console, sample: str) -> None:
    # An untrained model writes any byte at all, terminal commands among them.
    harmless = "".join(c if c.isprintable() or c == "\n" else "\N{MIDDLE DOT}" for c in sample.strip("\n"))
    console.print(Panel(Text(harmless), border_style="dim", width=min(console.width, 80)))


# Measuring -----------------------------------------------------------------------------------------------------


def _measure(model: str) -> Measured:
    evaluate = [sys.executable, "-m", "swarm_agent.evaluate", model, "--tokens", str(MEASURED_TOKENS), "--json"]
    loss = float(json.loads(_run_agent(evaluate))["loss"])
    command = generate.command(model, prompt=PROMPT, tokens=SAMPLE_TOKENS, seed=SAMPLE_SEED)
    return Measured(loss, _run_agent(command))


def _run_agent(command: list[str]) -> str:
    ended = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8", errors="replace")
    if ended.returncode:
        what = " ".join(command[1:4])
        raise SwarmctlError(f"{what} ended with exit code {ended.returncode}:\n{ended.stderr.strip()[-2000:]}")
    return ended.stdout


def _fresh_folder(state: Path | None) -> Folder:
    parent = state or choose.writable_root() / "demo" / f"{datetime.now():%Y-%m-%d-%H%M%S}"
    folder = Folder(expanded(parent).absolute() / STACK)
    if checkpoints.newest(folder) or folder.deployment.exists():
        raise UsageError(
            f"{parent} holds an earlier run, and the demo starts from nothing", "swarmctl demo --state ANOTHER-FOLDER"
        )
    return folder
