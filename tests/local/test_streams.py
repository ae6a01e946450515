"""Output that nobody reads, that is closed, or that has no room must not end a command with a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SWARMCTL = f"{sys.executable} -m swarmctl"
TABLES = """
import sys
from swarmctl import cli
from swarmctl.console import output, print_json
print_one = {"rich": lambda: output().print("a line"), "json": lambda: print_json("a line")}[sys.argv.pop()]
cli.app.command(name="many")(lambda: [print_one() for _ in range(100_000)])
sys.argv[1:] = ["many"]
sys.exit(cli.run())
"""


def shell(command: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SWARMCTL_STATE": str(tmp_path / "state")}
    command = f"set -o pipefail; {command}"
    return subprocess.run(
        ["bash", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("how", ["rich", "json"])
def test_a_reader_that_has_enough_is_no_failure(how: str, tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(TABLES)
    done = shell(f"{sys.executable} many.py {how} | head -1", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a line" in done.stdout


def test_a_reader_that_left_before_the_first_word_is_no_failure(tmp_path: Path) -> None:
    done = shell(f"(sleep 0.5; {SWARMCTL} --version) | true", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(closed: str, tmp_path: Path) -> None:
    for command, code in (("--version", 0), ("status --local --stack none", 5)):
        done = shell(f"{SWARMCTL} {command} {closed}", tmp_path)
        assert done.returncode == code
        assert "Traceback" not in done.stderr


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    done = shell(f"{SWARMCTL} --version > /dev/full", tmp_path)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
