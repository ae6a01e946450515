"""Whoever dies, goes silent or comes back, and whatever is commanded: training goes on from where it was."""

import json
import signal
import socket

import pytest
import v1_peer as v1
from processes import Coordinator, Process, Swarm

BEAT = {"FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC": 0.3}  # a lease of 0.9 s
PATIENT = {"FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC": 20}
OFTEN = {"FDTC_CHECKPOINTING_INTERVAL": 10, "FDTC_TRAINING_LEARNING_RATE": 0.01}
SIZES = [8, 1]
GRADIENT = [[1.0] * 8, [1.0]]


def with_workers(*names: str):
    """A condition on the status: just these workers are there."""
    return lambda status: [worker["id"] for worker in status["workers"]] == sorted(names)


# ------------------------------------------------------------------------------------------- a worker dies


def test_a_push_cut_off_in_the_middle_changes_nothing(swarm):
    coordinator = swarm.coordinator()
    with v1.Worker(coordinator.port, "dying") as dying:
        shard = dying.shard
        dying.pull()
        push = dying.gradients_frame(b"".join(map(v1.none, GRADIENT)), SIZES)
        dying.socket.sendall(push[:-5])
        coordinator.when(lambda s: s["workers"][0]["bytes_received"] >= 100, "half of the push has arrived")
    status = coordinator.when(with_workers(), "the dead worker is gone")
    assert (status["version"], status["gradients_applied"], status["gradients_refused"]) == (0, 0, {})

    with v1.Worker(coordinator.port, "dying") as reborn:
        assert reborn.shard == shard
        reborn.pull()
        reborn.push(GRADIENT)
        assert coordinator.status()["version"] == 1


def test_a_worker_killed_again_and_again_mid_push_does_no_harm(swarm):
    """Pushes of 16 MB with hardly any computing between: the kill falls into one of them."""
    large = {"LINEAR_SIZE": 4_000_000, "LINEAR_SECONDS": 0}
    coordinator = swarm.coordinator("--compression", "none", LINEAR_SIZE=4_000_000)
    swarm_worker = ("--batch-size", "1")
    for _ in range(2):
        victim = swarm.worker(coordinator.port, "victim", *swarm_worker, **large)
        coordinator.when(lambda s: s["workers"] and s["workers"][0]["pushes"] >= 2, "it pushes")
        shard = coordinator.status()["workers"][0]["shard"]
        victim.kill()
        coordinator.when(with_workers(), "it is gone")
    swarm.worker(coordinator.port, "victim", *swarm_worker, **large)
    status = coordinator.when(with_workers("victim"), "it is back")
    assert status["workers"][0]["shard"] == shard
    coordinator.progress()


def test_the_shard_of_a_killed_worker_is_given_to_the_next_one(swarm):
    coordinator = swarm.coordinator()
    victim = swarm.worker(coordinator.port, "victim")
    swarm.worker(coordinator.port, "other")
    status = coordinator.when(with_workers("victim", "other"), "both train")
    held = {worker["id"]: worker["shard"] for worker in status["workers"]}
    assert held["victim"] != held["other"]

    victim.kill()
    coordinator.when(with_workers("other"), "the victim's lease is over")
    coordinator.progress()  # the other one goes on
    with v1.Worker(coordinator.port, "heir") as heir:
        assert heir.shard == held["victim"]


def test_a_silent_worker_loses_its_lease_and_its_shard(swarm):
    coordinator = swarm.coordinator(**BEAT)
    with v1.Worker(coordinator.port, "silent") as silent:
        assert coordinator.event("worker has left", worker="silent")["reason"].startswith("silent for 0.9 s")
        silent.farewell()  # its connection is closed
        with v1.Worker(coordinator.port, "heir") as heir:
            assert heir.shard == silent.shard


def test_half_a_frame_does_not_keep_a_silent_worker_alive(swarm):
    coordinator = swarm.coordinator(**BEAT)
    with v1.Worker(coordinator.port, "hanging") as hanging:
        hanging.socket.sendall(v1.frame(v1.HEARTBEAT, bytes(76))[:20])
        coordinator.event("worker has left", worker="hanging")


def test_a_worker_that_was_frozen_comes_back(swarm):
    coordinator = swarm.coordinator(**BEAT)
    worker = swarm.worker(coordinator.port, "frozen", **BEAT)
    coordinator.when(lambda s: s["version"] > 3, "training")

    worker.signal(signal.SIGSTOP)
    coordinator.event("worker has left", worker="frozen")
    worker.signal(signal.SIGCONT)

    coordinator.when(with_workers("frozen"), "it is back")
    coordinator.progress()


def test_a_newer_worker_with_the_same_id_replaces_the_older(swarm):
    coordinator = swarm.coordinator()
    older = swarm.worker(coordinator.port, "twin")
    coordinator.when(lambda s: s["version"] > 3, "the older one trains")

    with v1.Worker(coordinator.port, "twin") as newer:
        assert older.exit_status() == 1
        assert "a newer connection with this worker id took over" in older.output
        status = coordinator.status()
        assert with_workers("twin")(status)
        newer.pull()
        newer.push(GRADIENT)
        assert coordinator.status()["version"] > status["version"]


