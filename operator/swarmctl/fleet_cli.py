"""The command line of the fleet: init, join, label, nodes, doctor, fleet. Commands hold no logic.

What they call is imported when they run, so that the others don't wait for Docker's and SSH's libraries.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import choose
from .console import Story, output, print_json
from .errors import UsageError, interruptible

if TYPE_CHECKING:
    from .fleet.commands import Outcome
    from .fleet.where import Settings

FleetFile = Annotated[
    Path | None,
    typer.Option(
        "--fleet", help="The fleet file. Default: $SWARMCTL_FLEET, ./fleet.yml, ~/.config/swarmctl/fleet.yml."
    ),
]
ManagerHost = Annotated[
    str,
    typer.Option(
        "--manager", envvar="SWARMCTL_MANAGER", help="The manager to ask. Default: this machine, or the last."
    ),
]
AskSudo = Annotated[bool, typer.Option("--ask-sudo", help="Ask for the password that sudo wants on the machines.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for one machine.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it in spite of what is warned of.")]

fleet_app = typer.Typer(name="fleet", help="The fleet file: the machines by name.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Put the fleet's commands beside the others."""
    for command in (init, join, label, nodes, doctor):
        app.command()(command)
    app.add_typer(fleet_app)


def init(
    host: Annotated[str | None, typer.Argument(help="The machine, over SSH. Default: this one.")] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise-addr", help="The address that the others find it by.")
    ] = None,
    pool: Annotated[str | None, typer.Option("--pool", help="Network that overlay networks are cut from.")] = None,
    yes: Yes = False,
    fleet: FleetFile = None,
    ask_sudo: AskSudo = False,
    timeout: Timeout = 60,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a swarm with this machine, or HOST, as its manager."""
    from .fleet import commands

    settings = settings_for(fleet, "", timeout, ask_sudo=ask_sudo)
    story = Story()
    wished = _one_host(host, settings) if host else None
    with interruptible("a swarm may have been made", "type the same again: it adds what is missing"):
        facts = commands.init(commands.InitWish(wished, advertise, pool, yes, dry_run), settings, story)
    if as_json:
        print_json(facts)
    if "join" in facts:
        story.next(
            "swarmctl join HOST …        # over SSH, many at once: pi-01 pi-02, or pi-[01-20], or all of fleet.yml",
            f"{facts['join']['worker']}   # or this, on each machine itself",
            f"{facts['join']['docker']}   # the same where there is no swarmctl",
            "swarmctl label --auto       # then",
        )


def join(
    words: Annotated[
        list[str],
        typer.Argument(metavar="HOST… | TOKEN MANAGER:2377", help="Machines over SSH; or a token, for this machine."),
    ],
    role: Annotated[str | None, typer.Option("--role", help="worker or manager. Default: the fleet file's.")] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise-addr", help="With TOKEN: the address that the others find it by.")
    ] = None,
    yes: Yes = False,
    fleet: FleetFile = None,
    manager: ManagerHost = "",
    ask_sudo: AskSudo = False,
    timeout: Timeout = 90,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Have machines join the swarm: HOSTs over SSH, or this one by TOKEN."""
    from .fleet import commands

    story = Story()
    if any(word.startswith("SWMTKN-") for word in words):
        if not words[0].startswith("SWMTKN-"):
            raise UsageError("the token comes first", "swarmctl join SWMTKN-… 192.168.1.10:2377")
        if role is not None:
            raise UsageError(
                "whether a machine becomes a worker or a manager is in the token, so --role says nothing here",
                "docker swarm join-token manager   # on a manager: the other token",
            )
        with interruptible("the engine may go on with it", "docker info   # tells whether it is in the swarm"):
            row = commands.join_here(
                words[0],
                _manager_addresses(words[1:]),
                advertise,
                story,
                timeout=timeout,
                yes=yes,
                dry_run=dry_run,
            )
        if as_json:
            print_json([row])
        return
    settings = settings_for(fleet, manager, timeout, ask_sudo=ask_sudo)
    if role not in {None, "worker", "manager"}:
        raise UsageError(f"--role {role}: a node is a worker or a manager", "--role worker", "--role manager")
    hosts = _hosts(words, settings)
    wish = commands.JoinWish(hosts, role, yes, dry_run, timeout)  # type: ignore[arg-type]  # checked just above
    with interruptible(
        "engines that were told to join go on with it", "type the same again: it finishes what is half done"
    ):
        outcome = commands.join_hosts(wish, settings, story)
    _conclude(outcome, as_json, story, "swarmctl label --auto")


