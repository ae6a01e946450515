"""Builds the agent's image and pushes it, through ``docker buildx bake``.

May import: ``agent_image``, ``build_context``, ``builder``, ``errors``, ``console``.
"""

import json
import os
import re
import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from ..console import Story
from ..errors import InterruptedByUserError, SwarmctlError, UsageError, WaitTimeoutError
from . import build_context, builder
from .agent_image import AgentImage

Facts = dict[str, Any]
_TARGETS = (build_context.AGENT, build_context.OPERATOR)
_LINES_OF_LOG = 200
_LINES_SHOWN = 25
_WIDTH = 300
# What a build's log may say, and what mends it; \1 is what the pattern found.
_REMEDIES = (
    (r"the base image has Python (\d+\.\d+)", (r"--python \1   # the packages then fit the base",)),
    (
        r"server gave HTTP response to HTTPS client",
        (
            "--insecure   # the registry speaks plain HTTP: trust it for this build",
            '{"insecure-registries": ["HOST:PORT"]}   # in /etc/docker/daemon.json of every node, or they can\'t pull',
        ),
    ),
    (
        r"connection refused|no route to host|no such host|i/o timeout",
        ("curl -sS http://HOST:PORT/v2/   # does the registry answer?",),
    ),
    (
        r"exec format error",
        ("docker run --privileged --rm tonistiigi/binfmt --install all   # QEMU is gone or broken",),
    ),
    (r"no space left on device", ("docker buildx prune   # frees what earlier builds left",)),
)


@dataclass(frozen=True)
class BuildWish:
    """What to build, and how.

    Attributes:
        image: What.
        cache: Folder in which downloaded packages are kept.
        native: Address of a Docker engine by platform, such as ``ssh://pi@pi-01``: it builds for that platform.
        insecure: Whether the registry speaks plain HTTP.
        timeout: Seconds for the build.
        dry_run: Say what would be done, and do nothing.
    """

    image: AgentImage
    cache: Path
    native: Mapping[str, str] = field(default_factory=dict)
    insecure: bool = False
    timeout: float = 3600.0
    dry_run: bool = False


def build(wish: BuildWish, story: Story) -> Facts:
    """Build the image; it stays where it was built.

    Returns:
        ``image``, ``platforms``, ``base``, ``builder``, ``pushed``, ``digest`` (None where nothing was kept), and
        ``operator`` with ``image`` and ``digest`` of the image that swarmctl itself is in.

    Raises:
        UnreachableError: No Docker engine answers.
        SwarmctlError: buildx or emulation is missing, or the build failed; with the end of its log.
        WaitTimeoutError: It took too long.
        InterruptedByUserError: Ctrl-C.
    """
    return _bake(wish, story, pushes=False)


def push(wish: BuildWish, story: Story) -> Facts:
    """Build what is not built yet, and push it for all platforms under one name; for the rest see `build`.

    Raises:
        UsageError: No registry is named.
    """
    if not wish.image.registry:
        raise UsageError(
            "say which registry the image is pushed to",
            "REGISTRY=192.168.1.10:5000 swarmctl push",
            "swarmctl push --registry 192.168.1.10:5000",
        )
    return _bake(wish, story, pushes=True)


def _bake(wish: BuildWish, story: Story, *, pushes: bool) -> Facts:
    image = wish.image
    story.title(f"{'Pushing' if pushes else 'Building'} {image.reference}", f"for {' and '.join(image.platforms)}")
    chosen = builder.choose(image.platforms, image.registry, wish.native, insecure=wish.insecure, pushes=pushes)
    command = [
        "docker", "buildx", "bake", "--builder", chosen.name, "--file", "docker-bake.hcl", "--progress", "plain",
        *(["--push"] if pushes else ["--load"] if chosen.keeps else []),
    ]  # fmt: skip
    names = {build_context.AGENT: image.reference, build_context.OPERATOR: image.operator}
    facts: Facts = {
        "image": image.reference,
        "platforms": list(image.platforms),
        "base": image.base,
        "builder": chosen.name,
        "pushed": False,
        "digest": None,
        "operator": {"image": image.operator, "digest": None},
    }
    if wish.dry_run:
        _say_what_would_be_done(wish, chosen, command, story)
        return facts
    builder.make(chosen, story)
    builder.check_platforms(chosen, image.platforms, story)
    deadline = time.monotonic() + wish.timeout
    digests: dict[str, str | None] = {}
    with build_context.laid_out(image, list(names), wish.cache, story) as folder:
        for target, name in names.items():  # one after the other: the second finds what the first has made
            digests[target] = _run([*command, target], folder, deadline, wish, story)
            if target == build_context.AGENT:
                story.done("it takes a training step", f"on {' and '.join(image.architectures)}")
            if pushes or chosen.keeps:
                story.done(f"pushed {name}" if pushes else f"the engine has {name}", digests[target] or "")
            else:
                story.same(f"{name} stays in the builder: this engine can't hold it for several platforms")
    own = {"image": image.operator, "digest": digests[build_context.OPERATOR]}
    return {**facts, "pushed": pushes, "digest": digests[build_context.AGENT], "operator": own}