def test_an_old_connection_that_will_not_close_is_closed(swarm):
    coordinator = swarm.coordinator(**PATIENT)
    with v1.Worker(coordinator.port, "twin") as older, v1.Worker(coordinator.port, "twin"):
        assert "took over" in older.farewell()
        # We keep our side open and say nothing; the coordinator must not keep a thread and a socket for us.
        older.socket.settimeout(20)
        coordinator.event("worker has left", worker="twin")
        assert_reset(older.socket)


def assert_reset(connection: socket.socket) -> None:
    """Wait until the other side has closed both directions: then writing fails."""
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:
            connection.sendall(b"\0")
            connection.settimeout(0.05)
            try:
                connection.recv(1)
            except TimeoutError:
                continue


# ----------------------------------------------------------------------------------------- a coordinator dies


def test_a_killed_coordinator_resumes_and_its_workers_come_back_by_themselves(swarm):
    coordinator = swarm.coordinator(**OFTEN)
    workers = [swarm.worker(coordinator.port, name) for name in ("a", "b")]
    before = coordinator.when(lambda s: s["version"] >= 60 and s["checkpoint"] and s["loss"], "60 updates")
    first_loss = coordinator.events("training starts") and before["loss"]
    port = coordinator.port
    coordinator.kill()
    saved = newest(swarm)

    again = swarm.coordinator(port=port, **OFTEN)

    resumed = again.event("resumed from a checkpoint")
    assert resumed["version"] == saved["version"] >= 50
    assert resumed["tokens"] == saved["tokens"]
    after = again.when(with_workers("a", "b"), "both are back")
    assert all(worker.running for worker in workers)
    assert after["version"] >= saved["version"]
    assert after["loss"] == pytest.approx(saved["loss"], rel=0.5)
    done = again.when(lambda s: s["version"] >= saved["version"] + 100, "a hundred more updates")
    assert done["loss"] < min(saved["loss"], first_loss)


def test_tokens_are_not_counted_twice_by_workers_that_come_back(swarm):
    coordinator = swarm.coordinator(**OFTEN)
    worker = swarm.worker(coordinator.port, "a", "--batch-size", "4")
    coordinator.when(lambda s: s["version"] >= 30, "30 updates")
    port = coordinator.port
    coordinator.kill()

    again = swarm.coordinator(port=port, **OFTEN)

    status = again.when(lambda s: s["workers"] and s["workers"][0]["pushes"] >= 3, "the worker pushes again")
    assert worker.running
    assert status["workers"][0]["tokens"] == 4 * status["workers"][0]["pushes"]
    assert status["tokens"] == 4 * status["version"]


def test_workers_leave_a_frozen_coordinator_and_come_back(swarm):
    coordinator = swarm.coordinator()
    worker = swarm.worker(coordinator.port, "a", **BEAT)
    coordinator.when(lambda s: s["version"] > 3, "training")

    coordinator.signal(signal.SIGSTOP)
    reason = worker.event("no connection, trying again")["reason"]
    coordinator.signal(signal.SIGCONT)

    assert "silent" in reason
    coordinator.when(with_workers("a"), "it is back")
    coordinator.progress()


def test_the_built_in_model_goes_on_from_its_checkpoint(swarm):
    rwkv = ("--model", "rwkv-tiny")
    coordinator = swarm.coordinator(*rwkv, "--context", "32", FDTC_TRAINING_LEARNING_RATE=0.003)
    options = (*rwkv, "--context", "32", "--batch-size", "4", "--data", "shakespeare")
    swarm.worker(coordinator.port, "tiny", *options)
    first = coordinator.when(lambda s: s["version"] >= 1 and s["loss"], "the first update")["loss"]
    assert 5 < first < 6  # ln 256 = 5.55
    before = coordinator.when(lambda s: s["loss"] < 4.9, "the loss falls")
    coordinator.control("checkpoint")
    port = coordinator.port
    coordinator.kill()

    again = swarm.coordinator(*rwkv, "--context", "32", port=port, FDTC_TRAINING_LEARNING_RATE=0.003)

    assert again.event("resumed from a checkpoint")["version"] >= before["version"]
    after = again.when(lambda s: s["workers"] and s["workers"][0]["pushes"] >= 2, "the worker pushes again")
    assert after["workers"][0]["loss"] < 5.2  # its latest batch alone
    assert after["loss"] < 5


# ----------------------------------------------------------------------------------------------- a clean end