def label(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE…] | NODE CLASS", help="A node and its class; with --auto or --clear, nodes."),
    ] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Find out by looking at the machines.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Take the class away, so that --auto decides again.")] = False,
    fleet: FleetFile = None,
    manager: ManagerHost = "",
    ask_sudo: AskSudo = False,
    timeout: Timeout = 30,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Say of each node what it is: by looking (--auto), or as you say (NODE CLASS)."""
    from .fleet import commands, tell

    words = words or []
    _refuse_mixed(words, auto=auto, clear=clear)
    settings, story = settings_for(fleet, manager, timeout, ask_sudo=ask_sudo), Story()
    if auto:
        with interruptible("some nodes may be labelled already", "type the same again: it labels the others"):
            outcome = commands.label_auto(words, settings, story, dry_run=dry_run)
        if not as_json:
            output().print(tell.labels(outcome.rows))
        _conclude(outcome, as_json, story, "swarmctl nodes")
        return
    if clear:
        actions = commands.label_clear(words, settings, story, dry_run=dry_run)
    else:
        actions = commands.label_node(words[0], words[1], settings, story, dry_run=dry_run)
    if as_json:
        from .fleet.actions import as_data

        print_json([as_data(action) for action in actions])


def nodes(
    quick: Annotated[bool, typer.Option("--quick", help="Ask the swarm only, not each machine.")] = False,
    fleet: FleetFile = None,
    manager: ManagerHost = "",
    ask_sudo: AskSudo = False,
    timeout: Timeout = 15,
    as_json: AsJson = False,
) -> None:
    """Show every node: what it is, how it is, and why."""
    from .fleet import commands
    from .fleet import nodes as listing

    rows = commands.nodes(settings_for(fleet, manager, timeout, ask_sudo=ask_sudo), Story(), quick=quick)
    if as_json:
        print_json(rows)
        return
    output().print(listing.render(rows))
    output().print(listing.summary(rows), style="dim")


def doctor(
    words: Annotated[list[str] | None, typer.Argument(metavar="[HOST…]", help="Only these. Default: all.")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended without risk.")] = False,
    all_pairs: Annotated[bool, typer.Option("--all-pairs", help="Test every node with every other.")] = False,
    fleet: FleetFile = None,
    manager: ManagerHost = "",
    ask_sudo: AskSudo = False,
    timeout: Timeout = 30,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Look for everything that usually goes wrong, and say what mends it."""
    from .fleet import checkup
    from .fleet import doctor as telling

    settings, story = settings_for(fleet, manager, timeout, ask_sudo=ask_sudo), Story()
    hosts = _hosts(words, settings) if words else []
    diagnosis = checkup.doctor(hosts, settings, story, all_pairs=all_pairs, fix=fix, dry_run=dry_run)
    if as_json:
        print_json(telling.as_json(diagnosis.findings))
    else:
        output().print(telling.render(diagnosis.findings), soft_wrap=True)
    if diagnosis.problem:
        raise diagnosis.problem


@fleet_app.command()
def show(fleet: FleetFile = None, as_json: AsJson = False) -> None:
    """Show the machines of the fleet file, patterns written out."""
    from .fleet import tell
    from .fleet.inventory import as_data

    inventory = settings_for(fleet, "", 30, ask_sudo=False).inventory
    if inventory.path is None:
        raise UsageError("there is no fleet file", "swarmctl fleet scan HOST… --write fleet.yml   # writes one")
    rows = [as_data(host) for host in inventory.hosts]
    if as_json:
        print_json(rows)
    else:
        output().print(tell.hosts(rows))


