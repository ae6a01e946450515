"""`python -m swarm_agent.ask`, as a container's health check and the operator's `docker exec` run it."""

import json
import subprocess
import sys

import pytest
from processes import Coordinator, Swarm

from swarm_agent import ask


@pytest.fixture(scope="module")
def coordinator(shared_swarm: Swarm) -> Coordinator:
    return shared_swarm.coordinator()


def asked(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "swarm_agent.ask", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_get_prints_what_the_coordinator_answers(coordinator):
    said = asked("GET", "/status", "--port", str(coordinator.http_port))

    assert said.returncode == 0
    assert json.loads(said.stdout)["run"]["model"] == "linear_model:model"
    assert said.stderr == ""


def test_post_controls_the_run(coordinator):
    for word, state in (("pause", "paused"), ("resume", "waiting")):
        said = asked("POST", f"/control/{word}", "--port", str(coordinator.http_port))

        assert said.returncode == 0, said.stderr
        assert json.loads(said.stdout)["done"] == word
        assert coordinator.status()["run"]["state"] == state


def test_a_refusal_fails_with_its_reason(coordinator):
    said = asked("POST", "/control/dance", "--port", str(coordinator.http_port))

    assert said.returncode == 1
    assert said.stderr.startswith("ask: POST /control/dance: HTTP status 404: no control word 'dance'")


def test_silence_fails_and_says_where_it_asked(coordinator):
    said = asked("GET", "/status", "--port", str(coordinator.port), "--timeout", "0.2")  # speaks another protocol

    assert said.returncode == 1
    assert f"nothing answers GET /status on 127.0.0.1:{coordinator.port}" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("words", "environment", "port"),
    [
        ([], {}, 7180),
        (["swarm-coordinator", "--port", "1", "--http-port", "7181"], {"FDTC_NETWORK_HTTP_PORT": "7182"}, 7181),
        (["python3", "/opt/bin/swarm-coordinator", "--http-port=7181"], {}, 7181),
        (["swarm-coordinator", "--http", "7181"], {}, 7181),
        (["swarm-coordinator", "--host", "0.0.0.0"], {"FDTC_NETWORK_HTTP_PORT": "7182"}, 7182),
        (["swarm-coordinator", "--config", "FILE"], {}, 7183),
        (["swarm-coordinator", "--config", "FILE"], {"FDTC_NETWORK_HTTP_PORT": "7182"}, 7182),
    ],
)
def test_the_port_is_the_one_that_the_coordinator_was_told(words, environment, port, tmp_path, monkeypatch):
    file = tmp_path / "coordinator.toml"
    file.write_text("[network]\nhttp_port = 7183\n")
    monkeypatch.delenv("FDTC_NETWORK_HTTP_PORT", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert ask.port_of([str(file) if word == "FILE" else word for word in words]) == port
