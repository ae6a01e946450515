"""``swarm-coordinator``: a coordinator as a process."""

import argparse
import sys
from collections.abc import Sequence

from . import commands, models
from .config import CoordinatorConfig
from .coordinator import Coordinator


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return commands.run_command(_parser(), _run, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swarm-coordinator",
        description="Holds the weights, applies the gradients of whoever connects, and writes checkpoints.",
        epilog="Every key of coordinator.toml can also be set as FDTC_SECTION_KEY in the environment.",
    )
    commands.add_common_options(parser)
    parser.add_argument("--host", dest="network.host", metavar="ADDRESS", help="listen here (default: everywhere)")
    parser.add_argument("--port", dest="network.port", type=int, metavar="PORT", help="for workers (default 7100)")
    parser.add_argument("--http-port", dest="network.http_port", type=int, metavar="PORT", help="default 7180")
    parser.add_argument("--checkpoint-dir", dest="checkpointing.directory", metavar="DIR", help="default /checkpoints")
    parser.add_argument("--learning-rate", dest="training.learning_rate", type=float, metavar="R", help="default 1e-4")
    parser.add_argument("--min-workers", dest="training.min_workers", type=int, metavar="N", help="start at so many")
    return parser


def _run(options: argparse.Namespace) -> int:
    config = commands.read_config(CoordinatorConfig, options)
    models.require_trainable(config.model.name, config.training.method)
    model = models.load_model(config.model.name, config.training.seed)
    context = models.context_of(model, config.training.context)
    coordinator = Coordinator(models.parameters_of(model), config, context=context, model_name=config.model.name)
    del model  # its arrays were copied
    commands.on_termination(coordinator.shut_down)
    coordinator.start()
    while not coordinator.wait(3600):
        pass
    coordinator.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
