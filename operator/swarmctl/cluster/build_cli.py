"""``swarmctl build`` and ``swarmctl push``: what each takes. What they call is imported when they run."""

from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import choose
from ..console import Story, print_json
from ..errors import UnreachableError, UsageError
from ..fleet_cli import AsJson, DryRun, FleetFile, ManagerHost, settings_for
from .agent_image import BASE, PYTHON, AgentImage, platforms_of

if TYPE_CHECKING:
    from ..fleet.swarm import Node
    from .build import BuildWish

Platforms = Annotated[
    list[str] | None,
    typer.Option("--platform", help="Such as linux/arm64; may be repeated. Default: what the swarm's nodes are."),
]
Registry = Annotated[str, typer.Option("--registry", envvar="REGISTRY", help="Where it is pushed to: HOST:PORT.")]
Tag = Annotated[str, typer.Option("--tag", help="Its version. Default: swarmctl's own.")]
Base = Annotated[str, typer.Option("--base", help="The image that it stands on: Debian's kind, with Python.")]
Python = Annotated[str, typer.Option("--python", help="Version of the base's Python.")]
Fast = Annotated[
    bool,
    typer.Option("--fast", help="With numba: a coordinator takes in twice as much, and every node downloads more."),
]
Builders = Annotated[
    list[str] | None,
    typer.Option("--builder", help="PLATFORM=ssh://USER@HOST: its engine builds for that platform. May be repeated."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="The registry speaks plain HTTP.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds before the build is stopped.")]

_SECONDS = 30.0  # for a manager to answer


def register(app: typer.Typer) -> None:
    """Put both commands beside the others."""
    app.command()(build)
    app.command()(push)


def build(
    platforms: Platforms = None,
    registry: Registry = "",
    tag: Tag = "",
    base: Base = BASE,
    python: Python = PYTHON,
    fast: Fast = False,
    builders: Builders = None,
    insecure: Insecure = False,
    timeout: Timeout = 3600,
    fleet: FleetFile = None,
    manager: ManagerHost = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build the agent's image for every architecture in the fleet."""
    from . import build as building

    story = Story()
    image = AgentImage(_platforms(platforms, fleet, manager, story), tag or _version(), registry, base, python, fast)
    facts = building.build(_wish(image, builders, insecure, timeout, dry_run), story)
    if as_json:
        print_json(facts)
    if not dry_run:
        story.next(f"REGISTRY={registry or 'HOST:5000'} swarmctl push")


def push(
    platforms: Platforms = None,
    registry: Registry = "",
    tag: Tag = "",
    base: Base = BASE,
    python: Python = PYTHON,
    fast: Fast = False,
    builders: Builders = None,
    insecure: Insecure = False,
    timeout: Timeout = 3600,
    fleet: FleetFile = None,
    manager: ManagerHost = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Push the agent's image to a registry, for every architecture at once; builds what is not built yet."""
    from . import build as building

    story = Story()
    image = AgentImage(_platforms(platforms, fleet, manager, story), tag or _version(), registry, base, python, fast)
    facts = building.push(_wish(image, builders, insecure, timeout, dry_run), story)
    if as_json:
        print_json(facts)
    if not dry_run:
        story.next(f"REGISTRY={registry} swarmctl deploy --stack rwkv-tiny")


def _wish(
    image: AgentImage, builders: Sequence[str] | None, insecure: bool, timeout: float, dry_run: bool
) -> "BuildWish":
    from .build import BuildWish

    native = dict(_native(word) for word in builders or ())
    if unused := sorted(set(native) - set(image.platforms)):
        raise UsageError(f"--builder for {', '.join(unused)}, and nothing is built for that", *_each(image.platforms))
    return BuildWish(image, choose.writable_root() / "image", native, insecure, timeout, dry_run)


def _native(word: str) -> tuple[str, str]:
    platform, _, address = word.partition("=")
    if not address:
        raise UsageError(f"--builder {word}: say for which platform", "--builder linux/arm64=ssh://pi@pi-01")
    return platforms_of([platform])[0], address


def _each(platforms: Sequence[str]) -> list[str]:
    return [f"--platform {platform}" for platform in platforms]


def _platforms(wished: Sequence[str] | None, fleet: Path | None, manager: str, story: Story) -> tuple[str, ...]:
    """Those that were named, else those of the swarm's nodes, else all that there are."""
    if wished:
        return platforms_of(wished)
    from ..fleet.where import manager as ask

    try:
        with ask(settings_for(fleet, manager, _SECONDS, ask_sudo=False)) as found:
            nodes = found.swarm.nodes
    except UnreachableError:
        if manager:
            raise
        story.same("no swarm answers, so it is made for all kinds of machine")
        return platforms_of(())
    return _of_the_fleet(nodes, story)


def _of_the_fleet(nodes: Iterable["Node"], story: Story) -> tuple[str, ...]:
    """What the nodes need; those that can't have it are told of, and don't keep it from the others."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(node.arch, []).append(node.hostname)
    able: list[str] = []
    for arch, those in names.items():
        try:
            able += platforms_of([arch])
        except UsageError as error:
            if len(names) == 1:
                raise
            story.failed(f"not for {', '.join(those)}: {error}", *error.next_steps)
    return platforms_of(able)


def _version() -> str:
    return metadata.version("swarmctl")
