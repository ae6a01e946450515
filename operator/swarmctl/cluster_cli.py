"""The command line of stacks in a swarm; commands that also take ``--local`` are in ``cli`` and call the ones here.

What they call is imported when they run, so that the others don't wait for Docker's and SSH's libraries.
"""

import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from . import fleet_cli
from .cluster import build_cli
from .console import Story, output, print_json, redrawn
from .coordinator import Control
from .errors import Exit, UsageError, interruptible
from .logs import human

if TYPE_CHECKING:
    from .cluster.deploy import DeployWish
    from .fleet.where import Settings

Registry = Annotated[
    str | None, typer.Option("--registry", envvar="REGISTRY", help="Where the agent's image is, such as host:5000.")
]
AllowUnpinned = Annotated[bool, typer.Option("--allow-unpinned", help="Deploy an image that no registry knows.")]
ResetScale = Annotated[bool, typer.Option("--reset-scale", help="Forget what `scale` wished; go by the stack file.")]
Since = Annotated[str | None, typer.Option("--since", help="Such as 10m, 2h, or 2026-11-29T12:00:00.")]
Grep = Annotated[str | None, typer.Option("--grep", help="Only lines that this regular expression is found in.")]
StackName = Annotated[str | None, typer.Option("--stack", help="Its name. Default: the only one that is deployed.")]
WATCH_INTERVAL_SEC = 2.0
LINES = 100  # of each process's log, unless told otherwise


@dataclass(frozen=True)
class Typed:
    """What `deploy` and `plan` have in common."""

    stack: str
    registry: str | None
    allow_unpinned: bool
    reset_scale: bool
    timeout: float


def register(app: typer.Typer) -> None:
    """Put the commands that only a swarm has beside the others."""
    for command in (plan, rollback, unlock, reconcile, drain, activate, export):
        app.command()(command)
    app.command(name="history")(history_command)
    build_cli.register(app)


# Called by ``cli`` ---------------------------------------------------------------------------------------------


def deploy(typed: Typed, fleet: Path | None, manager: str, *, dry_run: bool, as_json: bool) -> None:
    """See ``cli.deploy``."""
    from .cluster import commands

    wish, settings, story = _wish(typed), _settings(fleet, manager), Story()
    if dry_run:
        actions = commands.plan(wish, settings, story)
        if as_json:
            print_json(commands.planned(actions))
        return
    with interruptible("the swarm goes on with what it was told", f"swarmctl status --stack {wish.stack.name}"):
        report = commands.deploy(wish, settings, story)
    if as_json:
        print_json(report)
    story.next(
        f"swarmctl status --stack {wish.stack.name} --watch", f"swarmctl logs coordinator --stack {wish.stack.name} -f"
    )


def status(stack: str | None, fleet: Path | None, manager: str, *, watch: bool, as_json: bool) -> None:
    """See ``cli.status_command``."""
    from .cluster import commands
    from .cluster import status as view

    settings = _settings(fleet, manager)
    if watch:
        _watch(stack, settings, as_json=as_json)
        return
    report = commands.report(stack, settings)
    if as_json:
        print_json(report)
    else:
        output().print(view.render(report))
    if report["training"] is None:
        raise typer.Exit(Exit.UNREACHABLE)


def _watch(stack: str | None, settings: "Settings", *, as_json: bool) -> None:
    from .cluster import commands
    from .cluster import status as view

    try:
        with commands.watching(stack, settings) as look:
            if as_json:
                while True:
                    print(json.dumps(look()), flush=True)
                    time.sleep(WATCH_INTERVAL_SEC)
            with redrawn() as show:
                while True:
                    show(view.render(look()))
                    time.sleep(WATCH_INTERVAL_SEC)
    except KeyboardInterrupt:
        return


