"""Whoever dies, goes silent or comes back, and whatever is commanded: training goes on from where it was."""

import json
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
import v1_peer as v1
from processes import Coordinator, Process, Swarm, until

BEAT = {"FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC": 0.3}  # a lease of 0.9 s
OFTEN = {"FDTC_CHECKPOINTING_INTERVAL": 10, "FDTC_TRAINING_LEARNING_RATE": 0.01}
SIZES = [8, 1]
GRADIENT = [[1.0] * 8, [1.0]]
PUSH = b"".join(map(v1.none, GRADIENT))


@pytest.fixture(scope="module")
def coordinator(shared_swarm: Swarm) -> Coordinator:
    """One that waits long for the silent."""
    return shared_swarm.coordinator()


@pytest.fixture(scope="module")
def steady(shared_swarm: Swarm, coordinator: Coordinator) -> Process:
    """A worker that trains with it all the while."""
    steady = shared_swarm.worker(
        coordinator.port, "steady", LINEAR_SECONDS=0.05, FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC=0.1
    )
    coordinator.when(lambda s: s["version"] > 3, "it trains")
    return steady


@pytest.fixture(scope="module")
def strict(shared_swarm: Swarm) -> Coordinator:
    """One that waits 0.9 s for the silent."""
    checkpoints = shared_swarm.folder / "strict"
    return shared_swarm.coordinator("--checkpoint-dir", str(checkpoints), **BEAT)


def present(status: dict[str, Any]) -> set[str]:
    return {worker["id"] for worker in status["workers"]}


def of(name: str, status: dict[str, Any]) -> dict[str, Any]:
    """What the status says of one worker; nothing while it is not there."""
    return next((worker for worker in status["workers"] if worker["id"] == name), {})


# ------------------------------------------------------------------------------------------- a worker dies


def test_a_push_cut_off_in_the_middle_changes_nothing(coordinator):
    before = coordinator.status()
    with v1.Worker(coordinator.port, "dying") as dying:
        shard = dying.shard
        dying.pull()
        received = of("dying", coordinator.status())["bytes_received"]
        dying.socket.sendall(dying.gradients_frame(PUSH, SIZES)[:-5])
        coordinator.when(lambda s: of("dying", s)["bytes_received"] > received, "half of the push has arrived")
    after = coordinator.when(lambda s: not present(s), "the dead worker is gone")
    assert after["version"] == before["version"]
    assert after["gradients_refused"] == before["gradients_refused"]

    with v1.Worker(coordinator.port, "dying") as reborn:
        assert reborn.shard == shard
        reborn.pull()
        reborn.push(GRADIENT)
        assert coordinator.status()["version"] == before["version"] + 1


def test_a_worker_killed_again_and_again_mid_push_does_no_harm(swarm):
    """Pushes of 4 MB and no computing to speak of: the kills fall into pushes and pulls."""
    large = {"LINEAR_SIZE": 1_000_000, "LINEAR_SECONDS": 0}
    coordinator = swarm.coordinator("--compression", "none", LINEAR_SIZE=1_000_000)
    shards = []
    for _ in range(2):
        victim = swarm.worker(coordinator.port, "victim", "--batch-size", "1", **large)
        status = coordinator.when(lambda s: of("victim", s).get("pushes", 0) >= 2, "it pushes")
        shards.append(of("victim", status)["shard"])
        victim.kill()
        coordinator.when(lambda s: not present(s), "it is gone")
    assert len(set(shards)) == 1  # what it left unfinished is what it gets
    assert coordinator.status()["gradients_refused"] == {}


def test_the_shard_of_a_killed_worker_is_given_to_the_next_one(shared_swarm, coordinator, steady):
    victim = shared_swarm.worker(coordinator.port, "victim")
    status = coordinator.when(lambda s: present(s) == {"steady", "victim"}, "both train")
    shard = of("victim", status)["shard"]
    assert shard != of("steady", status)["shard"]

    victim.kill()
    coordinator.when(lambda s: present(s) == {"steady"}, "its connection is closed")
    coordinator.progress()  # the other one goes on
    with v1.Worker(coordinator.port, "heir") as heir:
        assert heir.shard == shard


