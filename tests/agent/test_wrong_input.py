"""Whatever is wrong is said in one clear message, with a nonzero status or a refused connection; nothing is lost."""

import json
import math
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest
import structlog
import v1_peer as v1
from processes import WITH_NUMBA, WITHOUT_NUMBA, Coordinator, Process, Swarm, until

from swarm_agent import coordinator_command, worker_command
from tests.small_disk import fill, small_disk

SIZES = [8, 1]
GRADIENT = [[1.0] * 8, [1.0]]
DATA = b"".join(map(v1.none, GRADIENT))


def failure(process: Process) -> str:
    """What a process says that ends with status 1."""
    assert process.exit_status() == 1, process.output
    return process.output


# -------------------------------------------------------------------------------- ports, options, files


def test_a_port_in_use_is_named(swarm):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = {option: swarm.coordinator(option, str(port)) for option in ("--port", "--http-port")}
        for option, coordinator in refused.items():
            message = failure(coordinator)
            assert f"port {port} on 127.0.0.1 is in use" in message
            assert option in message


def test_a_wrong_key_names_its_line_and_the_nearest_key(swarm):
    file = swarm.folder / "coordinator.toml"
    file.write_text("[network]\nport = 0\n\n[training]\nlearning_rat = 0.1\n")
    message = failure(swarm.coordinator("--config", str(file)))
    assert f"{file}:5: [training] has no key 'learning_rat'; did you mean learning_rate?" in message


def test_a_checkpoint_folder_that_is_a_file_is_refused(swarm):
    file = swarm.folder / "file"
    file.touch()
    message = failure(swarm.coordinator("--checkpoint-dir", str(file)))
    assert f"can't write to {file}" in message
    assert "--checkpoint-dir" in message


def test_a_worker_says_which_data_is_missing_and_which_name_is_too_long(swarm):
    no_data = swarm.worker(1, "w", "--data", "missing.txt")
    long_name = swarm.worker(1, "w" * 70)
    assert "there is no file missing.txt" in failure(no_data)
    assert "70 bytes" in failure(long_name)


def test_a_worker_gives_up_after_its_attempts_and_says_what_to_check(swarm):
    host = "no.such.host.invalid"
    patience = {"FDTC_NETWORK_RECONNECT_ATTEMPTS": 2, "FDTC_NETWORK_RECONNECT_DELAY_SEC": 0.01}
    message = failure(swarm.worker(1, "lost", "--host", host, **patience))
    assert f"no coordinator at {host}:1 after 2 attempts" in message
    assert "--host and --port" in message


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        (coordinator_command, "--config missing.toml", ["missing.toml", "No such file"]),
        (coordinator_command, "--config broken.toml", ["broken.toml", "not valid TOML"]),
        (coordinator_command, "--config type.toml", ["type.toml:2", "learning_rate", "fast"]),
        (coordinator_command, "--port 70000", ["--port", "70000"]),
        (coordinator_command, "--model rwkv-tiniest", ["'rwkv-tiniest'", "rwkv-tiny"]),
        (coordinator_command, "--model no_such_module:model", ["no_such_module"]),
        (coordinator_command, "--model linear_model:nothing", ["linear_model", "'nothing'"]),
        (coordinator_command, "--model :model", ["':model'", "package.module:factory"]),
        (coordinator_command, "--model .a:model", ["'.a:model'", "package.module:factory"]),
        (
            coordinator_command,
            "--model no_syntax:model",
            ["importing 'no_syntax'", "SyntaxError", "no_syntax.py, line"],
        ),
        (coordinator_command, "--model raises:model", ["raises:model", "ZeroDivisionError", "raises.py, line 2"]),
        (coordinator_command, "--learning-rate 1e39", ["--learning-rate", "1e+39"]),
        (coordinator_command, "--host no.such.host.invalid", ["no.such.host.invalid", "--host"]),
        (coordinator_command, "--host 192.0.2.1 --port 0", ["192.0.2.1", "another --host"]),
        (coordinator_command, "--config endless.toml", ["endless.toml:2", "heartbeat_interval_sec"]),
        (coordinator_command, "--config shards.toml", ["shards.toml:2", "1000000"]),
        (worker_command, "--profile RPI9_4G", ["'RPI9_4G'", "RPI4_4G"]),
        (worker_command, f"--host {'a' * 70}", ["aaaa", "--host"]),
        (worker_command, "--threads -1", ["option --threads"]),
        (coordinator_command, "--topk-ratio 2", ["option --topk-ratio"]),
        (worker_command, "--data :x", ["':x'", "package.module:factory"]),
        (worker_command, f"--data {'a' * 300}.txt", ["can't look for"]),
        (worker_command, f"--batch-size {2**40}", ["--batch-size", str(2**40)]),
    ],
)
def test_a_wrong_option_gives_one_message(tmp_path, monkeypatch, capsys, command, options, words):
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text("[training\n")
    Path("type.toml").write_text('[training]\nlearning_rate = "fast"\n')
    Path("endless.toml").write_text("[network]\nheartbeat_interval_sec = inf\n")
    Path("shards.toml").write_text("[data]\nshards = 5000000000\n")
    Path("no_syntax.py").write_text("def model():\n    return (\n")
    Path("raises.py").write_text("def model():\n    return 1 / 0\n")
    monkeypatch.setenv("FDTC_CHECKPOINTING_DIRECTORY", str(tmp_path / "checkpoints"))

    try:
        assert command.main(options.split()) == 1
    finally:
        structlog.reset_defaults()  # the command has set up logging to a stream that ends with this test

    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("swarm-")
    for word in words:
        assert word in message


