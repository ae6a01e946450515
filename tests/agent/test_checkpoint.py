"""Checkpoints: whole or not there, verified on load, and a damaged one falls back to the one before."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from swarm_agent import checkpoint
from swarm_agent.errors import CheckpointError
from tests.small_disk import small_disk

WEIGHTS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
OPTIMIZER = {"steps": np.array([3]), "mean": np.ones(6, np.float32)}


def save(folder: Path, version: int, keep: int = 3) -> Path:
    return checkpoint.save(folder, version, WEIGHTS, OPTIMIZER, {"tokens": 10 * version}, keep=keep)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    path = save(tmp_path / "new" / "folder", 7)
    found = checkpoint.load_newest(tmp_path / "new" / "folder")
    assert found is not None
    assert (found.path, found.version, found.manifest["tokens"]) == (path, 7, 70)
    assert (found.weights["a.weight"] == WEIGHTS["a.weight"]).all()
    assert (found.optimizer["mean"] == OPTIMIZER["mean"]).all()


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for version in (1, 2, 10, 9_999_999_999):
        save(tmp_path, version, keep=2)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["ckpt-000000010", "ckpt-9999999999"]


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) is None
    assert checkpoint.load_newest(tmp_path / "missing") is None


def cut(path: Path) -> None:
    os.truncate(path / checkpoint.WEIGHTS, 40)


def flip(path: Path) -> None:
    file = path / checkpoint.OPTIMIZER
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def drop(path: Path) -> None:
    (path / checkpoint.WEIGHTS).unlink()


def blank(path: Path) -> None:
    (path / checkpoint.MANIFEST).write_text("{", encoding="utf-8")


def other_manifest(path: Path) -> None:
    (path / checkpoint.MANIFEST).write_text('["format"]', encoding="utf-8")


def says(**facts: object) -> Callable[[Path], None]:
    """Damage that writes other facts into the manifest; None takes one out."""

    def write(path: Path) -> None:
        manifest = json.loads((path / checkpoint.MANIFEST).read_text()) | facts
        manifest = {key: value for key, value in manifest.items() if value is not None}
        (path / checkpoint.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")

    write.__name__ = str(facts)
    return write


def nested(path: Path) -> None:
    (path / checkpoint.MANIFEST).write_text("[" * 100_000, encoding="utf-8")


def not_finite(path: Path) -> None:
    bad = WEIGHTS["a.weight"].copy()
    bad[0, 0] = np.nan
    checkpoint.save(path.parent, checkpoint.version_of(path), {"a.weight": bad}, OPTIMIZER, {}, keep=3)


def not_safetensors(path: Path) -> None:
    rubbish = b"rubbish"
    (path / checkpoint.WEIGHTS).write_bytes(rubbish)
    files = json.loads((path / checkpoint.MANIFEST).read_text())["files"]
    files[checkpoint.WEIGHTS] = {"bytes": len(rubbish), "sha256": hashlib.sha256(rubbish).hexdigest()}
    says(files=files)(path)


def set_aside_already(path: Path) -> None:
    path.with_name(f"damaged-{path.name}").write_text("a file by that name", encoding="utf-8")
    cut(path)


WRONG_FACTS = [
    {"format": "1"}, {"format": None}, {"version": True}, {"version": -1}, {"version": 2**40}, {"version": 99},
    {"tokens": "abc"}, {"tokens": -1}, {"loss": []}, {"loss": float("nan")}, {"bytes": 5}, {"bytes": [1]},
    {"data": []}, {"data": {"passes": [-1]}}, {"files": {}}, {"files": None},
]  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        *(cut, flip, drop, blank, other_manifest, nested, not_finite, not_safetensors, set_aside_already),
        *(says(**facts) for facts in WRONG_FACTS),
    ],
)
def test_a_damaged_one_falls_back_to_the_one_before_and_is_set_aside(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    found = checkpoint.load_newest(tmp_path, set_damaged_aside=True)
    assert found is not None
    assert found.version == 1
    assert (tmp_path / "damaged-ckpt-000000002").is_dir()
    # It no longer counts among those that are kept.
    save(tmp_path, 2, keep=1)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["ckpt-000000002"]


def test_one_of_a_newer_format_is_neither_passed_over_nor_touched(tmp_path: Path) -> None:
    save(tmp_path, 1)
    newer = save(tmp_path, 2)
    says(format=2)(newer)
    with pytest.raises(CheckpointError, match=r"ckpt-000000002 has format 2, and this program reads 1\. Use the"):
        checkpoint.load_newest(tmp_path, set_damaged_aside=True)
    assert newer.exists()


def test_what_another_user_wrote_is_neither_passed_over_nor_touched(tmp_path: Path) -> None:
    save(tmp_path, 1)
    theirs = save(tmp_path, 2)
    program = (
        "import os, pathlib, sys; from swarm_agent import checkpoint, errors\n"
        "os.setresuid(*3 * [int(sys.argv[2])])\n"
        "try: checkpoint.load_newest(pathlib.Path(sys.argv[1]), set_damaged_aside=True)\n"
        "except errors.CheckpointError as error: print(error)\n"
    )
    if os.geteuid() != 0:
        pytest.skip("being another user needs root")
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o777)
    (theirs / checkpoint.WEIGHTS).chmod(0o600)
    other = str(os.getuid() + 12345)
    ended = subprocess.run([sys.executable, "-c", program, tmp_path, other], capture_output=True, text=True, check=True)
    assert "Permission denied. Run as the user who wrote it" in ended.stdout
    assert theirs.exists()


def test_when_none_is_whole_it_is_an_error_that_names_each(tmp_path: Path) -> None:
    cut(save(tmp_path, 1))
    flip(save(tmp_path, 2))
    with pytest.raises(CheckpointError, match="cut short") as error:
        checkpoint.load_newest(tmp_path)
    assert "SHA-256" in str(error.value)
    assert len(checkpoint.find(tmp_path)) == 2  # nothing was removed


def test_what_a_killed_writer_left_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    partial = tmp_path / ".partial-000000002-1"
    partial.mkdir()
    (partial / checkpoint.WEIGHTS).write_bytes(b"half")
    found = checkpoint.load_newest(tmp_path)
    assert found is not None
    assert found.version == 1
    save(tmp_path, 2)
    assert not partial.exists()


def test_a_place_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CheckpointError, match="--checkpoint-dir"):
        save(tmp_path / "file" / "folder", 1)


def test_a_full_disk_is_told_and_earlier_checkpoints_stay(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "128k") as disk:
        save(disk, 1)
        big = {"a.weight": np.ones(100_000, np.float32)}
        with pytest.raises(CheckpointError, match="disk is full"):
            checkpoint.save(disk, 2, big, OPTIMIZER, {}, keep=3)
        assert [path.name for path in disk.iterdir()] == ["ckpt-000000001"]
        assert checkpoint.load_newest(disk) is not None


def test_two_coordinators_never_share_a_directory(tmp_path: Path) -> None:
    with checkpoint.lock(tmp_path), pytest.raises(CheckpointError, match="another coordinator"):
        checkpoint.lock(tmp_path)
    checkpoint.lock(tmp_path).close()
