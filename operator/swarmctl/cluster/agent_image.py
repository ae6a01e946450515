"""What the agent's image is called, what is in it, and for which processors. Pure; imports only ``errors``."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import UsageError

REPOSITORY = "swarm-agent"
OPERATOR = "swarmctl"  # the same with swarmctl in it, for `reconcile` as a service of the swarm
BASE = "python:3.12-slim-bookworm"
PYTHON = "3.12"  # of the base
# By the architecture as the nodes' label fdtc.arch has it, which is the Docker engine's word.
PLATFORMS = {"amd64": "linux/amd64", "arm64": "linux/arm64"}
_WORDS = {"x86_64": "amd64", "aarch64": "arm64", "i386": "386", "i686": "386", "armv6l": "arm", "armv7l": "arm"}
_32_BIT = ("arm", "386")
# A C library as old as Debian 10's will do: wheels are taken that any of these standards allow.
_MANYLINUX = ("2014", "_2_17", "_2_24", "_2_26", "_2_27", "_2_28")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class AgentImage:
    """The agent's image, as it is to be built.

    Attributes:
        platforms: Such as ``linux/arm64``.
        tag: Its version.
        registry: ``HOST:PORT``, or empty for an image that stays where it is built.
        base: Image that it stands on, with Python and its standard library.
        python: Version of that Python, such as ``3.12``: wheels are chosen by it.
        fast: Whether numba is in it, for the coordinator.
    """

    platforms: tuple[str, ...]
    tag: str
    registry: str = ""
    base: str = BASE
    python: str = PYTHON
    fast: bool = False

    @property
    def reference(self) -> str:
        """Its full name."""
        return self._named(REPOSITORY)

    @property
    def operator(self) -> str:
        """Full name of the image on top of it that swarmctl is in."""
        return self._named(OPERATOR)

    def _named(self, repository: str) -> str:
        return f"{self.registry}/{repository}:{self.tag}" if self.registry else f"{repository}:{self.tag}"

    @property
    def architectures(self) -> tuple[str, ...]:
        """The platforms' last words."""
        return tuple(architecture(platform) for platform in self.platforms)


def platforms_of(architectures: Iterable[str]) -> tuple[str, ...]:
    """The platforms to build for, given the nodes' architectures; both that there are where none is given.

    Args:
        architectures: ``amd64`` or ``x86_64``, ``linux/arm64``, …, in any order, any number of times.

    Raises:
        UsageError: The image can't be made for one of them.
    """
    wanted = {_known(word) for word in architectures if word}
    return tuple(platform for arch, platform in PLATFORMS.items() if arch in wanted or not wanted)


def architecture(platform: str) -> str:
    """``arm64`` of ``linux/arm64``."""
    return platform.removeprefix("linux/")


def _known(word: str) -> str:
    arch = word.removeprefix("linux/").partition("/")[0]
    arch = _WORDS.get(arch, arch)
    if arch in PLATFORMS:
        return arch
    if arch in _32_BIT:
        raise UsageError(
            f"there is no image for a 32-bit system ({word}): numpy has no wheels for it",
            "install a 64-bit system on those machines: every Pi since the Pi 3 and the Zero 2 takes "
            "Raspberry Pi OS (64-bit)",
            "swarmctl doctor   # names the machines",
        )
    raise UsageError(
        f"there is no image for {word}: the agent's image is made for {' and '.join(PLATFORMS.values())}",
        *(f"--platform {platform}" for platform in PLATFORMS.values()),
    )


def install_options(arch: str, python: str) -> Sequence[str]:
    """Options by which pip takes the wheels of another machine."""
    tags = [f"manylinux{standard}_{_MACHINES[arch]}" for standard in _MANYLINUX]
    return [
        *(word for tag in tags for word in ("--platform", tag)),
        "--python-version", python, "--implementation", "cp", "--only-binary", ":all:", "--no-compile",
    ]  # fmt: skip
