"""Debian packages of the lab, unpacked beside the system: Docker engines of several ages, and the nodes' tools.

Nothing is installed: `apt-get download` and `dpkg -x` into a cache. A node lays these trees over its own /usr.
Imports nothing of ours.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Newest first. Debian 12 has the command line inside docker.io.
ENGINES: Mapping[str, Sequence[str]] = {
    "sid": ("docker.io", "docker-cli", "containerd", "docker-buildx", "docker-compose"),
    "trixie": ("docker.io", "docker-cli", "containerd", "docker-buildx", "docker-compose"),
    "bookworm": ("docker.io", "containerd"),
}
# What a node needs besides, each with a program that shows that it is there.
TOOLS: Mapping[str, str] = {
    "openssh-server": "sbin/sshd",
    "openssh-sftp-server": "lib/openssh/sftp-server",
    "docker-registry": "bin/docker-registry",
    "sudo": "bin/sudo",
    "busybox-static": "bin/busybox",
    "tini": "bin/tini",
    "runc": "sbin/runc",
    "iptables": "sbin/iptables",
    "iputils-ping": "bin/ping",
    "procps": "bin/ps",
    "curl": "bin/curl",
    "libdevmapper1.02.1": "lib/*/libdevmapper.so.1.02.1",  # what the engines are linked with, beyond Debian's base
}
# What this machine itself must have: the lab is made with them.
SYSTEM: Mapping[str, str] = {
    "iproute2": "ip",
    "util-linux": "nsenter",
    "mount": "mount",
    "openssh-client": "ssh-keygen",
    "openssl": "openssl",
    "hostname": "hostname",
}


class LabError(Exception):
    """The lab can't be made here; the message says why and what to do."""


@dataclass(frozen=True)
class Engine:
    """An unpacked Docker engine.

    Attributes:
        version: As `dockerd --version` says.
        suite: The Debian suite that it comes from.
        root: Folder with its usr/.
    """

    version: str
    suite: str
    root: Path


def cache() -> Path:
    """Where unpacked packages live: $SWARMCTL_LAB_CACHE, or a folder that all checkouts share."""
    return Path(os.environ.get("SWARMCTL_LAB_CACHE") or "/var/cache/swarmctl-lab")


def tools() -> Path:
    """Folder with the nodes' tools."""
    return cache() / "tools"


def engines() -> list[Engine]:
    """Those unpacked, newest first."""
    found = []
    for suite in ENGINES:
        root = cache() / "engine" / suite
        if (root / "version").is_file():
            found.append(Engine((root / "version").read_text().strip(), suite, root))
    return found


def engine(wish: str = "newest") -> Engine:
    """The unpacked engine of a version such as ``28`` or ``20.10``; ``newest`` is the newest that runs.

    Raises:
        LabError: There is none.
    """
    there = engines()
    for candidate in there:
        if wish == "newest" or f"{candidate.version}.".startswith(f"{wish}."):
            return candidate
    versions = ", ".join(candidate.version for candidate in there) or "none"
    raise LabError(f"no Docker engine {wish} in {cache()} (there: {versions}): python -m tests.lab prepare")


def require(wish: str) -> None:
    """Raises `LabError` where something that a lab needs has not been got yet."""
    if lacking := [*_missing_system(), *_missing_tools()]:
        raise LabError(f"not here: {', '.join(lacking)}: python -m tests.lab prepare")
    engine(wish)


def get(trial: Callable[[Engine], None]) -> list[Engine]:
    """Get everything that is missing and return the engines that run here, newest first.

    Args:
        trial: Raises `LabError` when an engine, once unpacked, turns out not to work. It is not tried again.

    Raises:
        LabError: Not root, no apt, or no engine runs.
    """
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes network namespaces and mounts")
    if not shutil.which("apt-get"):
        raise LabError("the lab gets its engines as Debian packages, and there is no apt-get here")
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time; the others then find everything there
        if system := _missing_system():
            _run("apt-get", "-q", "update")
            _run("apt-get", "-q", "-y", "--no-install-recommends", "install", *system)
        if _missing_tools():
            _get_tools()
        for suite in ENGINES:
            _get_engine(suite, trial)
    if not engines():
        raise LabError("no Docker engine runs here")
    return engines()


def _missing_system() -> list[str]:
    return [package for package, program in SYSTEM.items() if not shutil.which(program)]


