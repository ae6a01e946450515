"""A version-1 peer written only from the wire specification joins us, as a worker and as a coordinator."""

import socket
from itertools import chain

import pytest
import v1_peer as v1
from linear_model import ROWS
from processes import Coordinator, Swarm, until

RATE = 0.5
WEIGHTS = 8  # of the linear model, and one bias
GRADIENT = [[1.0, -2.0, 0.5, 0.0, 0.0, 4.0, 0.0, 0.0], [3.0]]  # half of it is not zero, as TOPK here keeps
ONE_EACH = [[0.0, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0], [3.0]]  # what a one-level QSGD carries exactly
PLAIN_SGD = """
[training]
optimizer = "sgd"
learning_rate = 0.5
max_staleness = 2
staleness_weight = false
"""


@pytest.fixture(scope="module")
def coordinator(shared_swarm: Swarm) -> Coordinator:
    config = shared_swarm.folder / "coordinator.toml"
    config.write_text(PLAIN_SGD)
    return shared_swarm.coordinator("--config", str(config))


def test_a_version_1_worker_is_registered_and_started(coordinator):
    with v1.Worker(coordinator.port, "stranger", batch_size=3) as peer:
        assert peer.accepted
        assert peer.shard < peer.total_shards == 64
        assert (peer.batch_size, peer.compression) == (3, v1.TOPK)
        assert peer.accumulation >= 1
        assert peer.topk_ratio == pytest.approx(0.1)
        assert peer.expect(v1.START) == b""

        shown = coordinator.status()["workers"][0]
        assert (shown["id"], shown["profile"], shown["class"]) == ("stranger", "RPI3", "rpi")
        assert (shown["cores"], shown["memory_mb"], shown["shard"]) == (4, 1024, peer.shard)


def test_one_push_moves_the_weights_by_rate_times_gradient(coordinator):
    with v1.Worker(coordinator.port, "mover") as peer:
        version, rate, shapes, before = peer.pull()
        assert rate == RATE
        assert shapes == {"weight": (WEIGHTS,), "bias": (1,)}

        peer.push(GRADIENT)

        new_version, _, _, after = peer.pull()
        assert new_version == version + 1
        assert after == moved(before, GRADIENT)


@pytest.mark.parametrize(
    ("compression", "gradient"),
    [
        pytest.param(v1.FP16, GRADIENT, id="fp16"),
        pytest.param(v1.TOPK, GRADIENT, id="topk"),
        pytest.param(v1.QSGD, ONE_EACH, id="qsgd"),
    ],
)
def test_compressed_pushes_arrive_as_meant(coordinator, compression, gradient):
    with v1.Worker(coordinator.port, "packer") as peer:
        version, _, _, before = peer.pull()

        peer.push(gradient, compression)

        new_version, _, _, after = peer.pull()
        assert new_version == version + 1
        assert after == pytest.approx(moved(before, gradient))


def test_a_stale_push_is_acknowledged_then_answered_by_sync_and_the_worker_goes_on(coordinator):
    with v1.Worker(coordinator.port, "slow") as slow, v1.Worker(coordinator.port, "fast") as fast:
        slow.pull()
        for _ in range(3):  # one more than max_staleness
            fast.pull()
            fast.push(GRADIENT)
        version = coordinator.status()["version"]
        refused = coordinator.status()["gradients_refused"].get("stale", 0)

        slow.push(GRADIENT)

        assert slow.expect(v1.SYNC) == b""
        status = coordinator.status()
        assert status["version"] == version
        assert status["gradients_refused"]["stale"] == refused + 1
        assert next(w for w in status["workers"] if w["id"] == "slow")["refused"] == {"stale": 1}

        assert slow.pull()[0] == version
        slow.push(GRADIENT)
        assert coordinator.status()["version"] == version + 1


def test_a_push_at_exactly_the_greatest_staleness_is_applied(coordinator):
    with v1.Worker(coordinator.port, "slow") as slow, v1.Worker(coordinator.port, "fast") as fast:
        version = slow.pull()[0]
        for _ in range(2):
            fast.pull()
            fast.push(GRADIENT)

        slow.push(GRADIENT)

        assert coordinator.status()["version"] == version + 3


def test_a_push_by_a_worker_that_never_pulled_is_refused(coordinator):
    version = coordinator.status()["version"]
    with v1.Worker(coordinator.port, "blind") as peer:
        peer.push(GRADIENT)

        peer.expect(v1.SYNC)
        assert coordinator.status()["version"] == version