def scale(
    stack: str | None,
    wishes: Mapping[str, int | None],
    fleet: Path | None,
    manager: str,
    timeout: float,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """See ``cli.scale``."""
    from .cluster import commands

    with interruptible("the wish is kept, and the swarm goes on with it", "swarmctl status"):
        rows = commands.scale(stack, wishes, _settings(fleet, manager), Story(), timeout=timeout, dry_run=dry_run)
    if as_json:
        print_json(rows)


def logs(
    stack: str | None,
    service: str,
    fleet: Path | None,
    manager: str,
    *,
    follow: bool,
    tail: int | None,
    since: str | None,
    grep: str | None,
) -> None:
    """See ``cli.logs_command``."""
    from .cluster import commands

    wanted = pattern(grep)
    begin = seconds_ago(since) if since else 0.0
    if tail is None and not since:
        tail = LINES
    lines = commands.read_logs(
        stack, service, _settings(fleet, manager), Story(), since=begin, tail=tail, follow=follow
    )
    names: list[str] = []
    try:
        for line in lines:
            if not wanted.search(line.text):
                continue
            source = f"{line.name}@{line.node}"
            if not sys.stdout.isatty():
                print(f"{source} | {line.text}", flush=True)
                continue
            if source not in names:
                names.append(source)
            output().print(human(line.text, source.ljust(28), names.index(source)), soft_wrap=True)
    except KeyboardInterrupt:
        raise typer.Exit(Exit.DONE) from None


def rm(
    stack: str | None,
    fleet: Path | None,
    manager: str,
    timeout: float,
    *,
    yes: bool,
    volumes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """See ``cli.rm``."""
    from .cluster import commands

    if volumes:
        raise UsageError(
            "a swarm keeps each node's volumes on the node, so they are removed there",
            "swarmctl rm, then on the coordinator's node: docker volume rm STACK_checkpoints",
        )

    def ask(name: str) -> None:
        if yes:
            return
        if not sys.stdin.isatty():
            raise UsageError(
                "rm asks before it removes, and there is no terminal to ask on", f"swarmctl rm --stack {name} --yes"
            )
        if not typer.confirm(f"Stop {name} in the swarm and remove it (volumes stay)?"):
            raise typer.Exit(Exit.FAILED)

    with interruptible("the swarm goes on removing what it was told to", "swarmctl rm"):
        rows = commands.remove(stack, _settings(fleet, manager), Story(), timeout=timeout, dry_run=dry_run, ask=ask)
    if as_json:
        print_json(rows)


def control(what: Control, stack: str | None, fleet: Path | None, manager: str, *, dry_run: bool) -> None:
    """See ``cli.pause``, ``cli.resume``, ``cli.checkpoint``."""
    from .cluster import commands

    name, answer = commands.control(stack, what, _settings(fleet, manager), dry_run=dry_run)
    if dry_run:
        print(f"{what} {name}")
        return
    words = {"pause": "paused", "resume": "training goes on", "checkpoint": "checkpoint written"}[what]
    at = f"at version {answer['version']}" if "version" in answer else ""
    Story().done(f"{name}: {words} {at}".rstrip(), str(answer.get("path", "")))


# Commands of their own -----------------------------------------------------------------------------------------


def plan(
    stack_name: Annotated[str, typer.Option("--stack", help="A built-in stack's name, or the path of a file.")],
    registry: Registry = None,
    allow_unpinned: AllowUnpinned = False,
    reset_scale: ResetScale = False,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    as_json: fleet_cli.AsJson = False,
) -> None:
    """Show what `deploy` would change, field by field; exit code 10 if anything."""
    from .cluster import commands

    typed = Typed(stack_name, registry, allow_unpinned, reset_scale, 0)
    actions = commands.plan(_wish(typed), _settings(fleet, manager), Story())
    if as_json:
        print_json(commands.planned(actions))
    if actions:
        raise typer.Exit(Exit.CHANGES)


def rollback(
    revision: Annotated[int | None, typer.Argument(help="Its number. Default: the one before the last.")] = None,
    stack_name: StackName = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait before giving up the waiting.")] = 600,
    as_json: fleet_cli.AsJson = False,
) -> None:
    """Go back to an earlier revision of a stack."""
    from .cluster import commands

    with interruptible("the swarm goes on with what it was told", "swarmctl status"):
        report = commands.rollback(stack_name, revision, _settings(fleet, manager), Story(), timeout=timeout)
    if as_json:
        print_json(report)


def unlock(
    stack_name: StackName = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    dry_run: fleet_cli.DryRun = False,
) -> None:
    """Take away the lock of somebody who is not at work on a stack any more."""
    from .cluster import commands

    commands.unlock(stack_name, _settings(fleet, manager), Story(), dry_run=dry_run)


def history_command(
    stack_name: StackName = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    as_json: fleet_cli.AsJson = False,
) -> None:
    """Show who changed a stack, when, and to which revision."""
    from .cluster import commands

    rows = commands.past(stack_name, _settings(fleet, manager))
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("#", "WHEN", "WHO", "REVISION", "WHAT"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(str(row["number"]), row["when"], row["who"], str(row["revision"] or "-"), row["what"])
    output().print(table)


def reconcile(
    stack_name: StackName = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=1, help="Seconds between two looks, with --watch.")] = 15,
    install: Annotated[bool, typer.Option("--install", help="Have a service of the swarm do it from now on.")] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Remove that service.")] = False,
    registry: Registry = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the service.")] = 180,
    dry_run: fleet_cli.DryRun = False,
) -> None:
    """Bring back what drifted from what was deployed, and follow what the fleet became."""
    from .cluster import commands

    if install + uninstall + watch > 1:
        raise UsageError("--watch, --install and --uninstall exclude each other", "swarmctl reconcile --install")
    settings, story = _settings(fleet, manager), Story()
    if install or uninstall:
        commands.keep(settings, registry or "", story, install=install, timeout=timeout, dry_run=dry_run)
        return
    if not watch:
        if not commands.reconcile_once(stack_name, settings, story, dry_run=dry_run):
            story.same("nothing to change")
        return
    try:
        commands.reconcile_watch(stack_name, settings, story, interval)
    except KeyboardInterrupt:
        return


def drain(
    node: Annotated[str, typer.Argument(help="A node's name.")],
    yes: fleet_cli.Yes = False,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait before giving up the waiting.")] = 180,
    dry_run: fleet_cli.DryRun = False,
) -> None:
    """Take the work off a node: checkpoint first, then wait until its tasks have ended or moved."""
    _availability(node, "drain", fleet, manager, timeout, dry_run=dry_run, yes=yes)


def activate(
    node: Annotated[str, typer.Argument(help="A node's name.")],
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
    dry_run: fleet_cli.DryRun = False,
) -> None:
    """Let a node take work again."""
    _availability(node, "active", fleet, manager, 60, dry_run=dry_run, yes=True)


def _availability(
    node: str, availability: str, fleet: Path | None, manager: str, timeout: float, *, dry_run: bool, yes: bool
) -> None:
    from .cluster import commands

    with interruptible("the swarm goes on with what it was told", "swarmctl nodes"):
        commands.set_availability(
            node, availability, _settings(fleet, manager), Story(), timeout=timeout, dry_run=dry_run, yes=yes
        )


def export(
    checkpoint: Annotated[str, typer.Argument(help="Its name, or newest.")],
    folder: Annotated[Path, typer.Argument(help="Where to put it.")],
    stack_name: StackName = None,
    fleet: fleet_cli.FleetFile = None,
    manager: fleet_cli.ManagerHost = "",
) -> None:
    """Copy a checkpoint out of the swarm into a folder here."""
    from .cluster import commands

    path = commands.export_checkpoint(stack_name, checkpoint, folder, _settings(fleet, manager), Story())
    Story().next(f"swarmctl generate --checkpoint {path}")


# Helpers -------------------------------------------------------------------------------------------------------


def _settings(fleet: Path | None, manager: str) -> "Settings":
    return fleet_cli.settings_for(fleet, manager, 30, ask_sudo=False)


def _wish(typed: Typed) -> "DeployWish":
    from .cluster import commands

    return commands.wish(
        typed.stack,
        registry=typed.registry,
        allow_unpinned=typed.allow_unpinned,
        reset_scale=typed.reset_scale,
        timeout=typed.timeout,
    )


def pattern(text: str | None) -> re.Pattern[str]:
    """What lines are searched for; everything matches where nothing was asked for."""
    try:
        return re.compile(text or "")
    except re.error as error:
        raise UsageError(f"--grep {text!r}: {error}") from error


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_ago(text: str) -> float:
    """The time that ``10m`` or an ISO date means, in seconds since the epoch."""
    from datetime import datetime

    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return max(0.0, time.time() - float(match[1]) * _UNITS[match[2]])
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise UsageError(f"--since {text!r} is neither a length of time nor a date", "--since 10m") from error