def _missing_tools() -> list[str]:
    def there(package: str, program: str) -> bool:
        # The system's busybox may be the dynamic one: it doesn't run in an empty image.
        trees = [tools() / "usr"] if package == "busybox-static" else [tools() / "usr", Path("/usr")]
        return any(any(tree.glob(program)) for tree in trees)

    return [package for package, program in TOOLS.items() if not there(package, program)]


def _get_tools() -> None:
    """Whatever this system lacks of the tools, with the libraries that they need."""
    suite = _codename()
    options = _apt(suite)
    archives = cache() / "apt" / suite / "tools"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    _run("apt-get", "-q", "-y", "-d", "--no-install-recommends", "--no-upgrade", *options,
         "-o", f"Dir::Cache::archives={archives}", "install", *TOOLS)  # fmt: skip
    _run("apt-get", "-q", "download", "busybox-static", *options, folder=archives)
    _unpack(archives, tools())
    sbin = tools() / "usr" / "sbin"
    if (sbin / "xtables-nft-multi").exists():  # what update-alternatives would do
        for name in ("iptables", "ip6tables"):
            for verb in ("", "-save", "-restore"):
                (sbin / f"{name}{verb}").unlink(missing_ok=True)
                (sbin / f"{name}{verb}").symlink_to("xtables-nft-multi")
    if lacking := _missing_tools():
        raise LabError(f"the packages for {', '.join(lacking)} do not hold what the lab looks for")


def _get_engine(suite: str, trial: Callable[[Engine], None]) -> None:
    root = cache() / "engine" / suite
    version, tried = root / "version", root / "tried"
    if tried.is_file():
        return
    try:
        if not version.is_file():
            archives = cache() / "apt" / suite / "engine"
            archives.mkdir(parents=True, exist_ok=True)
            _run("apt-get", "-q", "download", *ENGINES[suite], *_apt(suite), folder=archives)
            _unpack(archives, root)
            version.write_text(_version(root))
        trial(Engine(version.read_text(), suite, root))
        tried.write_text("it works\n")
    except LabError as error:  # one suite whose engine does not run here leaves the others
        print(f"lab: no engine from Debian {suite}: {error}", file=sys.stderr)
        version.unlink(missing_ok=True)
        if root.exists():
            tried.write_text(f"{error}\n")


def _version(root: Path) -> str:
    """Run the engine where a node would: over this system's /usr, with this system's libraries."""
    script = (
        'mkdir -p "$1/tmp/upper" "$1/tmp/work" && '
        'mount -t overlay lab -o "lowerdir=$1/usr:$2/usr:/usr,upperdir=$1/tmp/upper,workdir=$1/tmp/work" /usr && '
        "/usr/bin/containerd --version >&2 && /usr/bin/docker --version >&2 && /usr/sbin/dockerd --version"
    )
    said = _run("unshare", "--mount", "sh", "-c", script, "sh", str(root), str(tools()))
    return said.removeprefix("Docker version ").partition(",")[0].partition("+")[0]


def _unpack(archives: Path, root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for archive in sorted(archives.glob("*.deb")):
        _run("dpkg", "-x", str(archive), str(root))
        archive.unlink()
    for name in ("bin", "sbin", "lib", "lib64"):  # older packages know a / apart from /usr
        if (root / name).is_dir():
            _run("cp", "-a", f"{root / name}/.", str(root / "usr" / name))
            shutil.rmtree(root / name)


def _apt(suite: str) -> list[str]:
    """Options for an apt that knows one suite only and leaves the system's lists alone."""
    folder = cache() / "apt" / suite
    lists = folder / "lists"
    if not any(lists.glob("*Packages*")):
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        (folder / "sources").write_text(f"deb {_mirror()} {suite} main\n")
    options = [
        "-o", f"Dir::Etc::SourceList={folder / 'sources'}", "-o", "Dir::Etc::SourceParts=/dev/null",
        "-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={folder}", "-o", "Acquire::Languages=none",
        "-o", "Acquire::Check-Valid-Until=false",  # a mirror may be a snapshot
        "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip
    _run("apt-get", "-q", "update", *options)
    return options


def _mirror() -> str:
    """The Debian archive that this system uses itself."""
    indexes = _run("apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)")
    for line in indexes.splitlines():
        if line.startswith("Debian Debian http"):
            return line.split()[-1]
    return "http://deb.debian.org/debian"


def _codename() -> str:
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return release.get("VERSION_CODENAME", "bookworm").strip('"')


def _run(*command: str, folder: Path | None = None) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise LabError(f"{' '.join(command[:4])} … failed: {ended.stderr.strip()[-500:]}")
    return ended.stdout