def test_a_silent_worker_loses_its_lease_and_its_shard(strict):
    with v1.Worker(strict.port, "silent") as silent, v1.Worker(strict.port, "hanging") as hanging:
        hanging.socket.sendall(v1.frame(v1.HEARTBEAT, bytes(76))[:20])  # half a frame is no sign of life for long
        assert strict.event("worker has left", worker="silent")["reason"].startswith("silent for 0.9 s")
        strict.event("worker has left", worker="hanging")
        silent.farewell()  # their connections are closed
        hanging.farewell()
        with v1.Worker(strict.port, "heir") as heir:
            assert heir.shard in (silent.shard, hanging.shard)


def test_frozen_workers_and_coordinators_find_each_other_again(shared_swarm, strict):
    worker = shared_swarm.worker(strict.port, "frozen", **BEAT)
    strict.when(lambda s: of("frozen", s).get("pushes", 0) > 3, "training")

    worker.signal(signal.SIGSTOP)
    strict.event("worker has left", worker="frozen")
    worker.signal(signal.SIGCONT)
    strict.when(lambda s: of("frozen", s).get("pushes", 0) > 3, "the worker is back")

    strict.signal(signal.SIGSTOP)
    until(lambda: "the coordinator was silent" in worker.output, "the worker notices")
    strict.signal(signal.SIGCONT)
    strict.when(lambda s: of("frozen", s).get("pushes", 0) > 3, "it is back again")


def test_a_newer_worker_with_the_same_id_replaces_the_older(shared_swarm, coordinator):
    older = shared_swarm.worker(coordinator.port, "twin")
    coordinator.when(lambda s: of("twin", s).get("pushes", 0) > 1, "the older one trains")

    with v1.Worker(coordinator.port, "twin") as newer:
        assert older.exit_status() == 1
        assert "a newer connection with this worker id took over" in older.output
        status = coordinator.status()
        assert of("twin", status)["pushes"] == 0
        newer.pull()
        newer.push(GRADIENT)
        assert of("twin", coordinator.status())["pushes"] == 1


def test_a_replaced_connection_that_is_never_closed_is_ended(coordinator):
    def connections() -> set[int]:
        return {c.raddr.port for c in psutil.Process(coordinator.process.pid).net_connections("tcp") if c.raddr}

    with v1.Worker(coordinator.port, "double") as older, v1.Worker(coordinator.port, "double") as newer:
        assert "took over" in older.farewell()
        ours = older.socket.getsockname()[1]
        until(lambda: ours not in connections(), "the coordinator keeps no socket for it")
        assert newer.socket.getsockname()[1] in connections()


# ----------------------------------------------------------------------------------------- a coordinator dies


def test_a_killed_coordinator_resumes_and_its_workers_come_back_by_themselves(swarm):
    coordinator = swarm.coordinator(**OFTEN)
    port = coordinator.port
    workers = [swarm.worker(port, name, "--batch-size", "32") for name in ("a", "b")]
    coordinator.when(
        lambda s: s["checkpoint"] and s["checkpoint"]["version"] >= 50 and len(present(s)) == 2, "50 updates are saved"
    )
    coordinator.kill()
    saved = newest(swarm)

    again = swarm.coordinator(port=port, **OFTEN)

    resumed = again.event("resumed from a checkpoint")
    assert resumed["version"] == saved["version"] >= 50
    assert resumed["tokens"] == saved["tokens"]
    after = again.when(lambda s: min(of(name, s).get("pushes", 0) for name in "ab") > 2, "both push again")
    assert all(worker.running for worker in workers)
    assert after["version"] > saved["version"]
    assert after["loss"] < 1.5 * saved["loss"]
    for name in "ab":  # what they had computed before is not counted again
        assert of(name, after)["tokens"] == 32 * of(name, after)["pushes"]
    again.when(lambda s: s["loss"] < 0.8 * saved["loss"], "the loss goes on falling")


def test_the_built_in_model_goes_on_from_its_checkpoint(swarm):
    options = ("--model", "rwkv-tiny", "--context", "16")
    rate = {"FDTC_TRAINING_LEARNING_RATE": 0.01}
    coordinator = swarm.coordinator(*options, **rate)
    port = coordinator.port
    swarm.worker(port, "tiny", *options, "--data", "shakespeare", "--batch-size", "2")
    first = coordinator.when(lambda s: s["loss"], "the first update")["loss"]
    assert 5 < first < 6  # ln 256 = 5.55
    coordinator.when(lambda s: s["loss"] < first - 0.3, "the loss falls")
    coordinator.control("checkpoint")
    coordinator.kill()
    saved = newest(swarm)

    again = swarm.coordinator(*options, port=port, **rate)

    assert again.event("resumed from a checkpoint")["version"] == saved["version"]
    after = again.when(lambda s: of("tiny", s).get("pushes", 0) > 1, "the worker pushes again")
    assert after["loss"] < saved["loss"] + 0.1