# ----------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def three_checkpoints(shared_swarm: Swarm) -> Path:
    folder = shared_swarm.folder / "three"
    coordinator = shared_swarm.coordinator("--steps", "3", "--checkpoint-dir", str(folder))
    with v1.Worker(coordinator.port, "w") as peer:
        for _ in range(2):
            peer.pull()
            peer.push(GRADIENT)
            coordinator.control("checkpoint")
        peer.pull()
        peer.push(GRADIENT)
        peer.expect(v1.SHUTDOWN)
        peer.deregister()
        assert coordinator.exit_status() == 0
    return folder


@pytest.fixture
def saved(swarm: Swarm, three_checkpoints: Path) -> list[Path]:
    """Three checkpoints of one's own, oldest first."""
    shutil.copytree(three_checkpoints, swarm.checkpoints)
    found = sorted(swarm.checkpoints.glob("ckpt-*"))
    assert [path.name for path in found] == ["ckpt-000000001", "ckpt-000000002", "ckpt-000000003"]
    return found


def cut_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def test_damaged_checkpoints_are_passed_over_and_said_so_and_nothing_is_deleted(swarm, saved):
    oldest, middle, newest = saved
    cut_short(newest / "weights.safetensors")
    (middle / "manifest.json").write_text("{")

    coordinator = swarm.coordinator("--steps", "5")

    assert coordinator.event("resumed from a checkpoint")["version"] == 1
    told = [event["path"] for event in coordinator.events("checkpoint is damaged, trying the one before")]
    assert told == [str(newest), str(middle)]
    assert len(list(swarm.checkpoints.glob("*/weights.safetensors"))) == 3
    with v1.Worker(coordinator.port, "w") as peer:
        for _ in range(4):
            peer.pull()
            peer.push(GRADIENT)
        peer.deregister()
    assert coordinator.exit_status() == 0
    # What was damaged is still there, for whoever can mend it.
    assert len(list(swarm.checkpoints.glob("*/weights.safetensors"))) == 4
    assert oldest.exists()


def test_with_no_whole_checkpoint_a_run_does_not_start_however_often_it_is_tried(swarm, saved):
    for path in saved:
        cut_short(path / "optimizer.safetensors")
    for _ in range(2):
        message = failure(swarm.coordinator())
        assert f"no checkpoint in {swarm.checkpoints} is whole" in message
        assert message.count("is cut short or changed") >= 3
        assert "--checkpoint-dir" in message
    assert len(list(swarm.checkpoints.glob("*/weights.safetensors"))) == 3


def test_a_checkpoint_of_another_model_or_optimizer_is_left_alone(swarm, saved):
    other_model = swarm.coordinator(LINEAR_SIZE=5)
    other_optimizer = swarm.coordinator(FDTC_TRAINING_OPTIMIZER="sgd")
    assert "of another model: weight has shape [8] where [5] is expected" in failure(other_model)
    assert "does not fit optimizer 'sgd'" in failure(other_optimizer)
    assert sorted(swarm.checkpoints.glob("ckpt-*")) == saved


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "1m") as folder:
        yield folder


