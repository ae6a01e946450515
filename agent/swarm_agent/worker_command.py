"""``swarm-worker``: a worker as a process."""

import argparse
import sys
from collections.abc import Sequence

import structlog

from . import commands, hardware, models
from .config import WorkerConfig
from .worker import Worker

log = structlog.get_logger()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return commands.run_command(_parser(), _run, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swarm-worker",
        description="Computes gradients on this machine's share of the data and pushes them to a coordinator.",
        epilog="Every key of worker.toml can also be set as FDTC_SECTION_KEY in the environment.",
    )
    commands.add_common_options(parser)
    parser.add_argument("--host", dest="network.coordinator_host", metavar="ADDRESS", help="of the coordinator")
    parser.add_argument("--port", dest="network.coordinator_port", type=int, metavar="PORT", help="default 7100")
    parser.add_argument("--id", default="", metavar="NAME", help="this worker's name (default: made up)")
    parser.add_argument(
        "--profile", dest="hardware.profile", metavar="NAME", help="such as RPI4_4G (default: detected)"
    )
    parser.add_argument(
        "--batch-size", dest="training.batch_size", type=int, metavar="N", help="default: the profile's"
    )
    parser.add_argument("--accumulation-steps", dest="training.accumulation_steps", type=int, metavar="N")
    parser.add_argument("--threads", dest="hardware.num_threads", type=int, metavar="N", help="0: automatic")
    parser.add_argument("--tokenizer", dest="data.tokenizer", choices=["bytes", "world"])
    parser.add_argument(
        "--on-broken", dest="data.on_broken", choices=["refuse", "skip"], help="broken lines of jsonl (default: refuse)"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    config = commands.read_config(WorkerConfig, options)
    models.require_trainable(config.model.name, config.training.method)
    machine = hardware.detect(config.hardware)
    log.info(
        "hardware",
        profile=machine.profile.name,
        hardware_class=machine.hardware_class,
        cores=machine.cores,
        threads=machine.threads,
        memory_mb=machine.memory_mb,
        because="; ".join(machine.reasons),
    )
    model = models.load_model(config.model.name, config.training.seed)
    if hasattr(model, "threads"):  # the built-in models share a batch among threads better than BLAS shares a product
        model.threads = machine.threads
    commands.limit_threads(1 if hasattr(model, "threads") else machine.threads)
    data = models.load_data(config, model)
    worker = Worker(model, data, config, worker_id=options.id)
    commands.on_termination(worker.stop)
    worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
