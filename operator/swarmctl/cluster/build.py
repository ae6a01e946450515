"""Builds the agent's image and pushes it, through ``docker buildx bake``.

May import: ``image``, ``context``, ``errors``, ``console``.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from ..console import Story
from ..errors import SwarmctlError, UsageError
from . import context
from .image import SOURCE, Image

Facts = dict[str, Any]
_DRIVER_OF_THE_ENGINE = "docker"
_WITH_PLATFORMS = "io.containerd.snapshotter"  # the image store that holds one image for several platforms


@dataclass(frozen=True)
class Wish:
    """How to build.

    Attributes:
        image: What.
        cache: Folder for downloaded packages.
        native: Address of a Docker engine by platform, such as ``ssh://pi@pi-01``: it builds for that platform.
        insecure: Whether the registry speaks plain HTTP.
        timeout: Seconds for the whole build.
        revision: Of the sources, for the label.
        dry_run: Say what would be done, and do nothing.
    """

    image: Image
    cache: Path
    native: Mapping[str, str]
    insecure: bool = False
    timeout: float = 3600.0
    revision: str = ""
    dry_run: bool = False


def build(wish: Wish, story: Story) -> Facts:
    """Build the image; it stays where it was built. Returns what was done, as JSON values.

    Raises:
        UnreachableError: No Docker engine answers.
        SwarmctlError: buildx or emulation is missing, or the build failed; with the end of its log.
        WaitTimeoutError: It took too long.
    """
    return _bake(wish, story, "load")


def push(wish: Wish, story: Story) -> Facts:
    """Build what is not built yet, and push it for all platforms under one name. Returns what was done.

    Raises:
        UsageError: No registry is named.
        UnreachableError: No Docker engine answers.
        SwarmctlError: As for `build`, or the registry refused it.
        WaitTimeoutError: It took too long.
    """
    if not wish.image.registry:
        raise UsageError(
            "say which registry the image is pushed to",
            "REGISTRY=192.168.1.10:5000 swarmctl push",
            "swarmctl push --registry 192.168.1.10:5000",
        )
    return _bake(wish, story, "push")


def _bake(wish: Wish, story: Story, what: Literal["load", "push"]) -> Facts:
    image = wish.image
    story.title(f"{'Pushing' if what == 'push' else 'Building'} {image.reference}", " and ".join(image.platforms))
    builder = _choose_builder(wish, story)
    store = what == "load" and (builder.holds_platforms or len(image.platforms) == 1)
    command = [
        "docker",
        "buildx",
        "bake",
        "--file",
        "docker-bake.hcl",
        "--progress",
        "plain",
        "--builder",
        builder.name,
    ]
    command += ["--push"] if what == "push" else ["--load"] if store else []
    facts: Facts = {
        "image": image.reference,
        "platforms": list(image.platforms),
        "base": image.base,
        "builder": builder.name,
        "pushed": False,
        "digest": None,
    }
    if wish.dry_run:
        story.change("+", " ".join([*(f"{k}={shlex.quote(v)}" for k, v in _variables(wish).items()), *command]))
        return facts
    with context.laid_out(image, wish.cache, story) as folder:
        digest = _run_bake([*command, "--metadata-file", "metadata.json"], folder, wish, story)
    story.done(f"self-test passed on {', '.join(image.architectures)}")
    if what == "push":
        story.done(f"pushed {image.reference}", digest)
    elif store:
        story.done(f"built {image.reference}", digest)
    else:
        story.done(f"built {image.reference}", "it is in the builder's cache: swarmctl push sends it on")
    return {**facts, "pushed": what == "push", "digest": digest or None}


def _variables(wish: Wish) -> dict[str, str]:
    """What the bake file takes from the environment."""
    return {
        "REGISTRY": wish.image.registry,
        "TAG": wish.image.tag,
        "PLATFORMS": ",".join(wish.image.platforms),
        "BASE": wish.image.base,
        "VERSION": metadata.version("swarmctl"),
        "REVISION": wish.revision,
        "SOURCE": SOURCE,
    }


def _run_bake(command: Sequence[str], folder: Path, wish: Wish, story: Story) -> str:
    """Run it, tell of its steps, and return the digest of what it made."""
    log: list[str] = []
    environment = {**os.environ, **_variables(wish), "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    assert process.stdout
    with process.stdout, story.waiting("docker buildx bake …") as say:
        for line in process.stdout:
            log.append(line.rstrip())
            say(line.strip()[:120])
    if process.wait():
        raise SwarmctlError("the build failed:\n" + "\n".join(log[-25:]))
    made = json.loads((folder / "metadata.json").read_text())
    digest: str = made.get("agent", {}).get("containerimage.digest", "")
    return digest