def test_a_full_disk_stops_no_training_and_loses_no_checkpoint(swarm, disk):
    directory = disk / "checkpoints"
    options = ("--checkpoint-dir", str(directory))
    coordinator = swarm.coordinator(*options, LINEAR_SIZE=20_000)  # 240 kB a checkpoint
    sizes = [20_000, 1]
    gradient = b"".join(v1.none([1.0] * size) for size in sizes)

    def push(peer: v1.Worker) -> None:
        peer.pull()
        peer.socket.sendall(peer.gradients_frame(gradient, sizes))
        peer.expect(v1.GRADIENTS_ACK)

    with v1.Worker(coordinator.port, "w") as peer:
        push(peer)
        first = Path(coordinator.control("checkpoint")["path"])
        filler = disk / "filler"
        fill(filler)
        push(peer)

        code, body, _ = coordinator.request("/control/checkpoint", "POST")

        assert code == 507
        assert "the disk is full" in json.loads(body)["error"]
        assert "--checkpoint-dir" in json.loads(body)["error"]
        assert {path.name for path in directory.iterdir()} - {".lock"} == {first.name}
        assert coordinator.request("/healthz")[0] == 503
        assert "the disk is full" in coordinator.status()["checkpoint_error"]
        push(peer)
        assert coordinator.status()["version"] == 3

        filler.unlink()
        coordinator.control("checkpoint")
        assert coordinator.request("/healthz")[0] == 200

        fill(filler)
        push(peer)
        peer.deregister()
    coordinator.control("shutdown")
    assert "the disk is full" in failure(coordinator)
    assert {path.name for path in directory.iterdir()} - {".lock"} == {"ckpt-000000001", "ckpt-000000003"}
    filler.unlink()
    again = swarm.coordinator(*options, LINEAR_SIZE=20_000)
    assert again.event("resumed from a checkpoint")["version"] == 3


# ----------------------------------------------------------------------------- peers that do not keep the rules


@pytest.fixture(scope="module")
def coordinator(shared_swarm: Swarm) -> Coordinator:
    """One with a worker that trains all the while."""
    coordinator = shared_swarm.coordinator()
    shared_swarm.worker(coordinator.port, "bystander", "--batch-size", "4", LINEAR_SECONDS=0.05)
    coordinator.when(lambda s: s["version"] > 3, "training")
    return coordinator


def gradients(worker_id: bytes, sizes: list[int], data: bytes, compression: int = v1.NONE) -> bytes:
    head = v1.GRADIENTS_HEAD.pack(worker_id, 1, len(sizes), compression, 4 * sum(sizes))
    return v1.frame(v1.GRADIENTS, head + data)


TOO_LONG = v1.HEADER.pack(v1.MAGIC, v1.GRADIENTS, 2**32 - 1)
LONGER_THAN_THE_MODEL = v1.HEADER.pack(v1.MAGIC, v1.GRADIENTS, 2**27)
BEFORE_REGISTER = {
    "rubbish": (os.urandom(4096), r"magic|FDTC"),
    "zeros": (bytes(100), r"magic|FDTC"),
    "a browser": (b"GET / HTTP/1.1\r\n\r\n", r"magic|FDTC"),
    "an unknown type": (v1.frame(0x77), r"0x77|119|type"),
    "a huge length": (TOO_LONG, r"not legal|limit|large"),
    "gradients": (gradients(b"bad", SIZES, DATA), r"GRADIENTS .* not legal"),
    "weights wanted": (v1.frame(v1.WEIGHTS_REQ), r"WEIGHTS_REQ .* not legal"),
    "a coordinator's word": (v1.frame(v1.SHUTDOWN), r"SHUTDOWN .* not legal"),
    "a short register": (v1.frame(v1.REGISTER, bytes(84)), r"84 bytes"),
    "another version": (v1.register_frame("bad", version=9), r"version 9"),
    "no name": (v1.register_frame(""), r"worker_id"),
    "a name that is no text": (v1.frame(v1.REGISTER, b"\xff" * 64 + v1.register_frame("")[73:]), r"worker_id"),
    "an unknown profile": (
        v1.frame(v1.REGISTER, v1.REGISTER_BODY.pack(b"bad", 1, 4711, 1, 1, 1)),
        r"profile",
    ),
}
AFTER_REGISTER = {
    "a huge length": (TOO_LONG, r"limit"),
    "longer than the model": (LONGER_THAN_THE_MODEL, r"limit"),
    "another model": (gradients(b"bad", [4, 1], bytes(20)), r"2 tensors and 20 bytes.*--model"),
    "more tensors": (gradients(b"bad", [8, 1, 0], DATA), r"3 tensors"),
    "too little data": (gradients(b"bad", SIZES, DATA[:-4]), r"."),
    "too much data": (gradients(b"bad", SIZES, DATA + bytes(4)), r"."),
    "unknown compression": (gradients(b"bad", SIZES, DATA, 9), r"compression"),
    "indices out of range": (
        gradients(b"bad", SIZES, struct.pack("<IIf", 1, 8, 1.0) + struct.pack("<IIf", 1, 0, 1.0), v1.TOPK),
        r".",
    ),
    "no levels": (gradients(b"bad", SIZES, struct.pack("<Bf", 0, 1.0) + bytes(3), v1.QSGD), r"."),
    "somebody else's name": (gradients(b"bystander", SIZES, DATA), r"'bystander'"),
    "somebody else's heartbeat": (v1.frame(v1.HEARTBEAT, v1.HEARTBEAT_BODY.pack(b"bystander", 1, 1, 1)), r"bystander"),
    "an infinite speed": (
        v1.frame(v1.HEARTBEAT, v1.HEARTBEAT_BODY.pack(b"bad", 1, 1.0, float("inf"))),
        r"samples_per_sec",
    ),
    "another name": (v1.register_frame("other"), r"belongs to 'bad'"),
    "many messages, then rubbish": (
        200 * v1.frame(v1.HEARTBEAT, v1.HEARTBEAT_BODY.pack(b"bad", 1, 1, 1))
        + 20 * v1.frame(v1.WEIGHTS_REQ)
        + b"rubbish!!",
        r"magic|FDTC",
    ),
}