@fleet_app.command()
def scan(
    words: Annotated[list[str], typer.Argument(metavar="HOST…", help="Names, addresses, patterns such as pi-[01-20].")],
    write: Annotated[Path | None, typer.Option("--write", help="Write a fleet file with those that answer.")] = None,
    fleet: FleetFile = None,
    ask_sudo: AskSudo = False,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Look at machines over SSH, in a swarm or not, and say what each is."""
    from .fleet import commands, tell

    settings, story = settings_for(fleet, "", timeout, ask_sudo=ask_sudo), Story()
    outcome = commands.scan(_hosts(words, settings), settings, story, write)
    if not as_json:
        output().print(tell.scanned(outcome.rows))
    _conclude(outcome, as_json, story)


# Helpers -------------------------------------------------------------------------------------------------------


def settings_for(fleet: Path | None, manager: str, timeout: float, *, ask_sudo: bool) -> "Settings":
    """How the commands reach machines, by what was typed."""
    from .fleet.inventory import EMPTY, load
    from .fleet.ssh import SshSettings
    from .fleet.where import Settings

    path = fleet or _usual_fleet_file()
    password = _sudo_password() if ask_sudo else None
    return Settings(
        state=choose.root(),
        inventory=load(path) if path else EMPTY,
        ssh=SshSettings(sudo_password=password),
        manager=manager,
        deadline=timeout,
    )


def _sudo_password() -> str:
    """Asked for on a terminal; else the first line of what is piped in."""
    if sys.stdin.isatty():
        return str(typer.prompt("sudo's password on the machines", hide_input=True, err=True))
    line = sys.stdin.readline().rstrip("\n")
    if not line:
        raise UsageError("--ask-sudo wants a password, and there is neither a terminal nor a line on standard input")
    return line


def _usual_fleet_file() -> Path | None:
    if named := os.environ.get("SWARMCTL_FLEET"):
        return Path(named)
    usual = (Path("fleet.yml"), Path("~/.config/swarmctl/fleet.yml").expanduser())
    return next((path for path in usual if path.is_file()), None)


def _hosts(words: Sequence[str], settings: "Settings") -> list[Any]:
    from .fleet.inventory import expand

    return list(expand(words, settings.inventory))


def _one_host(word: str, settings: "Settings") -> Any:
    hosts = _hosts([word], settings)
    if len(hosts) != 1:
        raise UsageError(
            f"{word} means {len(hosts)} machines; a swarm is made on one", f"swarmctl init {hosts[0].name}"
        )
    return hosts[0]


def _manager_addresses(words: Sequence[str]) -> list[str]:
    if not words:
        raise UsageError("a token needs a manager's address behind it", "swarmctl join SWMTKN-… 192.168.1.10:2377")
    addresses = []
    for word in words:
        host, _, port = word.rpartition(":") if word.count(":") == 1 or "]" in word else (word, "", "2377")
        if not host or not port.isdecimal():
            raise UsageError(f"{word!r} is no manager's address", "swarmctl join SWMTKN-… 192.168.1.10:2377")
        addresses.append(f"{host}:{port}")
    return addresses


def _refuse_mixed(words: Sequence[str], *, auto: bool, clear: bool) -> None:
    if auto and len(words) == 2 and words[1] in {"rpi", "laptop", "desktop", "server"}:
        raise UsageError(
            "a class of your own and --auto exclude each other",
            f"swarmctl label {words[0]} {words[1]}",
            f"swarmctl label --auto {words[0]}",
        )
    if auto and clear:
        raise UsageError(
            "--auto and --clear exclude each other", "swarmctl label --clear NODE", "swarmctl label --auto"
        )
    if clear and not words:
        raise UsageError("say which nodes to clear", "swarmctl label --clear NODE …")
    if not auto and not clear and len(words) != 2:
        raise UsageError(
            "say a node and its class, or --auto",
            "swarmctl label --auto",
            "swarmctl label NODE rpi   # or laptop, desktop, server",
        )


def _conclude(outcome: "Outcome", as_json: bool, story: Story, *next_steps: str) -> None:
    if as_json:
        print_json(outcome.rows)
    if outcome.problem:
        raise outcome.problem
    if next_steps:
        story.next(*next_steps)
