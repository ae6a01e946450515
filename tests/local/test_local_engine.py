"""The local engine with the real agent: what a user types, and what happens to the processes."""

import json
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from .conftest import SMALL, Swarmctl, eventually

Ports = list[str]


@pytest.fixture
def deployed(swarmctl: Swarmctl, ports: Ports) -> Swarmctl:
    """The small stack, up and training; tests share it and leave it so."""
    swarmctl.run("deploy", "--stack", swarmctl.small, "--local", *ports)
    return swarmctl


def pids(user: Swarmctl) -> dict[str, int]:
    return {process["name"]: process["pid"] for process in user.status()["processes"]}


def version(user: Swarmctl) -> int:
    training = user.status()["training"]
    return int(training["version"]) if training else 0


def test_deploy_returns_when_every_worker_trains(deployed: Swarmctl) -> None:
    status = deployed.status()
    assert status["state"] == "training"
    assert status["training"]["version"] >= 1
    workers = {process["name"]: process for process in status["processes"] if process["name"] != "coordinator"}
    assert {name: worker["profile"] for name, worker in workers.items()} == {
        "worker-rpi-1": "RPI4_4G",
        "worker-laptop-1": "LAPTOP_MID",
    }
    assert {worker["batch_size"] for worker in workers.values()} == {1, 2}
    assert {worker["state"] for worker in workers.values()} == {"training"}


def test_a_second_deploy_changes_nothing_and_says_so(deployed: Swarmctl) -> None:
    before = pids(deployed)
    again = deployed.run("deploy", "--stack", deployed.small, "--local")
    assert "nothing to change" in again.stderr
    assert pids(deployed) == before
    plan = deployed.run("deploy", "--stack", deployed.small, "--local", "--dry-run")
    assert plan.stdout == "nothing to change\n"


def test_the_status_table_names_every_worker_and_the_figures(deployed: Swarmctl) -> None:
    facts = json.loads(deployed.run("status", "--local", "--json").stdout)
    assert facts.keys() == deployed.status().keys()
    table = deployed.run("status", "--local").stdout
    for word in ("small", "training", "worker-rpi-1", "worker-laptop-1", "bytes/token", "tokens/s", "staleness"):
        assert word in table


def test_a_changed_stack_restarts_only_what_changed(deployed: Swarmctl) -> None:
    before = pids(deployed)
    changed = deployed.small
    original = changed.read_text()
    changed.write_text(SMALL.read_text().replace("batch_size: 2", "batch_size: 3"))
    plan = deployed.run("deploy", "--stack", changed, "--local", "--dry-run", "--json")
    assert [(step["action"], step["process"]) for step in json.loads(plan.stdout)] == [("restart", "worker-laptop-1")]
    assert pids(deployed) == before
    deployed.run("deploy", "--stack", changed, "--local")
    after = pids(deployed)
    assert {name for name in before if before[name] != after[name]} == {"worker-laptop-1"}
    assert deployed.process("worker-laptop-1")["batch_size"] == 3
    assert deployed.process("worker-laptop-1")["restarts"] == 0
    changed.write_text(original)


def test_scale_starts_and_stops_workers_and_a_deploy_keeps_the_number(deployed: Swarmctl) -> None:
    before = pids(deployed)
    deployed.run("scale", "worker-rpi", "2", "--local")
    grown = pids(deployed)
    assert grown.keys() - before.keys() == {"worker-rpi-2"}
    assert deployed.process("worker-rpi-2")["state"] == "training"
    kept = deployed.run("deploy", "--stack", deployed.small, "--local")
    assert "worker-rpi stays at 2" in kept.stderr
    new_worker = psutil.Process(grown["worker-rpi-2"])
    deployed.run("scale", "worker-rpi=1", "--local")
    eventually(lambda: not new_worker.is_running())
    assert pids(deployed).keys() == before.keys()


def test_pause_stops_the_versions_and_resume_lets_them_go_on(deployed: Swarmctl) -> None:
    deployed.run("pause", "--local")
    assert deployed.status()["state"] == "paused"
    deployed.run("deploy", "--stack", deployed.small, "--local")  # does not wait for updates that can't come
    deployed.run("resume", "--local")
    there = version(deployed)
    eventually(lambda: version(deployed) > there)


def test_checkpoint_writes_one_and_says_where(deployed: Swarmctl) -> None:
    said = deployed.run("checkpoint", "--local").stderr
    newest = max(deployed.folder().glob("checkpoints/ckpt-*"))
    assert str(newest.parent) in said
    assert (newest / "manifest.json").exists()


