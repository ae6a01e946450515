"""The local engine's parts that need no processes: plans, reports of half-known states, log lines, figures."""

import io
import json
import socket
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from rich.console import Console

from swarmctl import stack
from swarmctl.console import Story, duration, number
from swarmctl.demo import BASELINES
from swarmctl.errors import SwarmctlError, UsageError
from swarmctl.local import engine, ports
from swarmctl.local.engine import plan, scaled
from swarmctl.local.observe import Observed
from swarmctl.local.processes import difference, keep_scale, want
from swarmctl.local.remedies import to_deploy
from swarmctl.local.state import Deployment, Ending, Folder, ProcessState, State, living_process, lock, write
from swarmctl.local.status import render, report
from swarmctl.logs import Log, human, in_order
from swarmctl.loss_curve import draw

from .conftest import SMALL

ROOT = Path(__file__).parents[2]


def deployment(tmp_path: Path, *changes: tuple[str, str], replicas: dict[str, int] | None = None) -> Deployment:
    text = SMALL.read_text()
    for change in changes:
        assert change[0] in text
        text = text.replace(*change)
    file = tmp_path / "stack.yml"
    file.write_text(text)
    small = stack.load(str(file))
    return want(small, Folder(tmp_path / "small"), replicas or small.replicas, 7100, 7180).deployment


def planned(old: Deployment | None, new: Deployment) -> list[tuple[str, str]]:
    return [(action.kind, action.process) for action in difference(old, new)]


def test_a_first_deploy_starts_the_coordinator_first(tmp_path: Path) -> None:
    assert planned(None, deployment(tmp_path)) == [
        ("start", "coordinator"),
        ("start", "worker-rpi-1"),
        ("start", "worker-laptop-1"),
    ]


def test_the_same_stack_needs_nothing(tmp_path: Path) -> None:
    assert planned(deployment(tmp_path), deployment(tmp_path)) == []


def test_another_batch_restarts_that_class_only(tmp_path: Path) -> None:
    new = deployment(tmp_path, ("batch_size: 2", "batch_size: 3"))
    assert planned(deployment(tmp_path), new) == [("restart", "worker-laptop-1")]


def test_another_coordinator_restarts_all_because_it_tells_its_workers_to_end(tmp_path: Path) -> None:
    new = deployment(tmp_path, ("learning_rate: 1e-3", "learning_rate: 2e-3"))
    assert planned(deployment(tmp_path), new) == [
        ("restart", "coordinator"),
        ("restart", "worker-rpi-1"),
        ("restart", "worker-laptop-1"),
    ]


def test_fewer_replicas_stop_the_highest_numbers(tmp_path: Path) -> None:
    three = deployment(tmp_path, replicas={"worker-rpi": 3, "worker-laptop": 1})
    one = scaled(three, {"worker-rpi": 1})
    assert planned(three, one) == [("stop", "worker-rpi-2"), ("stop", "worker-rpi-3")]


@pytest.mark.parametrize("service", ["coordinator", "worker-desktop"])
def test_what_cannot_be_scaled_is_refused(tmp_path: Path, service: str) -> None:
    with pytest.raises(UsageError):
        scaled(deployment(tmp_path), {service: 2})


def test_a_scaled_number_holds_until_the_stack_file_changes_its_own(tmp_path: Path) -> None:
    old = scaled(deployment(tmp_path), {"worker-rpi": 3})
    assert keep_scale(stack.load(str(SMALL)), old)["worker-rpi"] == 3
    file = tmp_path / "two.yml"
    file.write_text(SMALL.read_text().replace("profile: RPI4_4G,", "profile: RPI4_4G, local_replicas: 2,"))
    assert keep_scale(stack.load(str(file)), old)["worker-rpi"] == 2


def observed(tmp_path: Path, status: dict[str, Any] | None, *, state: str = "running") -> Observed:
    wish = deployment(tmp_path)
    processes = {
        spec.name: ProcessState(spec.name, spec.service, spec.fingerprint, state, None, None, 0)
        for spec in wish.processes
    }
    processes["worker-rpi-1"].restarts = 2
    processes["worker-rpi-1"].last_ending = Ending(0.0, -9)
    return Observed(Folder(tmp_path / "small"), wish, State(1, processes), True, status)


