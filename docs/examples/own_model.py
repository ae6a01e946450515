"""Your own numpy model and data: one coordinator and two workers fit a line. Run it: python own_model.py."""

import tempfile
import threading

import numpy as np

from swarm_agent import Coordinator, CoordinatorConfig, Worker, WorkerConfig


class Line:
    def __init__(self):
        self.parameters = {"weight": np.zeros(8, np.float32)}

    def loss_and_gradients(self, batch):  # the mean loss, and its gradient for each parameter
        error = batch[:, :8] @ self.parameters["weight"] - batch[:, 8]
        return np.mean(error**2), {"weight": 2 * batch[:, :8].T @ error / len(batch)}


class Points:
    def __init__(self, shard, total_shards):  # this worker's part of the data
        x = np.random.default_rng(shard).normal(size=(640, 8)).astype(np.float32)
        self.rows = np.column_stack([x, x @ np.arange(8)]).astype(np.float32)
        self.reset()

    def next_batch(self, size):  # None ends a pass over the shard
        return next(self.batches, None)

    def reset(self):
        self.batches = iter(np.split(self.rows, 40))

    def close(self):
        self.batches = iter(())


config = CoordinatorConfig.of(port=0, http_port=0, steps=600, learning_rate=0.05, directory=tempfile.mkdtemp())
with Coordinator(Line().parameters, config) as coordinator:
    workers = [Worker(Line(), Points, WorkerConfig.of(coordinator_port=coordinator.port)) for _ in range(2)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    [thread.start() for thread in threads]
    coordinator.wait()
print("version", coordinator.step, "loss", coordinator.loss, "weight", coordinator.weights()["weight"].round(2))
