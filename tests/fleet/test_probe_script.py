"""The real probe script on this machine, under each shell, and in places where next to nothing is left."""

import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarmctl.fleet.connection import Completed
from swarmctl.fleet.evidence import evidence, health
from swarmctl.fleet.facts import Probe
from swarmctl.fleet.inventory import Host
from swarmctl.fleet.probe import ProbeError, parse, probe, script
from swarmctl.fleet.ssh import here

needs_busybox = pytest.mark.skipif(shutil.which("busybox") is None, reason="BusyBox is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces and chroot need root")

SHELLS = [
    pytest.param(("dash",), id="dash"),
    pytest.param(("bash", "--posix"), id="bash"),
    pytest.param(("busybox", "sh"), id="busybox", marks=needs_busybox),
]


def ask(command: Sequence[str | Path], manager: str | None = None, **environment: str) -> tuple[Probe, str]:
    """Run the script under a shell; returns what was read, and the shell's complaints."""
    asked_at = time.time()
    done = subprocess.run(
        [*command, "-s"],
        input=script(manager),
        capture_output=True,
        env={**os.environ, **environment},
        timeout=60,
        check=True,
    )
    return parse(done.stdout, asked_at=asked_at, answered_at=time.time()), done.stderr.decode()


@pytest.mark.parametrize("shell", SHELLS)
def test_this_machine_is_read_as_python_reads_it(shell: tuple[str, ...]) -> None:
    found, complaints = ask(shell)
    assert complaints == ""
    assert found.hostname == socket.gethostname().partition(".")[0]
    assert found.machine_id == Path("/etc/machine-id").read_text().strip()
    assert (found.kernel, found.kernel_arch) == (platform.release(), platform.machine())
    assert found.long_bit == int(platform.architecture()[0].removesuffix("bit"))
    assert found.cores == os.cpu_count()
    total = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    assert total
    assert found.memory_mb == int(total[1]) // 1024
    assert found.system == platform.freedesktop_os_release()["PRETTY_NAME"]
    assert found.disk_free_mb is not None
    usage = shutil.disk_usage(found.disk_path)
    assert abs(found.disk_free_mb - usage.free / 2**20) < 1024
    assert found.uptime_sec is not None
    assert abs(found.uptime_sec - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
    assert {"bash"} <= set(found.tools) <= {"python3", "ping", "bash", "curl", "sudo"}
    assert found.route.source in {address.address for address in found.addresses} | {""}
    # It is the same clock.
    assert found.clock_offset_sec is not None
    assert abs(found.clock_offset_sec) <= found.clock_doubt_sec + 0.01
    assert evidence(found).arch


def test_all_shells_read_the_same() -> None:
    def lasting(found: Probe) -> dict[str, object]:
        moving = {"clock_offset_sec", "clock_doubt_sec", "disk_free_mb", "disk_total_mb", "uptime_sec", "temperature_c"}
        return {name: getattr(found, name) for name in Probe.__dataclass_fields__ if name not in moving}

    dash = lasting(ask(("dash",))[0])
    assert lasting(ask(("bash", "--posix"))[0]) == dash
    if shutil.which("busybox"):
        assert lasting(ask(("busybox", "sh"))[0]) == dash


@pytest.mark.parametrize("shell", SHELLS)
def test_an_empty_path_is_made_up_for(shell: tuple[str, ...]) -> None:
    command = (shutil.which(shell[0]) or "", *shell[1:])
    found, complaints = ask(command, PATH="")
    assert complaints == ""
    assert found.kernel_arch == platform.machine()
    assert found.clock_offset_sec is not None


def test_the_session_s_own_locale_changes_nothing() -> None:
    found, _ = ask(("bash",), LC_ALL="de_DE.UTF-8", LANGUAGE="de", LC_NUMERIC="de_DE.UTF-8", POSIXLY_CORRECT="1")
    plain, _ = ask(("bash",))
    assert (found.cores, found.networks, found.disk_total_mb) == (plain.cores, plain.networks, plain.disk_total_mb)
    assert found.clock_doubt_sec < 0.5  # the decimal point is a point


def test_a_manager_s_name_is_looked_up_by_the_machine() -> None:
    by_name, _ = ask(("dash",), "localhost")
    by_address, _ = ask(("dash",), "127.0.0.1")
    assert by_name.route == by_address.route
    assert by_name.route.source == "127.0.0.1"
    unknown, complaints = ask(("dash",), "no-such-host.invalid")
    assert complaints == ""
    assert any("no-such-host.invalid" in note for note in unknown.notes)
    assert unknown.route == ask(("dash",))[0].route


def test_a_manager_s_name_runs_nothing() -> None:
    name = "x'; echo run; echo '$(echo run >&2)"
    done = subprocess.run(["dash", "-s"], input=script(name), capture_output=True, check=True)
    assert b"run" not in done.stdout.split(b"\n")
    assert done.stderr == b""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_text_that_was_cut_does_nothing(shell: tuple[str, ...]) -> None:
    text = script(None)
    last = text.rindex(b"probe </dev/null")
    for length in (*range(200, last, 997), last):
        done = subprocess.run([*shell, "-s"], input=text[:length], capture_output=True, check=False)
        assert done.stdout == b"", length


@pytest.mark.parametrize("shell", SHELLS)
@needs_root
def test_it_writes_nothing_anywhere(shell: tuple[str, ...]) -> None:
    # All file systems but /dev, where /dev/null is, refuse every write.
    readonly = (
        "for place in / /proc /sys /run /tmp; do mount --bind $place $place && mount -o remount,bind,ro $place; done"
    )
    found, complaints = ask(("unshare", "--mount", "sh", "-c", f'{readonly}; exec "$@"', "sh", *shell))
    assert complaints == ""
    assert found.cores == os.cpu_count()


@pytest.mark.parametrize("shell", SHELLS)
@needs_root
def test_a_masked_sys_and_proc_leave_the_rest(shell: tuple[str, ...]) -> None:
    mask = "mount -t tmpfs none /sys && mount -t tmpfs none /proc"
    found, complaints = ask(("unshare", "--mount", "sh", "-c", f'{mask} && exec "$@"', "sh", *shell))
    assert complaints == ""
    assert found.kernel_arch == platform.machine()
    assert found.hostname == socket.gethostname().partition(".")[0]  # what uname says
    assert found.clock_offset_sec is not None
    assert (found.memory_mb, found.memory_cgroup, found.has_battery) == (0, None, None)
    assert any("meminfo" in note for note in found.notes)
    assert evidence(found).profile == "UNKNOWN"
    health(found)


@pytest.mark.parametrize("shell", SHELLS)
@needs_root
def test_a_devicetree_at_the_kernel_s_place_makes_a_pi(shell: tuple[str, ...]) -> None:
    tree = r"""
        mount -t tmpfs none /sys/firmware && mkdir -p /sys/firmware/devicetree/base &&
        printf 'Raspberry Pi 4 Model B Rev 1.4\0' >/sys/firmware/devicetree/base/model &&
        printf 'raspberrypi,4-model-b\0brcm,bcm2711\0' >/sys/firmware/devicetree/base/compatible &&
        exec "$@"
    """
    found, complaints = ask(("unshare", "--mount", "sh", "-c", tree, "sh", *shell))
    assert complaints == ""
    assert found.model == "Raspberry Pi 4 Model B Rev 1.4"
    assert found.compatible == ("raspberrypi,4-model-b", "brcm,bcm2711")
    assert (evidence(found).hardware_class, evidence(found).confidence) == ("rpi", "sure")


@needs_root
def test_a_root_with_nothing_but_a_shell_still_answers(tmp_path: Path) -> None:
    dash = shutil.which("dash") or ""
    shutil.copy(dash, tmp_path / "dash")
    linked = subprocess.run(["ldd", dash], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+)", linked):
        (tmp_path / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, tmp_path / library.lstrip("/"))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/null").touch()
    found, complaints = ask(("chroot", tmp_path, "/dash"))
    assert complaints == ""
    assert found.notes
    assert found.tools == ()
    assert evidence(found).confidence == "guess"
    assert [finding.check for finding in health(found)] == ["engine"]


# --- through a connection ---


@dataclass(frozen=True)
class Account:
    """A login whose shell is what it is told to be, on this machine."""

    shell: str
    host: Host

    def run(self, command: str, *, stdin: bytes = b"", timeout: float = 30, limit: int = 4 << 20) -> Completed:
        done = subprocess.run(["sh", "-c", self.shell], input=stdin, capture_output=True, timeout=timeout, check=False)
        return Completed(done.returncode, done.stdout, done.stderr, 0.0)


def test_this_machine_is_probed_through_a_connection() -> None:
    with here() as connection:
        found = probe(connection, "127.0.0.1")
    assert found.hostname == socket.gethostname().partition(".")[0]
    assert found.route.source == "127.0.0.1"


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        (
            "cat >/dev/null; echo 'This account is currently not available.'",
            r"its first line is missing \(exit status 0",
        ),
        ("cat >/dev/null; echo 'sh: not found' >&2; exit 127", r"exit status 127; it said: sh: not found"),
        ("head -c 2000 | sh -s", "its first line is missing"),
        ("sh -s | head -n 20", "broke off before its last line"),
    ],
)
def test_an_account_that_runs_no_shell_is_told_of(shell: str, words: str) -> None:
    with pytest.raises(ProbeError, match=words) as caught:
        probe(Account(shell, Host("pi-9")))  # type: ignore[arg-type]
    assert str(caught.value).startswith("pi-9: ")
    assert any("ssh pi-9" in step for step in caught.value.next_steps)