# ----------------------------------------------------------------------------------------------- a clean end


def test_sigterm_ends_a_run_with_a_checkpoint_of_the_last_version(swarm):
    coordinator = swarm.coordinator()
    workers = [swarm.worker(coordinator.port, name) for name in ("a", "b")]
    coordinator.when(lambda s: s["version"] > 10 and present(s) == {"a", "b"}, "both train")

    coordinator.signal(signal.SIGTERM)

    assert coordinator.exit_status() == 0
    last = coordinator.event("coordinator has stopped")["version"]
    assert newest(swarm)["version"] == last > 10
    assert [worker.exit_status() for worker in workers] == [0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_end_says_goodbye(shared_swarm, coordinator, number):
    worker = shared_swarm.worker(coordinator.port, number.name)
    coordinator.when(lambda s: of(number.name, s).get("pushes"), "it trains")

    worker.signal(number)

    assert worker.exit_status() == 0
    assert worker.events("worker has stopped")
    coordinator.event("worker has left", worker=number.name, reason="deregistered")
    coordinator.when(lambda s: number.name not in present(s), "it is gone")


def test_a_worker_can_be_ended_while_it_waits_for_a_coordinator(swarm):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    worker = swarm.worker(port, "early", FDTC_NETWORK_RECONNECT_DELAY_SEC=1000)
    worker.event("no connection, trying again")

    worker.signal(signal.SIGTERM)

    assert worker.exit_status() == 0


def test_shutdown_over_http_tells_workers_and_is_not_held_up_by_one_that_does_not_answer(swarm):
    coordinator = swarm.coordinator()
    with v1.Worker(coordinator.port, "deaf") as deaf:
        deaf.pull()
        deaf.push(GRADIENT)
        coordinator.control("shutdown")
        deaf.expect(v1.SHUTDOWN)  # and it stays and says nothing
        assert coordinator.exit_status() == 0
    assert newest(swarm)["version"] == 1


def test_a_run_ends_after_its_steps_and_saves_each_version_once(swarm):
    coordinator = swarm.coordinator("--steps", "2")
    with v1.Worker(coordinator.port, "a") as peer:
        peer.pull()
        peer.push(GRADIENT)
        # To write it again it would have to be removed first, and a kill between the two would lose it.
        first, second = (Path(coordinator.control("checkpoint")["path"]).stat() for _ in range(2))
        assert first.st_ino == second.st_ino
        peer.pull()
        peer.push(GRADIENT)
        peer.expect(v1.SHUTDOWN)
        peer.deregister()
        assert coordinator.exit_status() == 0
    assert newest(swarm)["version"] == coordinator.event("coordinator has stopped")["version"] == 2


# --------------------------------------------------------------------------------------------------- control


def test_pause_holds_training_and_resume_goes_on(coordinator, steady):
    coordinator.control("pause")
    beats = 0
    last = coordinator.status()
    while beats < 5:  # five heartbeats, and no update between the first and the last
        status = coordinator.status()
        assert status["run"]["state"] == of("steady", status)["state"] == "paused"
        if status["version"] != last["version"]:
            beats = 0
        beats += status["bytes_received"] != last["bytes_received"]
        last = status
    with v1.Worker(coordinator.port, "newcomer") as newcomer:
        newcomer.expect(v1.PAUSE)
        assert coordinator.status()["version"] == last["version"]

    coordinator.control("resume")
    assert coordinator.status()["run"]["state"] == "training"
    coordinator.progress()


def test_control_words_reach_version_1_workers(coordinator):
    with v1.Worker(coordinator.port, "listener") as peer:
        for word, message in (
            ("pause", v1.PAUSE),
            ("resume", v1.RESUME),
            ("sync", v1.SYNC),
            ("checkpoint", v1.CHECKPOINT),
        ):
            coordinator.control(word)
            assert peer.expect(message) == b""


def test_a_checkpoint_is_written_on_demand(coordinator, steady, shared_swarm):
    answer = coordinator.control("checkpoint")
    saved = newest(shared_swarm)
    assert answer["path"].endswith(f"ckpt-{saved['version']:09d}")
    assert coordinator.status()["checkpoint"]["version"] == saved["version"]
    coordinator.progress()


def test_sync_makes_workers_fetch_and_go_on(coordinator, steady):
    pulled = coordinator.status()["weights_pulled"]
    coordinator.control("sync")
    coordinator.when(lambda s: s["weights_pulled"] > pulled + 1, "weights are fetched")
    coordinator.progress()


def test_training_starts_with_min_workers_and_goes_on_below(swarm):
    coordinator = swarm.coordinator("--min-workers", "2")
    with v1.Worker(coordinator.port, "one") as one:
        assert coordinator.status()["run"]["state"] == "waiting"
        one.pull()
        one.push(GRADIENT)
        one.expect(v1.SYNC)
        assert coordinator.status()["gradients_refused"] == {"not_started": 1}
        assert all(type_ != v1.START for type_, _ in one.kept)

        with v1.Worker(coordinator.port, "two") as two:
            two.expect(v1.START)
            one.expect(v1.START)
            assert coordinator.status()["run"]["state"] == "training"
        coordinator.event("fewer workers than min_workers; training goes on", workers=1)
        one.pull()
        one.push(GRADIENT)
        assert coordinator.status()["version"] == 1


def test_a_worker_refused_as_stale_goes_on(swarm):
    """A slow worker, and a peer that pushes so often that hardly any gradient of the slow one is fresh."""
    coordinator = swarm.coordinator(FDTC_TRAINING_MAX_STALENESS=0)
    slow = swarm.worker(coordinator.port, "slow", LINEAR_SECONDS=0.1)
    coordinator.when(lambda s: of("slow", s), "it has joined")
    with v1.Worker(coordinator.port, "fast") as fast:
        while of("slow", coordinator.status())["refused"].get("stale", 0) < 3:
            fast.pull()
            fast.push(GRADIENT)
        pushes = of("slow", coordinator.status())["pushes"]
    coordinator.when(lambda s: of("slow", s)["pushes"] > pushes + 2, "it goes on")
    assert slow.running


def newest(swarm: Swarm) -> dict[str, Any]:
    """The manifest of the newest checkpoint."""
    path = max(swarm.checkpoints.glob("ckpt-*"))
    manifest: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return manifest


def test_a_pause_outlives_the_coordinator_and_its_end_too(swarm, tmp_path):
    options = ["--checkpoint-dir", str(tmp_path)]
    first = swarm.coordinator(*options)
    first.control("pause")
    first.kill()
    second = swarm.coordinator(*options)
    assert second.status()["run"]["state"] == "paused"
    second.control("resume")
    second.kill()
    assert swarm.coordinator(*options).status()["run"]["state"] == "waiting"


# --------------------------------------------------------------------------- where something starts it again


def test_workers_of_a_coordinator_that_is_started_again_wait_for_it(swarm):
    coordinator = swarm.coordinator(FDTC_NETWORK_RESTARTS="true")
    port = coordinator.port
    worker = swarm.worker(port, "a")
    coordinator.when(lambda s: s["version"] > 5 and present(s) == {"a"}, "it trains")
    coordinator.signal(signal.SIGTERM)
    assert coordinator.exit_status() == 0
    ended_at = newest(swarm)["version"]

    again = swarm.coordinator(port=port, FDTC_NETWORK_RESTARTS="true")

    again.when(lambda s: s["version"] > ended_at and present(s) == {"a"}, "the same worker goes on")
    assert worker.running


def test_after_the_last_step_it_stays_idle_also_when_it_is_started_again(swarm):
    settings = {"FDTC_NETWORK_RESTARTS": "true"}
    coordinator = swarm.coordinator("--steps", "5", **settings)
    port = coordinator.port
    worker = swarm.worker(port, "a")
    coordinator.when(lambda s: s["run"]["state"] == "finished", "all steps are done")
    coordinator.when(lambda s: s["checkpoint"] and s["checkpoint"]["version"] == 5, "the last version is saved")
    coordinator.control("resume")
    coordinator.signal(signal.SIGTERM)
    assert coordinator.exit_status() == 0

    again = swarm.coordinator("--steps", "5", port=port, **settings)
    status = again.when(lambda s: present(s) == {"a"}, "its worker is back")
    assert (status["version"], status["run"]["state"]) == (5, "finished")
    again.signal(signal.SIGTERM)
    assert again.exit_status() == 0

    longer = swarm.coordinator("--steps", "10", port=port, **settings)
    longer.when(lambda s: s["version"] == 10 and s["run"]["state"] == "finished", "it goes on to the new end")
    assert worker.running
