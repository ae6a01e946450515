"""Images for a lab, made here: nothing can be pulled from outside.

What takes long is made once and kept in the lab's cache as a piece of a registry's storage; a lab's registry gets it as
files. Imports other parts of the lab, and swarmctl, which lays out what the agent's image is built from.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from swarmctl.cluster import build_context
from swarmctl.cluster.agent_image import AgentImage
from swarmctl.console import Story
from tests.lab import emulation, packages
from tests.lab.lab import Lab
from tests.lab.node import REPOSITORY, LabNode
from tests.lab.packages import LabError
from tests.lab.system import run

_KEPT_RUNNING = 'CMD ["sleep", "2000000000"]'
AMD64, ARM64 = "linux/amd64", "linux/arm64"
# Debian 12 with Python and little else, in place of python:3.12-slim-bookworm.
PYTHON = "3.11"
TAG = "0.1.0"
_KEPT = 8
_SUITE = "bookworm"
_DEBIAN = (
    "--variant=extract",  # unpacked and not configured: Python runs, and nothing of a foreign architecture has to
    "--include=base-files,coreutils,dash,libstdc++6,python3",
    *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale")),
)
_BASE_RECIPE = "FROM scratch\nARG TARGETARCH\nADD ${TARGETARCH}.tar /\n"
_SOURCES = {
    build_context.AGENT: ("agent/swarm_agent", "protocol/fdtc", "images", "operator/swarmctl/cluster/build_context.py"),
    build_context.OPERATOR: ("agent/swarm_agent", "protocol/fdtc", "images", "operator/swarmctl", "stacks"),
}


def tiny(lab: Lab, name: str = "tiny", *, version: str = "1") -> str:
    """A 2 MB image with busybox, and /version; returns its full name.

    Pushed to the lab's registry, or, where it has none, put into every engine.
    """
    archive = lab.folder / f"{name}-{version}.tar"
    _write_root(archive, version)
    reference = f"{lab.registry}/{name}:{version}"
    engines = [node for node in lab.nodes.values() if node.engine_running]
    for node in engines[:1] if lab.spec.registry else engines:
        node.docker("import", "--change", _KEPT_RUNNING, archive, reference)
    if lab.spec.registry:
        engines[0].docker("push", reference)
    return reference


def agent(lab: Lab, platforms: Sequence[str] = (AMD64,)) -> str:
    """The agent's image as it is in this checkout, in the lab's registry; returns its full name.

    Built by its own Dockerfile the first time, which takes a minute; again when its sources change, some ten seconds.

    Raises:
        LabError: The lab has no registry, or the build failed.
    """
    _ours(lab, build_context.AGENT, tuple(platforms))
    return f"{lab.registry}/swarm-agent:{TAG}"


def operator(lab: Lab, platforms: Sequence[str] = (AMD64,)) -> str:
    """The image that swarmctl itself is in, as `agent`; returns its full name."""
    _ours(lab, build_context.OPERATOR, tuple(platforms))
    return f"{lab.registry}/swarmctl:{TAG}"


def base(lab: Lab, platforms: Sequence[str] = (AMD64,)) -> str:
    """An image with Debian 12's Python for one or several platforms, in the lab's registry; returns its full name.

    Raises:
        LabError: The lab has no registry, or Debian's packages are not to be had.
    """
    archives = _archives(platforms)
    _hand_out(_made(f"base-{_base_key(platforms)}", lambda builder: _build_base(builder, archives)), lab)
    return f"{lab.registry}/python:{_SUITE}"


def with_platforms(node: LabNode) -> None:
    """Give its engine the image store that holds one image for several platforms: Docker 29's default."""
    settings = json.loads(node.run(["cat", "/etc/docker/daemon.json"]).stdout)
    settings["features"] = {"containerd-snapshotter": True}
    node.run(["tee", "/etc/docker/daemon.json"], stdin=json.dumps(settings))
    node.kill_engine()
    node.start_engine()


def docker_environment(node: LabNode, folder: Path) -> dict[str, str]:
    """For the node's Docker command line, buildx too, run from this system as the operator.

    Args:
        node: Its engine is the one that is talked to.
        folder: For the command line's own configuration.
    """
    tree = node.engine.root / "usr"
    plugins = {"cliPluginsExtraDirs": [str(tree / "libexec" / "docker" / "cli-plugins")]}
    (folder / "config.json").write_text(json.dumps(plugins))
    environment = node.lab.environment
    return {
        **environment,
        "PATH": f"{tree / 'bin'}:{environment['PATH']}",
        "DOCKER_HOST": f"unix://{node.socket}",
        "DOCKER_CONFIG": str(folder),
    }


# Making and keeping ------------------------------------------------------------------------------------------------


def _made(name: str, build: Callable[[Lab], None]) -> Path:
    """A piece of a registry's storage from the cache, made in a lab of its own the first time."""
    kept, kind = _cache() / name, name.partition("-")[0]
    with _locked(kind):
        if not kept.is_dir():
            with Lab({"registry": True, "nodes": ["builder"]}) as builder:
                with_platforms(builder.nodes["builder"])
                build(builder)
                new = kept.with_suffix(".new")
                shutil.rmtree(new, ignore_errors=True)
                shutil.copytree(builder.folder / "registry", new, copy_function=_share)
            new.rename(kept)
        os.utime(kept)
        _forget(kind)
    return kept


