"""Which of Docker's builders makes the image: the engine's own where that will do, else one of ours.

The engine's own needs nothing from outside, and knows the registries that the engine trusts. It will not do where the
engine can't hold an image for several platforms, where machines of the fleet are to build too, or where only the
build is to trust a registry. Then a builder in a container is made, whose image comes from Docker Hub. May import:
``agent_image``, ``errors``, ``console``.
"""

import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..console import Story
from ..errors import SwarmctlError, UnreachableError, WaitTimeoutError
from .agent_image import architecture

_STORE_WITH_PLATFORMS = "io.containerd.snapshotter"
_SECONDS = 300.0  # for a builder to start: its image may have to be pulled


@dataclass(frozen=True)
class Builder:
    """A builder.

    Attributes:
        name: buildx's.
        keeps: Whether the engine can hold what it builds for these platforms.
        commands: What is to be run before it is there.
        settings: Its configuration file, as text; empty for none.
    """

    name: str
    keeps: bool
    commands: Sequence[Sequence[str]] = ()
    settings: str = ""


def choose(
    platforms: Sequence[str], registry: str, native: Mapping[str, str], *, insecure: bool, pushes: bool
) -> Builder:
    """Say which builder it is to be; makes nothing.

    Args:
        platforms: To build for.
        registry: Of the image, or empty.
        native: Address of an engine by platform, that builds for it.
        insecure: Whether the registry speaks plain HTTP, and this engine need not know.
        pushes: Whether the image goes to the registry at once.

    Raises:
        SwarmctlError: There is no docker, or no buildx.
        UnreachableError: The engine refuses to answer.
        WaitTimeoutError: It does not answer at all.
    """
    info = _engine()
    keeps = len(platforms) == 1 or _holds_several_platforms(info)
    trusted = _trusted(info)
    if keeps and not native and (registry in trusted or not (insecure and pushes)):
        return Builder(_the_engines_own(), keeps=True)
    plain = sorted({*trusted, registry} if registry and insecure else trusted)
    settings = "".join(f'[registry."{each}"]\n  http = true\n  insecure = true\n' for each in plain)
    here = [platform for platform in platforms if platform not in native]
    places = [("", here), *((address, [platform]) for platform, address in sorted(native.items()))]
    places = [(address, those) for address, those in places if those]
    name = "swarmctl-" + sha256(json.dumps([settings, places]).encode()).hexdigest()[:8]
    keeps = len(platforms) == 1
    if _docker("buildx", "inspect", name).returncode == 0:
        return Builder(name, keeps)
    return Builder(name, keeps, _creation(name, places, with_settings=bool(settings)), settings)


