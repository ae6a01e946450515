"""The Python API does what the commands do; the documented example runs; faults of one's own model are told."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from swarm_agent import Coordinator, CoordinatorConfig, DataError, ModelError, RefusedError, Worker, WorkerConfig

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_model.py"


class Constant:
    """A model whose gradients a test chooses."""

    def __init__(self, gradients: object = None, loss: float = 1.0) -> None:
        self.parameters = {"w": np.zeros(4, np.float32)}
        self.gradients = {"w": np.ones(4, np.float32)} if gradients is None else gradients
        self.loss = loss

    def loss_and_gradients(self, batch: object) -> tuple[float, object]:
        return self.loss, self.gradients


class Raises(Constant):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def loss_and_gradients(self, batch: object) -> tuple[float, object]:
        raise self.error


class Broken:
    """A source that gives a batch which is none, or raises."""

    def __init__(self, error: Exception | None = None, batch: object = None) -> None:
        self.error = error
        self.batch = batch

    def next_batch(self, size: int) -> object:
        if self.error:
            raise self.error
        return self.batch

    def reset(self) -> None:
        raise AssertionError("it is not at its end")

    def close(self) -> None:
        pass


class Endless:
    def next_batch(self, size: int) -> np.ndarray:
        return np.zeros((size, 1))

    def reset(self) -> None:
        raise AssertionError("it never ends")

    def close(self) -> None:
        self.closed = True


def coordinator(folder: Path, **keys: object) -> Coordinator:
    config = CoordinatorConfig.of(host="127.0.0.1", port=0, http_port=0, directory=str(folder), **keys)
    return Coordinator(Constant().parameters, config)


def worker(c: Coordinator, model: object, **keys: object) -> Worker:
    config = WorkerConfig.of(coordinator_host="127.0.0.1", coordinator_port=c.port, **keys)
    return Worker(model, Endless(), config)  # type: ignore[arg-type]


def test_the_documented_example_is_short_and_finds_the_line() -> None:
    code = [line for line in EXAMPLE.read_text().splitlines() if line.strip() and not line.startswith('"""')]
    assert len(code) < 30
    run = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r"version 600 loss \S+ weight \[(.*)\]", run.stdout)
    assert found is not None
    np.testing.assert_allclose([float(x) for x in found[1].split()], np.arange(8), atol=0.5)


