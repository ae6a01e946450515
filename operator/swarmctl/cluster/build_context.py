"""Lays out what an image is built from: our own packages, and what they need from PyPI for each architecture.

pip runs here, on the operator's machine, with its own settings (index, certificates, cache), and takes the wheels of
the architecture that is asked for. So the build needs no network and no pip, and nothing is unpacked by an emulated
processor. May import: ``agent_image``, ``errors``, ``console``.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from ..console import Story
from ..errors import SwarmctlError
from .agent_image import AgentImage, install_options

_PROJECT = "swarmctl"
AGENT, OPERATOR = "agent", "operator"  # the bake file's targets; the operator's image stands on the agent's
# What each target adds of ours: packages, and modules of commands.
_PACKAGES = {AGENT: ("swarm_agent", "fdtc"), OPERATOR: ("swarmctl",)}
_COMMANDS = {
    AGENT: {"swarm-coordinator": "swarm_agent.coordinator_command", "swarm-worker": "swarm_agent.worker_command"},
    OPERATOR: {"swarmctl": "swarmctl.__main__"},
}
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
def laid_out(image: AgentImage, targets: Sequence[str], cache: Path, story: Story) -> Iterator[Path]:
    """A folder with everything that an image is built from; it is removed afterwards.

    Args:
        image: What is to be built.
        targets: `AGENT`, or that and `OPERATOR`.
        cache: Folder where what was downloaded stays for the next time.
        story: Told what is downloaded.

    Raises:
        SwarmctlError: pip failed, or this installation of swarmctl lacks the agent.
    """
    cache.mkdir(parents=True, exist_ok=True)
    wanted = [(target, arch) for target in targets for arch in image.architectures]
    packages = {each: downloaded(*each, image, cache, story) for each in wanted}
    with tempfile.TemporaryDirectory(prefix="context-", dir=cache) as name:
        folder = Path(name)
        for part in _RECIPE:
            shutil.copyfile(recipe() / part, folder / part)
        for (target, arch), source in packages.items():
            shutil.copytree(source, folder / target / arch, copy_function=os.link)
        for target in targets:
            lay_out_ours(target, folder / target / "ours")
        yield folder


def downloaded(target: str, arch: str, image: AgentImage, cache: Path, story: Story) -> Path:
    """What a target needs from PyPI, unpacked; downloaded the first time.

    Raises:
        SwarmctlError: pip is not there, or failed.
    """
    packages = packages_folder(target, arch, image, cache)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two builds at once, the second finds what the first has got
        if packages.is_dir():
            story.same(f"{target}: packages for {arch} are there")
            return packages
        with story.waiting(f"downloading packages for {arch} …"), tempfile.TemporaryDirectory(dir=cache) as folder:
            _install(Path(folder) / "new", requirements(target, fast=image.fast), arch, image.python)
            (Path(folder) / "new").rename(packages)
    count = len(list(packages.glob("*.dist-info")))
    story.done(f"{target}: packages for {arch}", f"{count} from PyPI, for Python {image.python}")
    return packages


def packages_folder(target: str, arch: str, image: AgentImage, cache: Path) -> Path:
    """Where `downloaded` puts them: another folder when the requirements have changed."""
    wanted = requirements(target, fast=image.fast)
    key = hashlib.sha256("\n".join([*wanted, *_NEEDLESS]).encode()).hexdigest()[:12]
    return cache / f"{target}-{image.python}-{arch}-{key}"


def requirements(target: str, *, fast: bool = False) -> Sequence[str]:
    """What a target needs beside what it stands on; the agent also of the extra "fast", if so asked."""
    return [*_required(None if target == AGENT else target), *(_required("fast") if fast and target == AGENT else ())]


def _required(extra: str | None) -> Sequence[str]:
    """What this project, or one of its extras, is on record to need."""
    file = Path(__file__).resolve().parents[3] / "pyproject.toml"
    if file.is_file():  # a checkout's own word is newer than what was on record when it was installed
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return list(project["optional-dependencies"][extra] if extra else project["dependencies"])
    lines = [line.partition(";") for line in metadata.requires(_PROJECT) or []]
    if extra is None:
        return [f"{name};{marker}" if marker else name for name, _, marker in lines if "extra ==" not in marker]
    return [name.strip() for name, _, marker in lines if re.search(rf"extra == ['\"]{extra}['\"]", marker)]


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


def lay_out_ours(target: str, folder: Path) -> None:
    """Our own packages and commands of a target, as they lie in its image.

    Raises:
        SwarmctlError: They are not installed here.
    """
    (folder / "bin").mkdir(parents=True)
    for name in _PACKAGES[target]:
        found = importlib.util.find_spec(name)
        if not found or not found.origin:
            raise SwarmctlError(f"the package {name} is not installed beside swarmctl", _reinstall())
        without = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(Path(found.origin).parent, folder / name, ignore=without)
    for command, module in _COMMANDS[target].items():
        (folder / "bin" / command).write_text(_COMMAND.format(module=module))
        (folder / "bin" / command).chmod(0o755)
    if target == AGENT:  # both say their version by this record
        version = metadata.version(_PROJECT)
        record = folder / f"{_PROJECT}-{version}.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_PROJECT}\nVersion: {version}\n")
    _let_everybody_read(folder)


def _let_everybody_read(folder: Path) -> None:
    """Whatever the umask here: in the image it is another user who reads."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


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


def _install(folder: Path, wanted: Sequence[str], arch: str, python: str) -> None:
    if importlib.util.find_spec("pip") is None:
        raise SwarmctlError(
            f"pip is not there for {sys.executable}, and it fetches what goes into the image",
            f"{sys.executable} -m ensurepip",
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    ended = subprocess.run(
        [*command, "--target", str(folder), *install_options(arch, python), *wanted],
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
        for path in [*folder.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    _let_everybody_read(folder)


def _reinstall() -> str:
    return f"{sys.executable} -m pip install --force-reinstall 'swarmctl[operator]'"