@pytest.mark.parametrize("name", BEFORE_REGISTER)
def test_a_stranger_that_breaks_the_protocol_is_told_and_disconnected(coordinator, name):
    sent, reason = BEFORE_REGISTER[name]
    with v1.Worker(coordinator.port, "bad", register=False) as peer:
        peer.socket.sendall(sent)
        assert re.search(reason, peer.farewell())
    assert coordinator.progress(1)["workers"][0]["id"] == "bystander"


@pytest.mark.parametrize("name", AFTER_REGISTER)
def test_a_worker_that_breaks_the_protocol_is_told_and_disconnected(coordinator, name):
    sent, reason = AFTER_REGISTER[name]
    with v1.Worker(coordinator.port, "bad") as peer:
        peer.socket.sendall(sent)
        assert re.search(reason, peer.farewell())
    status = coordinator.progress(1)
    assert status["gradients_refused"] == {}
    coordinator.when(lambda s: [worker["id"] for worker in s["workers"]] == ["bystander"], "the bad one is gone")


def test_a_gradient_that_would_ruin_the_weights_is_refused_and_the_worker_goes_on(swarm):
    coordinator = swarm.coordinator()
    with v1.Worker(coordinator.port, "w") as peer:
        before = peer.pull()
        for bad in (math.nan, math.inf, -math.inf, 3e38):  # the square of the last is infinite
            peer.push([[bad, *GRADIENT[0][1:]], [1.0]])
            peer.expect(v1.SYNC)
            assert peer.pull() == before
        assert coordinator.status()["gradients_refused"] == {"not_finite": 4}
        peer.push(GRADIENT)
        assert coordinator.status()["version"] == 1


def test_a_run_that_diverges_ends_with_the_reason_and_keeps_its_last_good_checkpoint(swarm):
    rule = {"FDTC_TRAINING_OPTIMIZER": "sgd"}
    coordinator = swarm.coordinator("--learning-rate", "1e-3", **rule)
    with v1.Worker(coordinator.port, "w") as peer:
        peer.pull()
        peer.push(GRADIENT)
        coordinator.control("checkpoint")
    coordinator.kill()

    wild = swarm.coordinator("--learning-rate", "1e30", **rule)
    with v1.Worker(wild.port, "w") as peer:
        peer.pull()
        peer.push([[1e10] * 8, [1e10]])
        peer.send(v1.WEIGHTS_REQ)
        assert wild.exit_status() == 1
    assert "training has diverged: the weights of version 2 are not finite" in wild.output
    assert [path.name for path in swarm.checkpoints.glob("ckpt-*")] == ["ckpt-000000001"]

    tame = swarm.coordinator("--learning-rate", "1e-3", **rule)
    assert tame.status()["version"] == 1


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_a_coordinator_listens_on_ipv6(swarm):
    coordinator = swarm.coordinator("--host", "::1")
    port = coordinator.event("coordinator listens")["port"]
    worker = swarm.worker(port, "six", "--host", "::1")
    worker.event("registered")


def test_a_worker_that_sends_and_never_reads_is_disconnected(coordinator):
    beats = 1000 * v1.frame(v1.HEARTBEAT, v1.HEARTBEAT_BODY.pack(b"flood", 1, 1, 1))
    with v1.Worker(coordinator.port, "flood") as peer:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            deque(map(peer.socket.sendall, repeat(beats + 1000 * v1.frame(v1.WEIGHTS_REQ))), 0)
    coordinator.progress()