def test_logs_are_the_agents_own_lines_where_there_is_no_terminal(deployed: Swarmctl) -> None:
    lines = deployed.run("logs", "coordinator", "--local", "--tail", "1000").stdout.splitlines()
    events = [json.loads(line)["event"] for line in lines if line.startswith("{")]
    assert "coordinator listens" in events
    of_all = deployed.run("logs", "all", "--local", "--tail", "5").stdout
    assert "worker-rpi-1 | " in of_all
    assert "worker-laptop-1 | " in of_all


def test_logs_can_be_searched_and_begin_at_a_time(deployed: Swarmctl) -> None:
    every = deployed.run("logs", "coordinator", "--local", "--since", "1h").stdout.splitlines()
    found = deployed.run("logs", "coordinator", "--local", "--since", "1h", "--grep", "has joined").stdout.splitlines()
    assert found
    assert found == [line for line in every if "has joined" in line]
    later = json.loads(found[-1])["timestamp"]
    since = deployed.run("logs", "coordinator", "--local", "--since", later).stdout.splitlines()
    assert since[0] == found[-1] != every[0]
    assert (
        "neither a length of time nor a date" in deployed.run("logs", "all", "--local", "--since", "x", code=2).stderr
    )


def test_following_logs_shows_lines_as_they_are_written(deployed: Swarmctl) -> None:
    follower = deployed.start("logs", "coordinator", "--local", "--tail", "0", "-f")
    assert follower.stdout
    try:
        log = deployed.folder() / "logs" / "coordinator.log"
        with log.open("a") as file:  # whichever line is written next, this one comes soon
            file.write('{"event": "written by the test"}\n')
        deployed.run("pause", "--local")
        deployed.run("resume", "--local")
        assert follower.stdout.readline().startswith("{")
    finally:
        follower.send_signal(signal.SIGINT)
    assert follower.wait(10) == 0


def test_a_killed_worker_is_restarted_and_status_says_so(deployed: Swarmctl) -> None:
    before = deployed.process("worker-rpi-1")
    psutil.Process(before["pid"]).kill()
    eventually(lambda: deployed.process("worker-rpi-1")["restarts"] == before["restarts"] + 1)
    eventually(lambda: deployed.process("worker-rpi-1")["state"] == "training")
    assert deployed.process("worker-rpi-1")["last_ending"]["exit_code"] == -signal.SIGKILL
    assert "worker-rpi-1 was restarted" in deployed.run("status", "--local").stdout
    assert "worker-rpi-1 has been restarted" in deployed.run("deploy", "--stack", deployed.small, "--local").stderr


def test_a_killed_coordinator_comes_back_where_its_last_checkpoint_was(deployed: Swarmctl) -> None:
    deployed.run("checkpoint", "--local")
    saved = deployed.status()["checkpoint"]["version"]
    workers = {name: pid for name, pid in pids(deployed).items() if name != "coordinator"}
    before = deployed.process("coordinator")
    psutil.Process(before["pid"]).kill()
    eventually(lambda: deployed.process("coordinator")["restarts"] == before["restarts"] + 1)
    eventually(lambda: version(deployed) > saved)
    assert {name: pid for name, pid in pids(deployed).items() if name != "coordinator"} == workers


def test_a_killed_supervisor_is_noticed_and_deploy_takes_its_processes_over(deployed: Swarmctl) -> None:
    left = [psutil.Process(pid) for pid in pids(deployed).values()]
    psutil.Process(deployed.status()["supervisor"]["pid"]).kill()
    eventually(lambda: not deployed.status()["supervisor"]["running"])
    assert deployed.status()["state"] == "unsupervised"
    assert "the supervisor was killed" in deployed.run("status", "--local").stdout
    deployed.run("deploy", "--stack", deployed.small, "--local")
    assert deployed.status()["state"] == "training"
    assert [process for process in left if process.is_running()] == []
    assert len(deployed.agents()) == 4  # the supervisor, the coordinator and two workers


def test_an_interrupted_scale_says_what_goes_on_and_it_does(deployed: Swarmctl) -> None:
    scaling = deployed.start("scale", "worker-rpi", "2", "--local")
    eventually(lambda: any(process["name"] == "worker-rpi-2" for process in deployed.status()["processes"]))
    scaling.send_signal(signal.SIGINT)
    _, said = scaling.communicate(timeout=30)
    assert scaling.returncode in {0, 130}  # it may have been done already
    assert "Traceback" not in said
    assert (scaling.returncode == 0) != ("the new number is kept" in said)
    eventually(lambda: deployed.process("worker-rpi-2")["state"] == "training")
    deployed.run("scale", "worker-rpi", "1", "--local")


