"""The command line: what each command takes, and which part of swarmctl does it.

Commands hold no logic. Errors come here as `SwarmctlError` and leave as a message, what to type next, and the exit
code.
"""

import json
import math
import os
import shlex
import signal
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from . import choose, cluster_cli, coordinator, fleet_cli, generate, logs, stack, stack_schema
from .cluster import render
from .console import Story, output, print_json, redrawn, typeable
from .errors import Exit, SwarmctlError, UnreachableError, UsageError, interruptible
from .local import checkpoints, engine, processes, status
from .local.observe import Observed, observe
from .local.remedies import to_deploy
from .local.state import COORDINATOR, Folder, local_folder

app = typer.Typer(
    name="swarmctl",
    help="Train your own language model on the machines you already own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
WATCH_INTERVAL_SEC = 1.0
MOST_WORKERS = 10_000  # of one class

Local = Annotated[bool, typer.Option("--local", help="On this machine, as processes, with no Docker.")]
StackName = Annotated[
    str | None,
    typer.Option("--stack", help="A built-in stack's name, or a file. Default: the only one that is deployed."),
]
StackNeeded = Annotated[str, typer.Option("--stack", help="A built-in stack's name, or the path of a file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait before giving up the waiting.")]


def _temperature(value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise typer.BadParameter(f"{value:g} is not a number from 0 on")
    return value


def _top_p(value: float) -> float:
    if not 0 < value <= 1:
        raise typer.BadParameter(f"{value:g} is not above 0 and at most 1")
    return value


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("this is not valid UTF-8 text") from None
    return value


def _print_version(wished: bool) -> None:
    if wished:
        print(f"swarmctl {metadata.version('swarmctl')}")
        raise typer.Exit


def run() -> int:
    """Run the command line; returns the exit code."""
    _prepare_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):  # a terminal that is closed, too, leaves nothing locked
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        code = _run()
        sys.stdout.flush()  # what is left would else fail as Python ends, with a code of its own
    except BrokenPipeError:  # as in `swarmctl logs … | head`
        code = int(Exit.DONE)
    except OSError as error:  # a full disk behind `> file`
        _print_error(SwarmctlError(f"the output: {error.strerror or error}"))
        code = int(Exit.FAILED)
    else:
        return code
    _discard_output()
    return code


def _run() -> int:
    try:
        app()
    except SwarmctlError as error:
        _print_error(error)
        return int(error.code)
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder of somebody else's: said without a traceback
        _print_error(SwarmctlError(f"{error.filename or 'the system'}: {error.strerror or error}"))
        return int(Exit.FAILED)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich and typer end the program so
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else int(Exit.DONE)
    return int(Exit.DONE)


def _prepare_streams() -> None:
    """A stream that is closed (`>&-`) takes all and keeps nothing; a "✓" must not end a command."""
    for name, flags, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_WRONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _discard_output() -> None:
    """Let what can't be written go nowhere, so that Python does not stumble over it once more as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Train your own language model on the machines you already own."""
    del version


@app.command()
def deploy(
    stack_name: StackNeeded,
    local: Local = False,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of the coordinator. [7100]")] = None,
    http_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of its status. [7180]")] = None,
    registry: cluster_cli.Registry = None,
    allow_unpinned: cluster_cli.AllowUnpinned = False,
    reset_scale: cluster_cli.ResetScale = False,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds to wait before giving up. [120 with --local, else 900]")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Bring a stack up, or change it, and wait until it trains."""
    if not local:
        if port or http_port:
            raise UsageError(
                "--port and --http-port are for --local; in a swarm the stack file says what the coordinator publishes",
                "# services: {coordinator: {ports: [{target: 7180, published: 7180, mode: host}]}}",
            )
        typed = cluster_cli.Typed(stack_name, registry, allow_unpinned, reset_scale, timeout or 900)
        cluster_cli.deploy(typed, fleet, manager, dry_run=dry_run, as_json=as_json)
        return
    wanted = stack.load(stack_name)
    folder = local_folder(choose.writable_root(), wanted.name)
    if dry_run:
        _print_plan(engine.plan(wanted, folder, port, http_port)[1], as_json)
        return
    with interruptible("what was started goes on in the background", f"swarmctl rm --local --stack {folder.name}"):
        observed = engine.deploy(wanted, folder, Story(), port=port, http_port=http_port, timeout=timeout or 120)
    _conclude(observed, as_json)


@app.command(name="status")
def status_command(
    local: Local = False,
    stack_name: StackName = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it live, until Ctrl-C.")] = False,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    as_json: AsJson = False,
) -> None:
    """Show the fleet, the services and the training."""
    if not local:
        cluster_cli.status(stack_name, fleet, manager, watch=watch, as_json=as_json)
        return
    folder = choose.deployed(stack_name)
    if watch:
        _watch(folder, as_json)
        return
    observed = _observed(folder)
    facts = status.report(observed)
    if as_json:
        print_json(facts)
    else:
        output().print(status.render(facts))
    if observed.status is None and not observed.is_finished:
        raise typer.Exit(Exit.UNREACHABLE)


@app.command()
def scale(
    wishes: Annotated[
        list[str], typer.Argument(metavar="SERVICE NUMBER ...", help="Such as: worker-rpi 20; a swarm knows auto, too.")
    ],
    local: Local = False,
    stack_name: StackName = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    timeout: Timeout = 120,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Change how many workers of a class there are."""
    if not local:
        numbers = {name: None if word == "auto" else _count_of(name, word) for name, word in _words(wishes)}
        cluster_cli.scale(stack_name, numbers, fleet, manager, timeout, dry_run=dry_run, as_json=as_json)
        return
    pairs = {name: _count_of(name, word) for name, word in _words(wishes)}
    folder = choose.deployed(stack_name)
    if dry_run:
        old = _observed(folder).deployment
        _print_plan(processes.difference(old, engine.scaled(old, pairs)), as_json)
        return
    with interruptible(
        "the new number is kept, and workers go on to start or stop", f"swarmctl status --local --stack {folder.name}"
    ):
        observed = engine.scale(folder, pairs, Story(), timeout=timeout)
    _conclude(observed, as_json)


@app.command(name="logs")
def logs_command(
    service: Annotated[
        str, typer.Argument(help="coordinator, worker-rpi, worker-rpi.2 (--local: worker-rpi-2), or all")
    ],
    local: Local = False,
    stack_name: StackName = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines are written.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="How many of the last lines of each process. [100; all with --since]")
    ] = None,
    since: cluster_cli.Since = None,
    grep: cluster_cli.Grep = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
) -> None:
    """Show logs: for people on a terminal; elsewhere as they were written, behind the process's name and a bar."""
    if not local:
        cluster_cli.logs(stack_name, service, fleet, manager, follow=follow, tail=tail, since=since, grep=grep)
        return
    pattern, begin = cluster_cli.pattern(grep), cluster_cli.seconds_ago(since) if since else 0.0
    folder = choose.deployed(stack_name)
    chosen = [logs.Log(name, folder.log(name)) for name in _processes_of(_observed(folder), service)]
    if tail is None and not since:
        tail = cluster_cli.LINES
    written = logs.in_order((log.process, line) for log in chosen for line in log.last_lines(tail))
    _print_lines([line for line in logs.since(written, begin) if pattern.search(line[1])], chosen)
    if follow:
        try:
            for line in logs.follow(chosen):
                if pattern.search(line[1]):
                    _print_lines([line], chosen)
        except KeyboardInterrupt:
            raise typer.Exit(Exit.DONE) from None


@app.command()
def rm(
    local: Local = False,
    stack_name: StackName = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    volumes: Annotated[bool, typer.Option("--volumes", help="Checkpoints too (with --local).")] = False,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    timeout: Timeout = 180,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Stop a stack and remove it, all but its checkpoints."""
    if not local:
        cluster_cli.rm(stack_name, fleet, manager, timeout, yes=yes, volumes=volumes, dry_run=dry_run, as_json=as_json)
        return
    folder = choose.known(stack_name) if volumes else choose.deployed(stack_name)
    deployment = folder.read_deployment()
    stops = [processes.Action("stop", spec.name) for spec in reversed(deployment.processes)] if deployment else []
    if dry_run:
        _print_plan(stops, as_json, folder if volumes else None)
        return
    _confirm_removal(folder, yes=yes, volumes=volumes)
    with interruptible("the supervisor goes on stopping it", f"swarmctl rm --local --stack {folder.name}"):
        engine.remove(folder, Story(), volumes=volumes)


@app.command()
def config(
    stack_name: Annotated[str, typer.Option("--stack", help="A built-in stack's name, or the path of a file.")] = "",
    local: Local = False,
    registry: Annotated[
        str | None, typer.Option("--registry", envvar="REGISTRY", help="HOST:PORT that the agent's image comes from.")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of stack files, for editors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a stack and print it as docker stack deploy takes it (--local: the files and commands)."""
    if schema:
        print_json(stack_schema.published())
        return
    if not stack_name:
        raise UsageError("which stack?", *(f"swarmctl config --stack {name}" for name in stack.built_in_stacks()))
    found = stack.load(stack_name)
    for warning in found.warnings:
        Story().warn(warning)
    if local:
        folder = local_folder(choose.root(), found.name)
        old = folder.read_deployment()
        at = (old.port, old.http_port) if old else (7100, 7180)
        wanted = processes.want(found, folder, found.replicas, *at)
        commands = {process.name: process.argv for process in wanted.deployment.processes}
        if as_json:
            print_json({"files": wanted.files, "processes": commands})
            return
        for path, text in wanted.files.items():
            print(f"# {path}\n{text}")
        for name, argv in commands.items():
            print(f"# {name}\n{shlex.join(argv)}")
    elif as_json:
        print_json(render.as_data(found, replicas={}, registry=registry))
    else:
        print(render.render(found, replicas={}, registry=registry), end="")


@app.command()
def pause(
    local: Local = False,
    stack_name: StackName = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    timeout: Timeout = 30,
    dry_run: DryRun = False,
) -> None:
    """Have all workers stop after what they compute just now."""
    if not local:
        cluster_cli.control("pause", stack_name, fleet, manager, dry_run=dry_run)
        return
    _control("pause", stack_name, timeout, dry_run)


@app.command()
def resume(
    local: Local = False,
    stack_name: StackName = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    timeout: Timeout = 30,
    dry_run: DryRun = False,
) -> None:
    """Have paused workers go on."""
    if not local:
        cluster_cli.control("resume", stack_name, fleet, manager, dry_run=dry_run)
        return
    _control("resume", stack_name, timeout, dry_run)


@app.command()
def checkpoint(
    local: Local = False,
    stack_name: StackName = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    timeout: Timeout = 120,
    dry_run: DryRun = False,
) -> None:
    """Write a checkpoint now."""
    if not local:
        cluster_cli.control("checkpoint", stack_name, fleet, manager, dry_run=dry_run)
        return
    _control("checkpoint", stack_name, timeout, dry_run)


@app.command(name="generate")
def generate_command(
    local: Local = False,
    stack_name: StackName = None,
    checkpoint_path: Annotated[
        Path | None, typer.Option("--checkpoint", help="A checkpoint's folder. Default: the stack's newest.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="How the text begins.", callback=_text)] = "ROMEO:\n",
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to generate.")] = 300,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.", callback=_temperature)] = 0.8,
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest of this mass.", callback=_top_p)] = 0.95,
    seed: Annotated[int | None, typer.Option(min=0, help="To get the same text again.")] = None,
) -> None:
    """Let a checkpoint write text (always on this machine; no stack needs to run)."""
    del local  # accepted, since all other commands need it
    if checkpoint_path is None:
        checkpoint_path = generate.checkpoints_of(choose.known(stack_name))
    generate.run(checkpoint_path, prompt=prompt, tokens=tokens, temperature=temperature, top_p=top_p, seed=seed)


@app.command(name="demo")
def demo_command(
    minutes: Annotated[float, typer.Option(min=0.1, help="Stop after this long.")] = 4.0,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop at this version. Default: the stack's.")] = None,
    state: Annotated[Path | None, typer.Option(help="Where to keep it. Default: a new folder each time.")] = None,
) -> None:
    """Train for some minutes here, and show what was learnt."""
    from . import demo  # it draws; the other commands should not wait for what it needs

    with interruptible("the demo is stopped; its last checkpoint stays", "swarmctl demo"):
        demo.run(minutes=minutes, steps=steps, state=state)


fleet_cli.register(app)
cluster_cli.register(app)


# Helpers -------------------------------------------------------------------------------------------------------


def _control(what: coordinator.Control, stack_name: str | None, timeout: float, dry_run: bool) -> None:
    folder = choose.deployed(stack_name)
    if dry_run:
        print(f"{what} {folder.name}")
        return
    answer = engine.tell(folder, what, timeout)
    words = {"pause": "paused", "resume": "training goes on", "checkpoint": "checkpoint written"}[what]
    at = f"at version {answer['version']}" if "version" in answer else ""
    Story().done(f"{words} {at}".rstrip(), str(answer.get("path", "")))


def _conclude(observed: Observed, as_json: bool) -> None:
    """Say what to type next, and print the status for programs."""
    at = f"--local --stack {observed.folder.name}"
    if observed.is_finished:
        go_on = "# to go on, raise x-fdtc.training.steps in the stack file and deploy again"
        Story().next(f"swarmctl generate {at}", go_on)
    elif not sum(observed.deployment.replicas.values()):
        Story().next(f"swarmctl scale {next(iter(observed.deployment.workers), 'worker-rpi')} 1 {at}")
    elif observed.run_state == "paused":
        Story().next(f"swarmctl resume {at}")
    else:
        Story().next(f"swarmctl status {at} --watch", f"swarmctl logs coordinator {at} -f")
    if as_json:
        print_json(status.report(observed))


def _observed(folder: Folder) -> Observed:
    observed = observe(folder)
    if observed is None:
        raise UnreachableError(f"{folder.name} is not deployed on this machine any more", to_deploy(folder))
    return observed


def _watch(folder: Folder, as_json: bool) -> None:
    try:
        if as_json:
            while True:
                print(json.dumps(status.report(_observed(folder))), flush=True)
                time.sleep(WATCH_INTERVAL_SEC)
        with redrawn() as show:
            while True:
                show(status.render(status.report(_observed(folder))))
                time.sleep(WATCH_INTERVAL_SEC)
    except KeyboardInterrupt:
        return


def _words(words: list[str]) -> list[tuple[str, str]]:
    """Read ``worker-rpi 3 worker-laptop 2`` (or ``worker-rpi=3``)."""
    flat = [part for word in words for part in word.split("=")]
    if len(flat) % 2:
        raise UsageError("each service needs a number", "swarmctl scale worker-rpi 3")
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    names = [name for name, _ in pairs]
    for service, count in pairs:
        if names.count(service) > 1:
            raise UsageError(f"{service} is named twice", f"swarmctl scale {service} {count}")
    return pairs


def _count_of(service: str, word: str) -> int:
    # By its length first: Python reads no number of thousands of digits.
    if word.isdecimal() and (len(word) > 20 or int(word) > MOST_WORKERS):
        shown = word if len(word) <= 20 else f"{word[:20]}…"
        raise UsageError(f"{shown} workers are more than a coordinator knows how to use; at most {MOST_WORKERS}")
    if not word.isdecimal():
        raise UsageError(f"{word!r} is not a number of workers", f"swarmctl scale {service} 3")
    return int(word)


def _processes_of(observed: Observed, service: str) -> list[str]:
    every = observed.deployment.processes
    if service == "all":
        return [spec.name for spec in every]
    found = [spec.name for spec in every if service in {spec.name, spec.service}]
    # A worker that was scaled away has left its log.
    if not found and observed.folder.log(service).exists():
        found = [service]
    if not found and service in observed.deployment.workers:
        again = f"swarmctl scale {service} 1 --local --stack {observed.folder.name}"
        raise UsageError(f"there is no log of {service}: none is wished", again)
    if not found:
        names = [COORDINATOR, *observed.deployment.workers, "supervisor", "all"]
        raise UsageError(f"there is no log of {service!r}; known here: {', '.join(names)}")
    return found


def _print_lines(lines: list[tuple[str, str]], chosen: list[logs.Log]) -> None:
    names = [log.process for log in chosen]
    several = len(names) > 1
    if not sys.stdout.isatty():
        for process, line in lines:
            print(f"{process} | {line}" if several else line, flush=True)
        return
    console = output()
    width = max(map(len, names)) if several else 0
    for process, line in lines:
        console.print(logs.human(line, process.ljust(width) if several else "", names.index(process)), soft_wrap=True)


def _confirm_removal(folder: Folder, *, yes: bool, volumes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "rm asks before it removes, and there is no terminal to ask on",
            f"swarmctl rm --local --stack {folder.name}{' --volumes' if volumes else ''} --yes",
        )
    what = "and its checkpoints" if volumes else "(checkpoints stay)"
    if not typer.confirm(f"Stop {folder.name} on this machine and remove it {what}?"):
        raise typer.Exit(Exit.FAILED)


def _print_plan(actions: list[processes.Action], as_json: bool, emptied: Folder | None = None) -> None:
    count = checkpoints.count(emptied) if emptied else 0
    deleted = f"{count} checkpoint{'' if count == 1 else 's'} in {emptied.checkpoints}" if emptied and count else ""
    if as_json:
        steps = [{"action": a.kind, "process": a.process, "why": a.why} for a in actions]
        print_json(steps + ([{"action": "delete", "process": deleted, "why": "--volumes"}] if deleted else []))
        return
    signs = {"start": "[green]+[/]", "restart": "[yellow]~[/]", "stop": "[red]-[/]"}
    console = output()
    for action in actions:
        why = f"  [dim]{escape(action.why)}[/]" if action.why else ""
        console.print(f"{signs[action.kind]} {action.kind} {escape(action.process)}{why}")
    if deleted:
        console.print(f"[red]-[/] delete {escape(deleted)}", soft_wrap=True)
    if not actions and not deleted:
        console.print("nothing to change")


def _print_error(error: SwarmctlError) -> None:
    console = Story().console
    console.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
    for step in error.next_steps:
        console.print(Text.assemble("  ", (typeable(step), "bold cyan")), soft_wrap=True)