def test_heartbeats_are_answered_and_what_a_worker_says_is_shown(coordinator):
    with v1.Worker(coordinator.port, "talker") as peer:
        peer.pull()
        peer.push(GRADIENT)
        peer.heartbeat(loss=1.25, samples_per_sec=7.0)
        peer.expect(v1.STATUS_REQ)
        peer.status(samples=12)

        status = coordinator.when(lambda s: s["workers"][0]["memory_used_mb"], "the answer to STATUS_REQ")
        shown = status["workers"][0]
        assert (shown["loss"], shown["samples_per_sec"], shown["memory_used_mb"]) == (1.25, 7.0, 77)


def test_a_worker_that_deregisters_is_gone_and_its_shard_is_given_out_again(coordinator):
    with v1.Worker(coordinator.port, "leaver") as peer:
        shard = peer.shard
        peer.deregister()
        assert peer.farewell() == ""

    coordinator.when(lambda s: not s["workers"], "no workers")
    with v1.Worker(coordinator.port, "heir") as heir:
        assert heir.shard == shard


def test_registering_again_gives_the_next_shard_and_counts_the_pass(coordinator):
    passes = coordinator.status()["data"]["passes_max"]
    with v1.Worker(coordinator.port, "reader") as peer:
        for _ in range(64):
            peer.socket.sendall(v1.register_frame("reader"))
            fields = v1.REGISTER_ACK_BODY.unpack(peer.expect(v1.REGISTER_ACK))
            assert fields[0]
        seen = coordinator.status()["data"]
        assert seen["passes_max"] >= passes + 1
        assert seen["passes_min"] >= 1


def test_a_peer_that_asks_for_weights_many_times_at_once_gets_them_all(coordinator):
    with v1.Worker(coordinator.port, "greedy") as peer:
        peer.socket.sendall(100 * v1.frame(v1.WEIGHTS_REQ))
        for _ in range(100):
            assert len(peer.expect(v1.WEIGHTS)) == 4 * (WEIGHTS + 1)


def test_frames_cut_anywhere_are_put_together(coordinator):
    with v1.Worker(coordinator.port, "splitter") as peer:
        version = peer.pull()[0]
        push = peer.gradients_frame(b"".join(map(v1.none, GRADIENT)), [WEIGHTS, 1])
        for byte in push:
            peer.socket.sendall(bytes([byte]))
        peer.expect(v1.GRADIENTS_ACK)
        assert peer.pull()[0] == version + 1


def moved(weights: list[float], gradient: list[list[float]]) -> list[float]:
    return [w - RATE * g for w, g in zip(weights, chain(*gradient), strict=True)]


# ------------------------------------------------------------------------------ their coordinator, our worker


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


def test_our_worker_trains_with_a_version_1_coordinator(swarm, listener):
    worker = swarm.worker(listener.getsockname()[1], "ours", LINEAR_SIZE=2)
    weights, rate = [0.0, 0.0, 0.0], 0.2
    losses = []
    with v1.Coordinator(listener) as coordinator:
        assert coordinator.welcome() == "ours"
        for version in range(30):
            coordinator.give_weights(version, {"weight": weights[:2], "bias": weights[2:]})
            gradient = coordinator.take_gradient([2, 1])
            weights = [w - rate * g for w, g in zip(weights, gradient, strict=True)]
            _, step, loss, speed = v1.HEARTBEAT_BODY.unpack(coordinator.expect(v1.HEARTBEAT))
            coordinator.send(v1.HEARTBEAT_ACK)
            assert step == version + 1
            assert speed > 0
            losses.append(loss)
        assert losses[-1] < 0.05 * losses[0]
        assert weights == pytest.approx([2**-0.5, 2**-0.5, 1], abs=0.1)

        coordinator.send(v1.STATUS_REQ)
        fields = v1.STATUS_BODY.unpack(coordinator.expect(v1.STATUS))
        assert fields[0].rstrip(b"\0") == b"ours"
        assert fields[1] >= 30
        coordinator.send(v1.SHUTDOWN)
        assert coordinator.expect(v1.DEREGISTER).rstrip(b"\0") == b"ours"
    assert worker.exit_status() == 0