def test_a_port_in_use_is_named_with_its_owner_and_nothing_is_started(
    swarmctl: Swarmctl, ports: Ports, tmp_path: Path
) -> None:
    other = tmp_path / "other.yml"
    other.write_text(SMALL.read_text().replace("name: small", "name: other"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = swarmctl.run("deploy", "--stack", other, "--local", "--port", port, *ports[2:], code=1).stderr
    assert f"port {port} of 127.0.0.1 is in use by {psutil.Process().name()} (pid {os.getpid()})" in said
    assert "--port" in said
    assert not swarmctl.folder("other").exists()


def test_rm_asks_and_keeps_the_checkpoints(swarmctl: Swarmctl, ports: Ports) -> None:
    swarmctl.run("deploy", "--stack", swarmctl.small, "--local", *ports)
    eventually(lambda: swarmctl.status()["checkpoint"])
    assert "--yes" in swarmctl.run("rm", "--local", code=2).stderr
    swarmctl.run("rm", "--local", "--yes")
    assert swarmctl.agents() == []
    assert any(swarmctl.folder().glob("checkpoints/ckpt-*/manifest.json"))
    assert "no stack is deployed" in swarmctl.run("status", "--local", code=5).stderr
    resumed = swarmctl.run("deploy", "--stack", swarmctl.small, "--local", *ports)
    assert "resumes from version" in resumed.stderr
    swarmctl.run("rm", "--local", "--yes", "--volumes")
    assert not swarmctl.folder().exists()


def test_a_newest_checkpoint_that_is_damaged_is_told(swarmctl: Swarmctl, ports: Ports) -> None:
    swarmctl.run("deploy", "--stack", swarmctl.small, "--local", *ports)
    folder = swarmctl.folder()
    eventually(lambda: len(list(folder.glob("checkpoints/ckpt-*"))) >= 2)
    swarmctl.run("rm", "--local", "--yes")
    newest = max(folder.glob("checkpoints/ckpt-*"))
    with (newest / "weights.safetensors").open("r+b") as file:
        file.truncate(1000)
    again = swarmctl.run("deploy", "--stack", swarmctl.small, "--local", *ports).stderr
    assert f"the checkpoint of version {int(newest.name.removeprefix('ckpt-'))} is damaged and was put aside" in again
    swarmctl.run("rm", "--local", "--yes", "--volumes")


def test_a_run_that_reaches_its_steps_is_finished_not_crashed(swarmctl: Swarmctl, ports: Ports, tmp_path: Path) -> None:
    short = tmp_path / "short.yml"
    short.write_text(SMALL.read_text().replace("name: small", "name: short").replace("context:", "steps: 6, context:"))
    swarmctl.run("deploy", "--stack", short, "--local", *ports)
    eventually(lambda: swarmctl.status()["state"] == "finished")
    status = swarmctl.status()
    assert {process["state"] for process in status["processes"]} == {"finished"}
    assert {process["restarts"] for process in status["processes"]} == {0}
    assert status["checkpoint"]["version"] == 6
    eventually(lambda: swarmctl.agents() == [])
    assert "the run is finished at version 6" in swarmctl.run("deploy", "--stack", short, "--local").stderr
    assert swarmctl.agents() == []
    short.write_text(short.read_text().replace("steps: 6", "steps: 9"))
    swarmctl.run("deploy", "--stack", short, "--local")
    eventually(lambda: swarmctl.status()["state"] == "finished")
    assert swarmctl.status()["checkpoint"]["version"] == 9
    text = swarmctl.run("generate", "--local", "--prompt", "ROMEO:", "--tokens", "5", "--seed", "1").stdout
    assert text.startswith("ROMEO:")
    swarmctl.run("rm", "--local", "--yes", "--volumes")


def test_a_coordinator_that_cannot_start_is_told_with_its_last_words(
    swarmctl: Swarmctl, ports: Ports, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(SMALL.read_text().replace("name: small", "name: wrong").replace("rwkv-tiny", "nowhere:model"))
    said = swarmctl.run("deploy", "--stack", wrong, "--local", *ports, code=1).stderr
    assert "the coordinator did not come up" in said
    assert "nowhere" in said
    assert swarmctl.agents() == []
    assert swarmctl.status()["state"] == "stopped"
    swarmctl.run("rm", "--local", "--yes", "--volumes")
