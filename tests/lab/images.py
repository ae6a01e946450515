"""Images for a lab, made here: nothing can be pulled from outside. Imports other parts of the lab."""

import io
import subprocess
import tarfile
from pathlib import Path

from tests.lab import packages
from tests.lab.lab import Lab

_KEPT_RUNNING = 'CMD ["sleep", "2000000000"]'


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
