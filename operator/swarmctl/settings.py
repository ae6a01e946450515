"""The TOML files that coordinator and workers read, made from a stack. Pure; may import ``stack``."""

import json
from collections.abc import Mapping
from typing import Any

from .stack import Stack, WorkerClass

Sections = Mapping[str, Mapping[str, Any]]
_SHARED = ("method", "lora_rank", "context", "seed")  # keys of training that workers know too


def coordinator_sections(stack: Stack) -> Sections:
    """Sections of ``coordinator.toml``; where it listens and where checkpoints go is the engine's to say."""
    return {
        "model": {"name": stack.model},
        "training": {**stack.training, **({"steps": stack.steps} if stack.steps else {})},
        "data": {"path": stack.data},
        "checkpointing": dict(stack.checkpointing),
        "compression": dict(stack.compression),
    }


def worker_sections(stack: Stack, worker: WorkerClass) -> Sections:
    """Sections of the TOML file that all workers of one class share."""
    shared = {key: stack.training[key] for key in _SHARED if key in stack.training}
    return {
        "model": {"name": stack.model},
        "hardware": {"profile": worker.profile},
        "training": {
            "batch_size": worker.batch_size,
            "accumulation_steps": worker.accumulation_steps,
            **shared,
        },
        "data": {"path": stack.data, **({"tokenizer": stack.tokenizer} if stack.tokenizer else {})},
        "compression": dict(stack.compression),
    }


def toml(sections: Sections) -> str:
    """Write sections of numbers, texts and booleans as TOML; empty ones are left out."""
    blocks = [
        f"[{name}]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in keys.items())
        for name, keys in sections.items()
        if keys
    ]
    return "\n".join(blocks)


def _value(value: object) -> str:
    if isinstance(value, float):
        return repr(value)
    # For the other types JSON's notation is also TOML's, once DEL is escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