def test_sigterm_ends_a_run_with_a_checkpoint_of_the_last_version(swarm):
    coordinator = swarm.coordinator()
    workers = [swarm.worker(coordinator.port, name) for name in ("a", "b")]
    coordinator.when(lambda s: s["version"] > 10 and len(s["workers"]) == 2, "both train")

    coordinator.signal(signal.SIGTERM)

    assert coordinator.exit_status() == 0
    last = coordinator.event("coordinator has stopped")["version"]
    assert newest(swarm)["version"] == last > 10
    assert [worker.exit_status() for worker in workers] == [0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_end_says_goodbye(coordinator, shared_swarm, number):
    worker = shared_swarm.worker(coordinator.port, "leaving")
    coordinator.when(with_workers("leaving"), "it has joined")

    worker.signal(number)

    assert worker.exit_status() == 0
    assert worker.events("worker has stopped")
    coordinator.event("worker has left", worker="leaving", reason="deregistered")
    coordinator.when(with_workers(), "it is gone")


def test_a_worker_can_be_ended_while_it_waits_for_a_coordinator(swarm):
    worker = swarm.worker(unused_port(), "early", FDTC_NETWORK_RECONNECT_DELAY_SEC=1000)
    worker.event("no connection, trying again")

    worker.signal(signal.SIGTERM)

    assert worker.exit_status() == 0


def test_a_worker_that_does_not_answer_holds_up_no_shutdown(swarm):
    coordinator = swarm.coordinator(**PATIENT)
    with v1.Worker(coordinator.port, "deaf"):
        coordinator.signal(signal.SIGINT)
        assert coordinator.exit_status() == 0


def test_a_run_ends_after_its_steps(swarm):
    coordinator = swarm.coordinator("--steps", "25")
    workers = [swarm.worker(coordinator.port, name) for name in ("a", "b")]
    assert coordinator.exit_status() == 0
    assert newest(swarm)["version"] == coordinator.event("coordinator has stopped")["version"] == 25
    assert [worker.exit_status() for worker in workers if worker.events("registered")]


# --------------------------------------------------------------------------------------------------- control


@pytest.fixture(scope="module")
def coordinator(shared_swarm: Swarm) -> Coordinator:
    return shared_swarm.coordinator()


@pytest.fixture(scope="module")
def worker(shared_swarm: Swarm, coordinator: Coordinator) -> Process:
    worker = shared_swarm.worker(coordinator.port, "steady", **{"FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC": 0.1})
    coordinator.when(lambda s: s["version"] > 3, "it trains")
    return worker


def test_pause_holds_training_and_resume_goes_on(coordinator, worker):
    coordinator.control("pause")
    beats = 0
    last = coordinator.status()
    while beats < 5:  # five heartbeats with no update between the first and the last
        status = coordinator.status()
        assert status["run"]["state"] == status["workers"][0]["state"] == "paused"
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


def test_control_words_reach_version_1_workers(coordinator, worker):
    with v1.Worker(coordinator.port, "listener") as peer:
        for word, message in (
            ("pause", v1.PAUSE),
            ("resume", v1.RESUME),
            ("sync", v1.SYNC),
            ("checkpoint", v1.CHECKPOINT),
        ):
            coordinator.control(word)
            assert peer.expect(message) == b""


def test_a_checkpoint_is_written_on_demand(coordinator, worker, shared_swarm):
    answer = coordinator.control("checkpoint")
    saved = newest(shared_swarm)
    assert answer["path"].endswith(f"ckpt-{saved['version']:09d}")
    assert coordinator.status()["checkpoint"]["version"] == saved["version"]


def test_sync_makes_workers_fetch_and_go_on(coordinator, worker):
    pulled = coordinator.status()["weights_pulled"]
    coordinator.control("sync")
    coordinator.when(lambda s: s["weights_pulled"] > pulled + 1, "weights are fetched")
    coordinator.progress()


def test_shutdown_over_http_ends_all(swarm):
    coordinator = swarm.coordinator()
    worker = swarm.worker(coordinator.port, "a")
    coordinator.when(lambda s: s["version"] > 3, "training")
    coordinator.control("shutdown")
    assert coordinator.exit_status() == 0
    assert worker.exit_status() == 0
    assert newest(swarm)["version"] == coordinator.event("coordinator has stopped")["version"]


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
    coordinator.when(with_workers("slow"), "it has joined")

    def of_slow(status):
        return next(worker for worker in status["workers"] if worker["id"] == "slow")

    with v1.Worker(coordinator.port, "fast") as fast:
        while of_slow(coordinator.status())["refused"].get("stale", 0) < 3:
            fast.pull()
            fast.push(GRADIENT)
        pushes = of_slow(coordinator.status())["pushes"]
    coordinator.when(lambda s: of_slow(s)["pushes"] > pushes + 2, "it goes on")
    assert slow.running


# --------------------------------------------------------------------------------------------------- helpers


def newest(swarm: Swarm) -> dict:
    """The manifest of the newest checkpoint."""
    path = max(swarm.checkpoints.glob("ckpt-*"))
    return json.loads((path / "manifest.json").read_text())


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