def make(builder: Builder, story: Story) -> None:
    """Make a builder that is not there yet.

    Raises:
        SwarmctlError: It can't be made.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "buildkitd.toml").write_text(builder.settings)
        for command in builder.commands:
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if ended.returncode:
                raise SwarmctlError(
                    f"no builder can be made: {' '.join(command)}\n{ended.stderr.strip()}",
                    f"docker buildx rm {builder.name}   # clears away what there is of it",
                )
    if builder.commands:
        story.done(f"made the builder {builder.name}", f"docker buildx rm {builder.name} takes it away")


def check_platforms(builder: Builder, platforms: Sequence[str], story: Story) -> None:
    """Start the builder, and see that it runs programs of every platform.

    Raises:
        SwarmctlError: It does not start, or there is a platform that it can't run.
    """
    with story.waiting(f"starting the builder {builder.name} …"):
        ended = _docker("buildx", "inspect", "--bootstrap", builder.name, timeout=_SECONDS)
    errors = re.findall(r"^Error:\s+(.*)$", ended.stdout, re.MULTILINE)
    if ended.returncode or errors:
        said = "\n".join([*errors, *ended.stderr.strip().splitlines()[-5:]])
        raise SwarmctlError(
            f"the builder {builder.name} does not start:\n{said}",
            f"docker buildx inspect --bootstrap {builder.name}   # the same, in full",
            f"docker buildx rm {builder.name}   # and once more, if a machine of it is gone",
        )
    able = runs(ended.stdout)
    lacking = [platform for platform in platforms if platform not in able]
    if lacking:
        archs = ",".join(architecture(platform) for platform in lacking)
        raise SwarmctlError(
            f"the builder {builder.name} can't run programs for {' and '.join(lacking)} "
            f"(it can for {', '.join(sorted(able))}): there is no QEMU registered with its kernel",
            "sudo apt install qemu-user-static   # on the machine of the engine, if that is Debian or Ubuntu; else:",
            f"docker run --privileged --rm tonistiigi/binfmt --install {archs}",
            f"--builder {lacking[0]}=ssh://USER@HOST   # or let a machine build that is one; many times quicker",
            *(f"--platform {platform}   # or do without" for platform in platforms if platform not in lacking),
        )


def runs(inspected: str) -> set[str]:
    """The platforms in what ``docker buildx inspect`` printed, without their variants; pure."""
    lists = re.findall(r"^Platforms:\s+(.*)$", inspected, re.MULTILINE)
    # A platform that was given by hand has an asterisk: it is preferred there.
    return {"/".join(word.strip(" *").split("/")[:2]) for words in lists for word in words.split(",")} - {""}


def _creation(name: str, places: Sequence[tuple[str, list[str]]], *, with_settings: bool) -> list[list[str]]:
    """The commands that make a builder of several machines; an empty address is this one."""
    commands = []
    for number, (address, platforms) in enumerate(places):
        command = ["docker", "buildx", "create", "--name", name, "--node", f"{name}-{number}"]
        command += ["--append"] if number else []
        # On the host's network: registries on the home's network and on this machine are the same to it as to us.
        command += ["--driver", "docker-container", "--driver-opt", "network=host"]
        command += ["--config", "buildkitd.toml"] if with_settings else []
        command += ["--platform", ",".join(platforms)] if address else []
        commands.append([*command, *([address] if address else [])])
    return commands


def _engine() -> dict[str, Any]:
    if not shutil.which("docker"):
        raise SwarmctlError(
            "there is no docker command here, and it builds the image",
            "sudo apt install docker.io docker-buildx   # on newer Debian and Ubuntu",
            "https://docs.docker.com/engine/install/   # elsewhere",
        )
    if _docker("buildx", "version").returncode:
        raise SwarmctlError(
            "Docker has no buildx here, and it builds for several architectures",
            "sudo apt install docker-buildx-plugin   # Docker's own packages",
            "sudo apt install docker-buildx          # Debian 13's and Ubuntu's",
        )
    ended = _docker("info", "--format", "{{json .}}")
    info: dict[str, Any] = json.loads(ended.stdout) if ended.stdout.startswith("{") else {}
    if ended.returncode or info.get("ServerErrors"):
        said = "; ".join(info.get("ServerErrors") or [ended.stderr.strip()])
        raise UnreachableError(
            f"no Docker engine answers: {said}",
            "sudo systemctl start docker",
            "sudo usermod -aG docker $USER   # if permission is denied; then log in again",
            "export DOCKER_HOST=ssh://USER@HOST   # or let another machine's engine build",
        )
    return info


def _the_engines_own() -> str:
    """The builder of the engine that ``docker`` talks to: it has the name of the context."""
    said = _docker("context", "show")
    return said.stdout.strip() if said.returncode == 0 else "default"


def _holds_several_platforms(info: Mapping[str, Any]) -> bool:
    """Whether an image in the engine can be one for several platforms, as in a registry."""
    return any(_STORE_WITH_PLATFORMS in word for pair in info.get("DriverStatus") or () for word in pair)


def _trusted(info: Mapping[str, Any]) -> set[str]:
    """The registries of which the engine was told that they speak plain HTTP."""
    known: Mapping[str, Any] = (info.get("RegistryConfig") or {}).get("IndexConfigs") or {}
    return {name for name, settings in known.items() if not settings.get("Secure", True)}


def _docker(*arguments: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    docker = shutil.which("docker") or "docker"
    try:
        return subprocess.run([docker, *arguments], capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        said = shlex.join(["docker", *arguments])
        raise WaitTimeoutError(f"no answer within {timeout:g} s: {said}", said) from None


def in_words(builder: Builder) -> list[str]:
    """The commands that make the builder, as one would type them."""
    lines = [f"buildkitd.toml: {line}" for line in builder.settings.splitlines()]
    return [*lines, *(shlex.join(command) for command in builder.commands)]
