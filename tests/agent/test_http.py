"""What a running coordinator says over HTTP."""

import json
import socket

import pytest
import v1_peer as v1
from processes import Coordinator, Process, Swarm
from prometheus_client.parser import text_string_to_metric_families

BEAT = {"FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC": 0.1}


@pytest.fixture(scope="module")
def coordinator(shared_swarm: Swarm) -> Coordinator:
    return shared_swarm.coordinator()


@pytest.fixture(scope="module", autouse=True)
def worker(shared_swarm: Swarm, coordinator: Coordinator) -> Process:
    worker = shared_swarm.worker(coordinator.port, "steady", "--batch-size", "4", **BEAT)
    coordinator.when(
        lambda s: s["loss"] and s["workers"] and s["workers"][0]["memory_used_mb"], "a worker trains and tells of it"
    )
    return worker


def test_status_shows_the_run(coordinator):
    status = coordinator.status()

    assert status["version"] > 0
    assert status["loss"] > 0
    assert status["tokens"] > 0
    assert status["gradients_applied"] <= status["version"] + 1
    assert status["gradients_refused"] == {}
    assert status["weights_pulled"] > 0
    assert status["avg_staleness"] == 0  # there is only one worker
    assert status["run"] == {"model": "linear_model:model", "state": "training", "steps": 0}
    assert status["tokens_per_sec"] > 0
    assert status["parameters"] == 9
    assert status["checkpoint_error"] is None


def test_status_shows_each_worker(coordinator):
    (worker,) = coordinator.status()["workers"]

    assert (worker["id"], worker["profile"], worker["class"]) == ("steady", "RPI3", "rpi")
    assert (worker["state"], worker["batch_size"], worker["accumulation_steps"]) == ("training", 4, 1)
    assert worker["shard"] in range(64)
    assert worker["pushes"] * 4 == worker["tokens"]
    assert worker["bytes_received"] > 0
    assert worker["bytes_sent"] > 0
    assert worker["samples_per_sec"] > 0
    assert worker["memory_used_mb"] > 10
    assert worker["refused"] == {}


def test_metrics_are_read_by_the_parser_of_prometheus(coordinator):
    before = coordinator.status()
    code, text, headers = coordinator.request("/metrics")
    after = coordinator.status()

    assert code == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    figures = {name: family.samples[0].value for name, family in families.items() if family.samples}
    for key in ("version", "tokens", "gradients_applied", "weights_pulled", "bytes_received", "bytes_sent"):
        assert before[key] <= figures[f"fdtc_{key}"] <= after[key]
    assert families["fdtc_tokens"].type == "counter"
    assert families["fdtc_version"].type == "gauge"
    assert figures["fdtc_workers"] == 1
    assert figures["fdtc_loss"] > 0
    (speed,) = families["fdtc_worker_samples_per_second"].samples
    assert speed.labels == {"worker": "steady", "class": "rpi"}


def test_metrics_survive_a_worker_with_an_odd_name(coordinator):
    name = 'a "quoted" \\ name\nof ünusual letters'
    with v1.Worker(coordinator.port, name):
        _, text, _ = coordinator.request("/metrics")
        workers = [worker["id"] for worker in coordinator.status()["workers"]]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert name in [sample.labels["worker"] for sample in families["fdtc_worker_samples_per_second"].samples]
    assert name in workers


def test_health_is_good_while_checkpoints_can_be_written(coordinator):
    code, text, _ = coordinator.request("/healthz")
    assert (code, text) == (200, "ok\n")


@pytest.mark.parametrize(
    ("path", "method", "content_type", "code"),
    [
        ("/nothing", "GET", "application/json", 404),
        ("/control/dance", "POST", "application/json", 404),
        ("/control/pause", "GET", "application/json", 405),
        ("/status", "POST", "application/json", 405),
        ("/control/pause", "POST", "text/plain", 415),
        ("/control/shutdown", "POST", "application/x-www-form-urlencoded", 415),
    ],
)
def test_wrong_requests_are_refused_in_words_and_change_nothing(coordinator, path, method, content_type, code):
    answered, body, _ = coordinator.request(path, method, content_type)

    assert answered == code
    assert json.loads(body)["error"]
    assert coordinator.status()["run"]["state"] == "training"


def test_an_unknown_control_word_names_the_known_ones(coordinator):
    _, body, _ = coordinator.request("/control/dance", "POST")
    assert json.loads(body)["error"] == (
        "no control word 'dance'; there are pause, resume, checkpoint, sync, shutdown"
    ) or all(word in body for word in ("pause", "resume", "checkpoint", "sync", "shutdown"))


def test_rubbish_on_the_http_port_harms_nothing(coordinator):
    with socket.create_connection(("127.0.0.1", coordinator.http_port), timeout=30) as connection:
        connection.sendall(v1.register_frame("lost") + b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert coordinator.progress()["run"]["state"] == "training"


def test_a_browser_on_the_workers_port_is_told_off(coordinator):
    with v1.Worker(coordinator.port, "", register=False) as peer:
        peer.socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.farewell()
    assert coordinator.progress()["run"]["state"] == "training"