def shown(seen: Observed, width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(report(seen)))
    return console.export_text()


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"run": {"state": "training"}, "version": 3, "workers": [{"id": "worker-rpi-1"}]},
        {"run": None, "workers": None, "gradients_refused": None, "checkpoint": None},
        {"version": 0, "loss": None, "tokens": 0, "gradients_applied": 0, "parameters": 10, "bytes_received": 0},
    ],
)
def test_a_status_with_missing_keys_is_shown_with_dashes(tmp_path: Path, status: dict[str, Any]) -> None:
    text = shown(observed(tmp_path, status))
    assert "worker-laptop-1" in text
    assert " - " in text


def test_a_coordinator_that_is_down_is_said_so_and_the_crash_of_a_worker_too(tmp_path: Path) -> None:
    text = shown(observed(tmp_path, None, state="restarting"))
    assert "coordinator down" in text
    assert "worker-rpi-1 was restarted 2 times; last it was killed by signal 9" in text


def test_traffic_is_what_was_sent_beside_float32_for_each_version(tmp_path: Path) -> None:
    status = {"tokens": 100, "bytes_received": 600, "parameters": 30, "version": 10}
    training = report(observed(tmp_path, status))["training"]
    assert training["bytes_per_token"] == 6
    assert training["bytes_uncompressed"] == 1200
    assert training["compression_ratio"] == 2


def test_a_pid_that_another_program_has_now_is_not_taken_for_ours() -> None:
    this = psutil.Process()
    mine = ProcessState("worker-rpi-1", "worker-rpi", "", "running", this.pid, this.create_time())
    assert living_process(mine) == this
    mine.started = this.create_time() - 3600
    assert living_process(mine) is None


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with lock(tmp_path / "lock") as first, lock(tmp_path / "lock") as second:
        assert first
        assert not second
    with lock(tmp_path / "lock") as again:
        assert again


def test_what_is_left_of_damaged_checkpoints_is_not_removed_either(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "local" / "small")
    folder.make()
    damaged = folder.checkpoints / "damaged-ckpt-000000007"
    damaged.mkdir()
    engine.remove(folder, Story(), volumes=False)
    assert damaged.exists()
    engine.remove(folder, Story(), volumes=True)
    assert not folder.path.exists()


def test_lines_of_several_processes_are_put_in_the_order_of_their_times() -> None:
    lines = [
        ("a", '{"event": "second", "timestamp": "2026-01-01T00:00:02Z"}'),
        ("a", "a traceback's line, without a time"),
        ("b", '{"event": "first", "timestamp": "2026-01-01T00:00:01Z"}'),
        ("b", '{"event": "third", "timestamp": "2026-01-01T00:00:03Z"}'),
    ]
    assert [line for _, line in in_order(lines)] == [lines[2][1], lines[0][1], lines[1][1], lines[3][1]]


def test_a_log_line_for_people_has_the_event_and_its_facts() -> None:
    text = human(
        '{"event": "worker has joined", "level": "info", "loss": 2.34567, "worker": "w-1"}', "coordinator"
    ).plain
    assert text.startswith("coordinator ")
    assert "worker has joined" in text
    assert "loss=2.346" in text
    assert "level" not in text
    assert human("not JSON at all").plain == "not JSON at all"


def test_a_log_that_is_replaced_or_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    log = Log("w", path)
    assert log.new_lines() == []
    path.write_text("one\ntwo\nhalf")
    assert log.last_lines(1) == ["two"]
    path.write_text("one\ntwo\nhalf is whole\n")
    assert log.new_lines() == ["half is whole"]
    path.write_text("new\n")
    assert log.new_lines() == ["new"]


def test_the_loss_curve_keeps_to_its_size() -> None:
    for versions in ([1, 2], list(range(0, 5000, 7)), [0, 10**7]):
        rows = draw(versions, [5.0 - i / len(versions) for i in range(len(versions))], 60, 12).plain.splitlines()
        assert len(rows) == 12
        assert max(map(len, rows)) <= 60


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "B", "-"),
        (0, "", "0"),
        (3.14159, "", "3.1"),
        (12_345, "tokens/s", "12.3 k tokens/s"),
        (5.2e9, "B", "5.2 GB"),
    ],
)
def test_figures_are_short(value: float | None, unit: str, text: str) -> None:
    assert number(value, unit) == text


def test_durations_are_as_people_say_them() -> None:
    assert [duration(seconds) for seconds in (None, 4, 250, 7300)] == ["-", "4 s", "4 min 10 s", "2 h 1 min"]