def test_our_worker_obeys_pause_resume_and_sync(swarm, listener):
    swarm.worker(listener.getsockname()[1], "ours", LINEAR_SIZE=2, FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC=0.1)
    tensors = {"weight": [0.0, 0.0], "bias": [0.0]}
    with v1.Coordinator(listener) as coordinator:
        coordinator.welcome()
        coordinator.give_weights(0, tensors)
        coordinator.send(v1.PAUSE)
        coordinator.send(v1.STATUS_REQ)
        assert not v1.STATUS_BODY.unpack(coordinator.expect(v1.STATUS))[-1]
        for _ in range(4):  # in the time of these it could compute some forty gradients
            coordinator.expect(v1.HEARTBEAT)
            coordinator.send(v1.HEARTBEAT_ACK)
        assert sum(type_ == v1.GRADIENTS for type_, _ in coordinator.kept) <= 1  # that was on its way
        assert all(type_ != v1.WEIGHTS_REQ for type_, _ in coordinator.kept)

        coordinator.send(v1.RESUME)
        coordinator.give_weights(1, tensors)
        coordinator.take_gradient([2, 1])
        coordinator.give_weights(2, tensors)
        coordinator.send(v1.SYNC)  # whatever it computes, it fetches anew
        coordinator.give_weights(3, tensors)
        coordinator.take_gradient([2, 1])


def test_our_worker_registers_again_when_its_shard_is_finished(swarm, listener):
    swarm.worker(listener.getsockname()[1], "ours", LINEAR_SIZE=2, LINEAR_SECONDS=0)
    tensors = {"weight": [0.0, 0.0], "bias": [0.0]}
    with v1.Coordinator(listener) as coordinator:
        coordinator.welcome(shard=1)
        for version in range(ROWS // v1.BATCH):
            coordinator.give_weights(version, tensors)
            last_of_the_shard = coordinator.take_gradient([2, 1])
        coordinator.give_weights(100, tensors)
        coordinator.expect(v1.REGISTER)
        coordinator.acknowledge(shard=2)
        first_of_the_next = coordinator.take_gradient([2, 1])
        assert first_of_the_next != last_of_the_shard


def test_our_worker_comes_back_after_rubbish_and_broken_connections(swarm, listener):
    worker = swarm.worker(listener.getsockname()[1], "ours", LINEAR_SIZE=2)
    tensors = {"weight": [0.0, 0.0], "bias": [0.0]}
    for rubbish in (b"HTTP/1.1 400 Bad Request\r\n\r\n", v1.frame(v1.GRADIENTS, bytes(80)), v1.frame(v1.START, b"!")):
        with v1.Coordinator(listener) as coordinator:
            coordinator.expect(v1.REGISTER)
            coordinator.socket.sendall(rubbish)
            assert coordinator.farewell()  # it says what was wrong
    for _ in range(2):
        with v1.Coordinator(listener) as coordinator:
            coordinator.welcome()
            coordinator.give_weights(0, tensors)
    with v1.Coordinator(listener) as coordinator:
        coordinator.welcome()
        coordinator.give_weights(5, tensors)
        coordinator.take_gradient([2, 1])
    assert worker.running


def test_our_worker_ends_with_the_reason_when_the_models_differ(swarm, listener):
    worker = swarm.worker(listener.getsockname()[1], "ours", LINEAR_SIZE=2)
    with v1.Coordinator(listener) as coordinator:
        coordinator.welcome()
        coordinator.give_weights(0, {"weight": [0.0, 0.0, 0.0], "bias": [0.0]})
        assert "another model" in coordinator.farewell()
    assert worker.exit_status() == 1
    assert "weight has shape [3] where [2] is expected" in worker.output


def test_our_worker_ends_quietly_when_told_to_while_it_is_asked_much(swarm, listener):
    worker = swarm.worker(listener.getsockname()[1], "ours", LINEAR_SIZE=2)
    with v1.Coordinator(listener) as coordinator:
        coordinator.welcome()
        coordinator.socket.sendall(v1.frame(v1.SHUTDOWN) + 1000 * v1.frame(v1.STATUS_REQ))
        coordinator.farewell()
    assert worker.exit_status() == 0


def test_our_worker_keeps_quiet_after_an_error_that_comes_during_a_long_computation(swarm, listener):
    worker = swarm.worker(
        listener.getsockname()[1],
        "ours",
        LINEAR_SIZE=2,
        LINEAR_SECONDS=1,
        FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC=0.1,
    )
    with v1.Coordinator(listener) as coordinator:
        coordinator.welcome()
        coordinator.give_weights(0, {"weight": [0.0, 0.0], "bias": [0.0]})
        coordinator.expect(v1.HEARTBEAT)
        coordinator.send(v1.ERROR, v1.ERROR_BODY.pack(9, b"something broke here"))
        coordinator.farewell()
    until(lambda: "something broke here" in worker.output, "the error in the worker's log")
    with v1.Coordinator(listener) as coordinator:
        coordinator.welcome()
