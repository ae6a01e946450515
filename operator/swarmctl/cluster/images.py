"""What a registry knows of the images of a stack: their digests, and the platforms they are made for.

The engine never pins a digest by itself, so two nodes could run two builds of one tag. May import: ``compose``,
``plan``; ``fleet`` for the engine and the nodes.
"""

from collections.abc import Mapping, Sequence

from ..console import Story
from ..errors import SwarmctlError
from ..fleet.engine import Engine, EngineError
from ..fleet.swarm import Node
from .compose import Pin
from .plan import eligible
from .state import Wanted


def pins(images: Sequence[str], engine: Engine, story: Story, *, allow_unpinned: bool) -> dict[str, Pin]:
    """Ask each image's registry for its digest and platforms.

    Raises:
        SwarmctlError: An image can't be found, and `allow_unpinned` is not set.
    """
    found: dict[str, Pin] = {}
    for image in dict.fromkeys(images):
        try:
            answer = engine.distribution(image)
        except EngineError as error:
            if not allow_unpinned:
                login = f"docker login {image.partition('/')[0]}   # nodes then pull with your login"
                raise SwarmctlError(
                    f"the image {image} can't be found: {error}",
                    *([login] if _closed(error) else []),
                    "swarmctl build && REGISTRY=HOST:5000 swarmctl push   # makes it and puts it into a registry",
                    "REGISTRY=HOST:5000 swarmctl deploy --stack …   # if it is in that registry",
                    "--allow-unpinned   # if every node has it already",
                ) from error
            story.warn(f"{image} is not pinned: each node runs what it has by that name")
            continue
        platforms = tuple(
            (p["os"], p["architecture"], p.get("variant", ""))
            for p in answer.get("Platforms") or ()
            if p.get("architecture") and p["architecture"] != "unknown"
        )
        found[image] = Pin(answer["Descriptor"]["digest"], platforms)
    return found


def _closed(error: EngineError) -> bool:
    """Whether a registry wants a login, by what it said through the engine."""
    return any(word in str(error).lower() for word in ("unauthorized", "no basic auth", "denied"))


def refuse_unsupported(wanted: Wanted, found: Mapping[str, Pin], nodes: Sequence[Node]) -> None:
    """Refuse a stack whose image has nothing for a node that is to run it.

    Raises:
        SwarmctlError: Names the nodes, and says what to do.
    """
    lacking: dict[str, list[str]] = {}
    for service, image in wanted.images.items():
        offered = {architecture for _, architecture, _ in found[image].platforms} if image in found else set()
        for node in eligible(wanted.services[service], nodes):
            if offered and node.arch not in offered:
                lacking.setdefault(node.arch, []).append(node.hostname)
    if not lacking:
        return
    lines = [f"{', '.join(sorted(set(names)))} are {arch}" for arch, names in lacking.items()]
    remedies = ["swarmctl build   # for every architecture in the fleet; then push"]
    if "arm" in lacking:
        remedies = [
            "# numpy has no wheels for 32-bit systems: put a 64-bit system on them (Raspberry Pi Imager: 64-bit)",
            *(f"swarmctl label --clear {name}   # or leave it out" for name in sorted(set(lacking["arm"]))),
        ]
    raise SwarmctlError(f"the image has nothing for some nodes: {'; '.join(lines)}", *remedies)