def test_connections_that_say_nothing_are_closed_and_do_not_keep_others_out(swarm):
    coordinator = swarm.coordinator(FDTC_NETWORK_HEARTBEAT_INTERVAL_SEC=1)
    silent = [v1.Worker(coordinator.port, "", register=False) for _ in range(150)]
    silent[0].socket.sendall(v1.register_frame("half")[:20])
    with v1.Worker(coordinator.port, "w") as peer:
        peer.pull()
        peer.push(GRADIENT)
        peer.deregister()
    for peer in silent:
        peer.farewell()
        peer.socket.close()
    coordinator.control("shutdown")
    assert coordinator.exit_status() == 0


def test_more_connections_than_there_may_be_threads_do_not_end_the_coordinator(swarm):
    coordinator = swarm.coordinator()
    pid, port = coordinator.process.pid, coordinator.port
    with v1.Worker(port, "w") as worker:
        # A thread takes 8 MB of address space or more, so soon there can be no more.
        used = int(re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024
        subprocess.run(["prlimit", f"--pid={pid}", f"--as={used + 200 * 2**20}"], check=True)
        flood = [v1.Worker(port, "", register=False) for _ in range(60)]
        coordinator.event("can't serve a connection")
        for peer in flood:
            peer.socket.close()
        worker.pull()
        worker.push(GRADIENT)
    until(lambda: newcomer_is_served(port), "a newcomer is served")
    coordinator.control("shutdown")
    assert coordinator.exit_status() == 0
    assert [path.name for path in swarm.checkpoints.glob("ckpt-*")] == ["ckpt-000000001"]


def newcomer_is_served(port: int) -> bool:
    try:
        with v1.Worker(port, "newcomer") as newcomer:
            newcomer.pull()
    except (OSError, v1.Ended):
        return False
    return True


@pytest.mark.parametrize("numba", [WITH_NUMBA, WITHOUT_NUMBA], ids=["numba", "numpy"])
def test_more_connections_than_files_may_be_open_do_not_end_the_coordinator(swarm, numba):
    coordinator = swarm.coordinator(**numba)
    pid = coordinator.process.pid
    port, _ = coordinator.port, coordinator.http_port
    with v1.Worker(port, "w") as worker:
        subprocess.run(["prlimit", f"--pid={pid}", "--nofile=40:40"], check=True)
        flood = [v1.Worker(port, "", register=False) for _ in range(60)]
        coordinator.event("can't accept a connection")
        for _ in range(3):
            worker.pull()
            worker.push(GRADIENT)
        for peer in flood:
            peer.socket.close()
        with v1.Worker(port, "newcomer") as newcomer:
            newcomer.pull()
        assert coordinator.status()["version"] == 3


# ------------------------------------------------------------------------------------ a worker's own mistakes


def test_workers_get_over_a_batch_whose_gradient_is_not_finite(coordinator, shared_swarm):
    codecs = ("topk", "qsgd")
    workers = [
        shared_swarm.worker(coordinator.port, codec, "--compression", codec, LINEAR_POISON=5) for codec in codecs
    ]
    coordinator.when(
        lambda s: sum(worker["id"] in codecs and worker["pushes"] > 9 for worker in s["workers"]) == 2, "both go on"
    )
    for worker in workers:
        assert worker.events("loss or gradient is not finite, left out")
        worker.kill()


def test_workers_with_another_model_end_with_the_difference_and_others_go_on(coordinator, shared_swarm):
    worker = shared_swarm.worker(coordinator.port, "other", LINEAR_SIZE=4)
    assert "weight has shape [8] where [4] is expected" in failure(worker)
    coordinator.progress()


def test_a_refused_worker_ends_with_the_reason(swarm):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = swarm.worker(listener.getsockname()[1], "w")
        refuse = threading.Thread(target=_refuse, args=(listener,))
        refuse.start()
        message = failure(worker)
        refuse.join()
    assert "we are full" in message


def _refuse(listener: socket.socket) -> None:
    with v1.Coordinator(listener) as coordinator:
        coordinator.expect(v1.REGISTER)
        coordinator.send(v1.REGISTER_ACK, v1.REGISTER_ACK_BODY.pack(False, 0, 0, 0, 0, 0, 0, 0))
        coordinator.send(v1.ERROR, v1.ERROR_BODY.pack(8, b"we are full"))
        coordinator.farewell()