def _forget(kind: str) -> None:
    """Remove all but those used last: every change to the agent's sources makes another one."""
    trees = [path for path in _cache().glob(f"{kind}-*") if (path / "docker").is_dir()]
    for tree in sorted(trees, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(tree)


def _hand_out(kept: Path, lab: Lab) -> None:
    if not lab.spec.registry:
        raise LabError(f"the lab {lab.name} has no registry: registry: true")
    shutil.copytree(kept, lab.folder / "registry", copy_function=_share, dirs_exist_ok=True)


def _share(source: str, target: str) -> None:
    """Blobs are named by what they hold and never change; the small files that point to them do."""
    if Path(source).name != "data":
        shutil.copyfile(source, target)
    elif not Path(target).exists():
        os.link(source, target)


def _build_base(lab: Lab, archives: Path) -> None:
    _buildx(lab, archives, "build", "--file", archives / "Dockerfile", "--platform", ",".join(_platforms_in(archives)),
            "--provenance=false", "--push", "--tag", f"{lab.registry}/python:{_SUITE}", ".")  # fmt: skip


def _ours(lab: Lab, target: str, platforms: tuple[str, ...]) -> None:
    """Put an image of ours into a lab's registry."""
    key = _hash(*_files(target), *build_context.requirements(target), *platforms, _base_key(platforms))
    _hand_out(_made(f"{target}-{key}", lambda builder: _build(builder, target, platforms)), lab)


def _build(lab: Lab, target: str, platforms: tuple[str, ...]) -> None:
    variables = {
        "REGISTRY": lab.registry,
        "TAG": TAG,
        "PLATFORMS": ",".join(platforms),
        "BASE": base(lab, platforms),
        "PYTHON": PYTHON,
    }
    image = AgentImage(platforms, TAG, python=PYTHON)
    targets = list(dict.fromkeys([build_context.AGENT, target]))
    with build_context.laid_out(image, targets, _cache(), Story()) as folder, emulation.of(*image.architectures):
        _buildx(lab, folder, "bake", "--push", target, **variables)


def _buildx(lab: Lab, folder: Path, *arguments: str | Path, **variables: str) -> None:
    node = lab.nodes["builder"]
    ended = subprocess.run(
        ["docker", "buildx", *arguments, *(() if "--progress" in arguments else ("--progress", "plain"))],
        cwd=folder, env={**docker_environment(node, lab.home), **variables}, capture_output=True, text=True,
        check=False, timeout=1200,
    )  # fmt: skip
    if ended.returncode:
        raise LabError(f"docker buildx {arguments[0]}: {ended.stderr[-3000:]}")


# Debian ------------------------------------------------------------------------------------------------------------


def _archives(platforms: Sequence[str]) -> Path:
    """A folder with a Debian root for each platform, and the recipe that makes an image of them."""
    folder = _cache() / f"debian-{_base_key(platforms)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(_BASE_RECIPE)
    for platform in platforms:
        arch = platform.removeprefix("linux/")
        if not (folder / f"{arch}.tar").exists():
            (folder / f"{arch}.tar").hardlink_to(_debian(arch))
    return folder


def _platforms_in(archives: Path) -> list[str]:
    return [f"linux/{path.stem}" for path in sorted(archives.glob("*.tar"))]


def _debian(arch: str) -> Path:
    """A Debian root as an archive; a quarter of a minute for any architecture."""
    archive = _cache() / f"debian-{_hash(*_DEBIAN, _SUITE)}-{arch}.tar"
    with _locked("debian"):
        if archive.exists():
            return archive
        if not shutil.which("mmdebstrap"):
            run("apt-get", "-q", "update", timeout=300)
            run("apt-get", "-q", "-y", "--no-install-recommends", "install", "mmdebstrap", timeout=300)
        new = archive.with_suffix(".new.tar")
        run("mmdebstrap", "--quiet", f"--architectures={arch}", *_DEBIAN, _SUITE, new, packages._mirror(), timeout=600)
        return new.rename(archive)


def _base_key(platforms: Sequence[str]) -> str:
    return _hash(*_DEBIAN, _SUITE, _BASE_RECIPE, *platforms)


def kept(name: str) -> Path:
    """A folder of this name in the cache, for what a test must not download each time."""
    folder = _cache() / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# Small parts -------------------------------------------------------------------------------------------------------


def _cache() -> Path:
    return packages.cache() / "images"


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """One at a time: the others then find it made."""
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _files(target: str) -> list[str]:
    """What an image of ours is made from, by name and content."""
    paths = [path for source in _SOURCES[target] for path in _below(REPOSITORY / source)]
    return [f"{path.relative_to(REPOSITORY)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths]


def _below(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(found for found in path.rglob("*") if found.is_file() and "__pycache__" not in found.parts)


def _hash(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def _write_root(archive: Path, version: str) -> None:
    busybox = packages.tools() / "usr" / "bin" / "busybox"
    commands = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(archive, "w") as root:
        root.add(busybox, "bin/busybox")
        for command in commands:
            link = tarfile.TarInfo(f"bin/{command}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            if command != "busybox":
                root.addfile(link)
        text = version.encode() + b"\n"
        entry = tarfile.TarInfo("version")
        entry.size = len(text)
        root.addfile(entry, io.BytesIO(text))