def test_the_demo_names_the_baselines_of_the_documentation() -> None:
    documented = (ROOT / "docs" / "data.md").read_text()
    for loss in BASELINES.values():
        assert f"{loss:.3f}" in documented


@pytest.mark.parametrize("width", [200, 100, 60, 40])
def test_a_narrow_table_loses_columns_but_never_a_part_of_a_name_a_state_or_a_pid(tmp_path: Path, width: int) -> None:
    status = {"run": {"state": "training"}, "bytes_received": 10, "tokens": 3, "parameters": 9, "version": 8}
    seen = observed(tmp_path, status)
    assert seen.state
    seen.state.processes["worker-laptop-1"].pid = 1234567
    lines = shown(seen, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    row = next(line for line in lines if line.startswith("worker-laptop-1"))
    assert "connecting" in row
    assert "1234567" in row
    assert ("profile" in "".join(lines)) == (width == 200)


def test_checkpoints_that_fail_are_shown_without_the_option_that_swarmctl_does_not_have(tmp_path: Path) -> None:
    error = "the disk is full: /a needs 1.5 MB. Free some space there, or name another --checkpoint-dir."
    seen = observed(tmp_path, {"run": {"state": "training"}, "checkpoint_error": error})
    assert report(seen)["training"]["checkpoint_error"] == error
    (note,) = (note for note in report(seen)["notes"] if "checkpoint" in note)
    assert "the disk is full: /a needs 1.5 MB. Free some space in" in note
    assert str(seen.folder.path) in note


def test_a_stopped_stack_shows_the_figures_of_its_newest_checkpoint(tmp_path: Path) -> None:
    seen = observed(tmp_path, None, state="finished")
    seen = Observed(seen.folder, seen.deployment, seen.state, False, None)
    manifest = seen.folder.checkpoints / "ckpt-00000007" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"version": 7, "loss": 2.5, "tokens": 70, "bytes": [140, 9], "parameters": 10}))
    training = report(seen)["training"]
    assert (training["version"], training["loss"], training["bytes_per_token"]) == (7, 2.5, 2)
    assert training["tokens_per_sec"] is None


def test_a_worker_whose_gradients_come_too_late_is_told(tmp_path: Path) -> None:
    late = {"id": "worker-laptop-1", "pushes": 20, "refused": {"stale": 30}}
    often = {"id": "worker-rpi-1", "pushes": 31, "refused": {"stale": 30}}
    text = shown(observed(tmp_path, {"workers": [late, often]}))
    assert "30 of the 50 gradients of worker-laptop-1 were refused as stale" in text
    assert "of worker-rpi-1 were refused" not in text


def test_a_stack_without_workers_waits(tmp_path: Path) -> None:
    seen = observed(tmp_path, {"run": {"state": "training"}})
    nobody = scaled(seen.deployment, {"worker-rpi": 0, "worker-laptop": 0})
    assert report(Observed(seen.folder, nobody, seen.state, True, seen.status))["state"] == "waiting"


def test_too_many_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at most 64"):
        scaled(deployment(tmp_path), {"worker-rpi": 65})


def test_a_port_in_use_is_answered_with_two_that_are_free_and_differ(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = ports.free_port(port + 1)
        wanted = msgspec.structs.replace(deployment(tmp_path), port=port, http_port=other)
        with pytest.raises(SwarmctlError) as caught:
            ports.check(wanted, ())
    (remedy,) = caught.value.next_steps
    assert remedy.startswith(f"swarmctl deploy --stack {tmp_path / 'stack.yml'} --local --port ")
    assert remedy.endswith(f" --http-port {other}")
    assert f"--port {other} " not in remedy


def test_two_files_of_one_name_do_not_become_one_stack(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "small")
    folder.make()
    write(folder.deployment, deployment(tmp_path))
    with pytest.raises(UsageError, match="is deployed already, from"):
        plan(stack.load(str(SMALL)), folder, None, None)


def test_a_built_in_stack_is_named_and_a_file_by_its_path(tmp_path: Path) -> None:
    mine = deployment(tmp_path)
    assert to_deploy(mine) == f"swarmctl deploy --stack {tmp_path / 'stack.yml'} --local"
    tiny = stack.load("rwkv-tiny")
    built_in = want(tiny, Folder(tmp_path / tiny.name), tiny.replicas, 7100, 7180).deployment
    assert to_deploy(built_in) == "swarmctl deploy --stack rwkv-tiny --local"