def _say_what_would_be_done(wish: BuildWish, chosen: builder.Builder, command: Sequence[str], story: Story) -> None:
    for line in builder.in_words(chosen):
        story.change("+", line)
    for target in _TARGETS:
        for arch in wish.image.architectures:
            if not build_context.packages_folder(target, arch, wish.image, wish.cache).is_dir():
                story.change("+", f"{target}: download the packages for {arch} and Python {wish.image.python}")
    variables = {name: value for name, value in _variables(wish.image).items() if value}
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    for target in _TARGETS:
        story.change("+", f"{settings} {shlex.join([*command, target])}")


def _variables(image: AgentImage) -> dict[str, str]:
    """What the bake file takes from the environment."""
    revision, source = build_context.origin()
    return {
        "REGISTRY": image.registry,
        "TAG": image.tag,
        "PLATFORMS": ",".join(image.platforms),
        "BASE": image.base,
        "PYTHON": image.python,
        "VERSION": metadata.version("swarmctl"),
        "REVISION": revision,
        "SOURCE": source,
    }


def _run(command: Sequence[str], folder: Path, deadline: float, wish: BuildWish, story: Story) -> str | None:
    """Build one target, telling of the steps; returns its digest, None where nothing was kept."""
    log: deque[str] = deque(maxlen=_LINES_OF_LOG)
    process = subprocess.Popen(
        [*command, "--metadata-file", "metadata.json"], cwd=folder, env={**os.environ, **_variables(wish.image)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.terminate()

    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), stop)
    timer.start()
    assert process.stdout
    try:
        with process, story.waiting("docker buildx bake …") as say:
            for line in process.stdout:
                log.append(line.rstrip())
                say(line.strip()[:100])
    except KeyboardInterrupt:  # Docker had it too, and stops the build
        raise InterruptedByUserError(
            "the build was stopped; what is done of it is kept, so the next one goes on from there"
        ) from None
    finally:
        timer.cancel()
    if late.is_set():
        raise WaitTimeoutError(
            f"the build was not done within {wish.timeout:g} s and was stopped; the next one goes on from there",
            f"--timeout {2 * wish.timeout:g}",
            *(
                f"--builder {platform}=ssh://USER@HOST   # quicker than emulation"
                for platform in wish.image.platforms[1:]
            ),
        )
    if process.returncode:
        raise failure(list(log), wish.image)
    made = json.loads((folder / "metadata.json").read_text())
    digest: str | None = made.get(command[-1], {}).get("containerimage.digest")
    return digest


def failure(log: Sequence[str], image: AgentImage) -> SwarmctlError:
    """What to say of a build that failed, by what it logged; pure."""
    text = "\n".join(log)
    found = [(match, lines) for pattern, lines in _REMEDIES if (match := re.search(pattern, text))]
    remedies = [match.expand(line).replace("HOST:PORT", image.registry) for match, lines in found for line in lines]
    return SwarmctlError("the build failed:\n" + "\n".join(_essence(log)), *remedies)


def _essence(log: Sequence[str]) -> list[str]:
    """What BuildKit repeats between two rules at the end, of the step that failed, and its last word."""
    rules = [number for number, line in enumerate(log) if line == "------"]
    told = log[rules[-2] + 1 : rules[-1]] if len(rules) > 1 else log[:-1]
    return [line[:_WIDTH] for line in (*told[-_LINES_SHOWN:], *log[-1:])]
