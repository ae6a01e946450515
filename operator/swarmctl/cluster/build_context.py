"""Lays out what the image is built from: the agent, and what it needs from PyPI for each architecture.

pip runs here, on the operator's machine, with its own settings (index, certificates, cache), and takes the wheels of
the architecture that is asked for. So the build needs no network and no pip, and nothing is unpacked by an emulated
processor. May import: ``agent_image``, ``errors``, ``console``.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from ..console import Story
from ..errors import SwarmctlError
from .agent_image import AgentImage, install_options

_PROJECT = "swarmctl"
_PACKAGES = ("swarm_agent", "fdtc")
_COMMANDS = {"swarm-coordinator": "swarm_agent.coordinator_command", "swarm-worker": "swarm_agent.worker_command"}
_RECIPE = ("Dockerfile", "docker-bake.hcl")
# What a package brings along for those who test it, type-check it or build on it.
_NEEDLESS = ("bin", "**/tests", "**/testing/tests", "**/*.pyi", "**/*.a", "**/*.h", "**/*.pyx", "**/*.pxd")
_COMMAND = """\
#!/usr/bin/env python3
import sys

from {module} import main

sys.exit(main())
"""


@contextmanager
def laid_out(image: AgentImage, cache: Path, story: Story) -> Iterator[Path]:
    """A folder with everything that the image is built from; it is removed afterwards.

    Args:
        image: What is to be built.
        cache: Folder where what was downloaded stays for the next time.
        story: Told what is downloaded.

    Raises:
        SwarmctlError: pip failed, or this installation of swarmctl lacks the agent.
    """
    cache.mkdir(parents=True, exist_ok=True)
    packages = {arch: downloaded(arch, image.python, cache, story) for arch in image.architectures}
    with tempfile.TemporaryDirectory(prefix="context-", dir=cache) as name:
        folder = Path(name)
        for part in _RECIPE:
            shutil.copyfile(recipe() / part, folder / part)
        for arch, source in packages.items():
            shutil.copytree(source, folder / "packages" / arch, copy_function=os.link)
        lay_out_agent(folder / "agent")
        yield folder


def downloaded(arch: str, python: str, cache: Path, story: Story) -> Path:
    """What the agent needs from PyPI, unpacked; downloaded the first time.

    Raises:
        SwarmctlError: pip is not there, or failed.
    """
    target = packages_folder(arch, python, cache)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two builds at once, the second finds what the first has got
        if target.is_dir():
            story.same(f"packages for {arch} are there")
            return target
        with story.waiting(f"downloading packages for {arch} …"), tempfile.TemporaryDirectory(dir=cache) as folder:
            _install(Path(folder) / "new", arch, python)
            (Path(folder) / "new").rename(target)
    story.done(f"packages for {arch}", f"{len(list(target.glob('*.dist-info')))} from PyPI, for Python {python}")
    return target


def packages_folder(arch: str, python: str, cache: Path) -> Path:
    """Where `downloaded` puts them: another folder when the requirements have changed."""
    key = hashlib.sha256("\n".join([*requirements(), *_NEEDLESS]).encode()).hexdigest()[:12]
    return cache / f"packages-{python}-{arch}-{key}"


def requirements() -> Sequence[str]:
    """What the agent needs, as swarmctl's own installation has it on record; none of the operator's."""
    return [line for line in metadata.requires(_PROJECT) or [] if "extra ==" not in line]


def recipe() -> Path:
    """The folder of the Dockerfile and the bake file.

    Raises:
        SwarmctlError: This installation has none.
    """
    package = Path(__file__).resolve().parents[1]
    # A wheel carries it inside of the package; in the repository (an editable install) it lies beside it.
    for folder in (package / "images", package.parents[1] / "images"):
        if all((folder / part).is_file() for part in _RECIPE):
            return folder
    raise SwarmctlError(f"this installation of swarmctl has no Dockerfile (looked beside {package})", _reinstall())


def lay_out_agent(target: Path) -> None:
    """Our own packages and commands, as they lie in the image.

    Raises:
        SwarmctlError: They are not installed here.
    """
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        if not found or not found.origin:
            raise SwarmctlError(f"the package {name} is not installed beside swarmctl", _reinstall())
        shutil.copytree(Path(found.origin).parent, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    version = metadata.version(_PROJECT)
    record = target / f"{_PROJECT}-{version}.dist-info"  # the agent says its version by it
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_PROJECT}\nVersion: {version}\n")
    (target / "bin").mkdir()
    for command, module in _COMMANDS.items():
        path = target / "bin" / command
        path.write_text(_COMMAND.format(module=module))
        path.chmod(0o755)
    for folder, _, files in os.walk(target):  # whatever the umask here, another user has to read it
        Path(folder).chmod(0o755)
        for file in files:
            path = Path(folder) / file
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def origin() -> tuple[str, str]:
    """The commit of the checkout that swarmctl runs from, and where that came from; empty where not known."""
    folder, git = Path(__file__).resolve().parents[3], shutil.which("git")
    if not git or not (folder / ".git").exists():
        return "", ""
    commit = _said(git, "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    source = urlsplit(_said(git, "-C", str(folder), "remote", "get-url", "origin"))
    if source.scheme not in {"http", "https"} or not source.hostname:  # a path of this machine is nobody's business
        return commit, ""
    return commit, f"{source.scheme}://{source.netloc.rpartition('@')[2]}{source.path}"


def _said(*command: str) -> str:
    """What a program prints; empty where it fails."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # a look must not change anything
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return ended.stdout.strip() if ended.returncode == 0 else ""


def _install(target: Path, arch: str, python: str) -> None:
    if importlib.util.find_spec("pip") is None:
        raise SwarmctlError(
            f"pip is not there for {sys.executable}, and it fetches what goes into the image",
            f"{sys.executable} -m ensurepip",
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    ended = subprocess.run(
        [*command, "--target", str(target), *install_options(arch, python), *requirements()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or [
            ended.stderr.strip()[-500:]
        ]
        raise SwarmctlError(
            f"pip can't get the packages for {arch} and Python {python}:\n" + "\n".join(lines),
            "pip download numpy   # does this machine reach its package index?",
        )
    for pattern in _NEEDLESS:
        for path in [*target.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _reinstall() -> str:
    return f"{sys.executable} -m pip install --force-reinstall 'swarmctl[operator]'"
