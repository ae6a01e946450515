"""Show that the agent works on this machine: ``python3 -m swarm_agent.selftest``.

The image's build runs it on every architecture: a coordinator and a worker take one training step over loopback with
the built-in model and text, compressed, and the checkpoint is read again. May import: everything of the agent.
"""

import argparse
import math
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import ask, checkpoint, coordinator_command, logs, models, worker_command
from .config import CoordinatorConfig, WorkerConfig
from .coordinator import Coordinator
from .worker import Worker

_CONTEXT = 16  # tokens: enough to go through every kernel, and quick under emulation
_SECONDS = 300.0
COMMANDS = (coordinator_command.main, worker_command.main)  # what they import has to be there too


def one_step() -> float:
    """Take one training step and return its loss, in nats per token.

    Raises:
        RuntimeError: It did not end in time, or left no changed, finite weights.
    """
    model = models.load_model("rwkv-tiny")
    before = {name: values.copy() for name, values in model.parameters.items()}
    with tempfile.TemporaryDirectory() as folder:
        asked = CoordinatorConfig.of(
            host="127.0.0.1", port=0, http_port=0, steps=1, context=_CONTEXT, directory=folder, learning_rate=1e-3
        )
        with Coordinator(before, asked, context=_CONTEXT, model_name="rwkv-tiny") as coordinator:
            _work(model, coordinator)
            if ask.main(["GET", "/healthz", "--port", str(coordinator.http_port)]):
                raise RuntimeError("the coordinator is not healthy")
            loss = coordinator.loss
        saved = checkpoint.load_newest(Path(folder))
        if saved is None or saved.version != 1:
            raise RuntimeError("the coordinator left no checkpoint of version 1")
        after, _ = models.open_model(str(saved.path))
    changed = [name for name, values in after.parameters.items() if not np.array_equal(values, before[name])]
    finite = all(np.isfinite(values).all() for values in after.parameters.values())
    if loss is None or not math.isfinite(loss) or not finite or not changed:
        raise RuntimeError(f"the step is wrong: loss {loss}, weights finite: {finite}, changed: {len(changed)}")
    return loss


def _work(model: models.TrainableModel, coordinator: Coordinator) -> None:
    config = WorkerConfig.of(
        coordinator_host="127.0.0.1", coordinator_port=coordinator.port, batch_size=1, accumulation_steps=1,
        context=_CONTEXT,
    )  # fmt: skip
    worker = Worker(model, models.load_data(config, model), config, worker_id="selftest")
    thread = threading.Thread(target=worker.run, name="selftest", daemon=True)
    thread.start()
    done = coordinator.wait(_SECONDS)
    worker.stop()
    thread.join(_SECONDS)
    if not done:
        raise RuntimeError(f"no training step within {_SECONDS:g} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m swarm_agent.selftest", description="Try the agent out.")
    parser.add_argument("record", nargs="?", type=Path, metavar="FILE", help="write the result there too")
    options = parser.parse_args(arguments)
    logs.configure(json=None)
    began = time.monotonic()
    loss = one_step()
    result = (
        f"self-test passed on {platform.machine()}: one training step, loss {loss:.4f}, "
        f"Python {platform.python_version()}, numpy {np.__version__}"
    )
    print(f"{result}, {time.monotonic() - began:.1f} s")
    if options.record:
        options.record.write_text(result + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