def test_a_run_ends_at_exactly_its_steps_and_frees_its_threads(tmp_path: Path) -> None:
    before = threading.active_count()
    with coordinator(tmp_path, steps=20, type="none", learning_rate=0.5, optimizer="sgd") as c:
        threads = [threading.Thread(target=worker(c, Constant()).run) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert c.wait(60)
        for thread in threads:
            thread.join(60)
    assert c.step == 20
    assert c.num_workers == 0
    assert (c.weights()["w"] < 0).all()
    assert threading.active_count() <= before + 1  # the HTTP library keeps one idle thread for a while


def test_a_worker_stops_when_its_owner_says_so(tmp_path: Path) -> None:
    with coordinator(tmp_path) as c:
        w = worker(c, Constant())
        thread = threading.Thread(target=w.run)
        thread.start()
        while c.step < 3:
            assert not c.wait(0.01)
        w.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert w.pushes >= 2


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Constant(gradients={}), "no gradient for 'w'"),
        (Constant(gradients={"w": np.ones(5, np.float32)}), r"shape \[4\].*float32 of shape \[5\]"),
        (Constant(gradients={"w": np.ones((2, 2), np.float32)}), r"shape \[4\].*float32 of shape \[2, 2\]"),
        (Constant(gradients={"w": [1.0] * 4}), "returned a list"),
        (Constant(gradients={"w": np.ones(4, np.complex64)}), "complex64"),
        (Constant(gradients=[np.ones(4, np.float32)]), r"it returned \(a float, a list\)"),
        (Constant(loss=None), r"it returned \(None, a dict\)"),  # type: ignore[arg-type]
        (
            Raises(ConnectionError("of its own")),
            r"`loss_and_gradients` raised ConnectionError: of its own \(.*test_api.py, ",
        ),
        (Raises(MemoryError("no 9 GiB")), "raised MemoryError: no 9 GiB.*smaller --batch-size"),
        (Constant(gradients={"w": np.full(4, np.inf, np.float32)}), "10 times in a row"),
        (Constant(loss=float("nan")), "10 times in a row"),
    ],
)
def test_a_fault_of_the_model_is_told(tmp_path: Path, model: Constant, words: str) -> None:
    with coordinator(tmp_path) as c, pytest.raises(ModelError, match=words):
        worker(c, model).run()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda _shard: Endless(), "factory, .* raised TypeError: .* takes 1 positional argument"),
        (lambda _shard, _total: None, "has no next_batch and no reset and no close"),
        (
            lambda _shard, _total: Broken(FileNotFoundError("gone.txt")),
            "`next_batch` raised FileNotFoundError: gone.txt",
        ),
        (lambda _shard, _total: Broken(batch=7), r"len\(\) of what .* raised TypeError"),
        (lambda _shard, _total: Broken(batch=[]), "returned an empty batch; at the end of a pass it returns None"),
    ],
)
def test_a_fault_of_the_data_is_told_and_not_taken_for_one_of_the_network(
    tmp_path: Path, source: object, words: str
) -> None:
    with coordinator(tmp_path) as c:
        config = WorkerConfig.of(coordinator_host="127.0.0.1", coordinator_port=c.port)
        with pytest.raises(DataError, match=words):
            Worker(Constant(), source, config).run()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ([np.zeros(4, np.float32)], "mapping"),
        ({1: np.zeros(4, np.float32)}, "mapping .* of names"),
        ({"w" * 65: np.zeros(4, np.float32)}, "at most 64 bytes"),
        ({"w\0": np.zeros(4, np.float32)}, "no NUL"),
        ({"\ud800": np.zeros(4, np.float32)}, "not valid text"),
    ],
)
def test_parameters_that_can_not_be_sent_are_refused_before_anybody_connects(
    tmp_path: Path, parameters: object, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        Coordinator(parameters, CoordinatorConfig.of(directory=str(tmp_path)))  # type: ignore[arg-type]


def test_parameters_that_can_not_be_written_to_are_refused() -> None:
    model = Constant()
    model.parameters["w"].flags.writeable = False
    with pytest.raises(ModelError, match="'w' can't be written to"):
        Worker(model, Endless())


def test_another_model_than_the_coordinators_is_told_on_both_sides(tmp_path: Path) -> None:
    other = Constant()
    other.parameters = {"w": np.zeros(5, np.float32)}
    with coordinator(tmp_path) as c, pytest.raises(ModelError, match=r"w has shape \[4\] where \[5\] is expected"):
        worker(c, other).run()


def test_an_explicit_shard_beyond_the_last_is_told(tmp_path: Path) -> None:
    with coordinator(tmp_path, shards=4) as c, pytest.raises(Exception, match="0 to 3"):
        worker(c, Constant(), shard_index=4).run()


def test_a_finished_run_turns_workers_away(tmp_path: Path) -> None:
    with coordinator(tmp_path) as c:
        c.shut_down()
        with pytest.raises(RefusedError, match="training is over"):
            worker(c, Constant()).run()


def test_a_model_too_large_for_one_message_is_refused_at_once(tmp_path: Path) -> None:
    # Zero strides: the array claims 2^26 entries and takes no memory for them.
    huge = np.broadcast_to(np.zeros(1, np.float32), (2**26,))
    with pytest.raises(ModelError, match="67 million"):
        Coordinator({"w": huge}, CoordinatorConfig.of(directory=str(tmp_path), optimizer="sgd"))
