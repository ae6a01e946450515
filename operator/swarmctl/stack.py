"""The stack file: a Compose file that ``docker stack deploy`` accepts, with our part under ``x-fdtc``.

`load` reads a built-in stack by name or any file by path and refuses a wrong one with every problem at once. What
Docker would ignore silently is a problem here. May import: ``schema``, ``stack_schema``, ``stack_files``,
``stack_checks``, ``errors``.
"""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import schema, stack_checks, stack_files
from .errors import StackError, UsageError
from .paths import expanded
from .schema import Problem
from .stack_schema import profiles, stack_schema

Section = Mapping[str, Any]


@dataclass(frozen=True)
class WorkerClass:
    """The part of ``x-fdtc.classes`` for one worker service.

    Attributes:
        service: Name of the service, such as ``worker-rpi``.
        profile: Name of the hardware profile that its workers are told to have.
        batch_size: Samples of one mini-batch.
        accumulation_steps: Mini-batches before a push.
        replicas: How many workers a swarm is to have; None: as many as there are nodes for them.
        local_replicas: How many workers the local engine starts.
    """

    service: str
    profile: str
    batch_size: int
    accumulation_steps: int
    replicas: int | None
    local_replicas: int

    @property
    def hardware_class(self) -> str:
        """Such as ``rpi``: what nodes are labelled with."""
        return self.service.removeprefix("worker-")


@dataclass(frozen=True)
class Stack:
    """A stack that has been read and found right.

    Attributes:
        name: The file's own ``name``, or its stem.
        path: Where it was read from.
        model: A built-in model's name, or ``package.module:factory``.
        data: A built-in text's name, or a path, absolute by now.
        tokenizer: Its name; empty: the agent's default.
        image: Of coordinator and workers; empty: what each service's own ``image`` says.
        steps: The version at which the run ends; 0: it goes on until it is stopped.
        training: Keys of ``[training]``, without `steps`.
        compression: Keys of ``[compression]``.
        checkpointing: Keys of ``[checkpointing]``, without the directory.
        classes: Worker classes by service, in the file's order.
        content: The whole file as plain data: short forms written out, variables filled in, paths absolute.
        files: What is in the files that it names (configs, secrets, small data), by absolute path.
        warnings: What is allowed and yet hardly meant, each with its place.
    """

    name: str
    path: Path
    model: str
    data: str
    tokenizer: str
    image: str
    steps: int
    training: Section
    compression: Section
    checkpointing: Section
    classes: Mapping[str, WorkerClass]
    content: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # there may be secrets in it
    warnings: tuple[str, ...] = ()

    @property
    def wishes(self) -> dict[str, int | None]:
        """How many workers of each service the file wants in a swarm; None: as many as there are nodes for them."""
        return {service: worker.replicas for service, worker in self.classes.items()}

    @property
    def replicas(self) -> dict[str, int]:
        """How many workers of each service the file wants on this machine."""
        return {service: worker.local_replicas for service, worker in self.classes.items()}

    def with_steps(self, steps: int) -> "Stack":
        """The same stack with another end, and a warm-up that is short enough for it."""
        warmup = min(self.training.get("warmup_steps", 0), steps // 10)
        return replace(self, steps=steps, training={**self.training, "warmup_steps": warmup})

    def ours(self) -> dict[str, Any]:
        """What is under ``x-fdtc``, with our defaults filled in."""
        return {
            "model": self.model,
            "data": self.data,
            **({"tokenizer": self.tokenizer} if self.tokenizer else {}),
            **({"image": self.image} if self.image else {}),
            "training": {**self.training, **({"steps": self.steps} if self.steps else {})},
            "compression": dict(self.compression),
            "checkpointing": dict(self.checkpointing),
            "classes": {service: _class_keys(worker) for service, worker in self.classes.items()},
        }


def load(name_or_path: str, environ: Mapping[str, str] | None = None) -> Stack:
    """Read a stack.

    Args:
        name_or_path: The name of a built-in stack, or the path of a file (it has a slash, or ends in .yml/.yaml).
        environ: Values for ``${NAME}`` in it; the process's own environment where None.

    Raises:
        UsageError: There is no such stack.
        StackError: It has mistakes; the message lists all of them with file, line and column.
    """
    path = find(name_or_path)
    environ = os.environ if environ is None else environ
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}", *_known_stacks()) from error
    except UnicodeDecodeError as error:
        raise StackError(f"{path}: not UTF-8 text (byte {error.start})") from error
    reading = schema.read_whole(text, stack_schema(), environ)
    problems, warnings, files = list(reading.problems), [], {}
    if isinstance(reading.value, dict):  # what is not broken of it is looked at further
        files = stack_files.resolve(reading.value, path.parent, environ, reading.places, problems)
        found = stack_checks.check(reading.value, _name(path, reading.value), reading.places)
        problems += found.problems
        warnings = [_line(path, warning) for warning in found.warnings]
    if problems:
        told = _report(path, schema.once(problems))
        raise StackError(told, f"swarmctl config --stack {name_or_path}   # to check again")
    return _build(path, reading.value, files, tuple(warnings))


def is_path(name_or_path: str) -> bool:
    """Whether a file is meant, not a stack's name."""
    return "/" in name_or_path or name_or_path.endswith((".yml", ".yaml"))


def find(name_or_path: str) -> Path:
    """Find the file of a stack.

    Raises:
        UsageError: No built-in stack has this name.
    """
    if is_path(name_or_path):
        return expanded(name_or_path).absolute()
    built_in = built_in_stacks()
    if name_or_path in built_in:
        return built_in[name_or_path]
    nearest = schema.did_you_mean(name_or_path, built_in)
    raise UsageError(
        f"there is no built-in stack {name_or_path!r}{nearest}\nA file of your own is named by its path: ./my.yml",
        *_known_stacks(),
    )


def to_type(name: str, path: Path | None = None) -> str:
    """What to type after ``--stack`` to deploy a stack: a file of the user's own is named by its path."""
    if name in (built_in := built_in_stacks()) and path in {None, built_in[name]}:
        return name
    return shlex.quote(str(path)) if path else "PATH-OF-ITS-FILE"


def built_in_stacks() -> dict[str, Path]:
    """The stacks that come with swarmctl, by name."""
    package = Path(__file__).resolve().parent
    # A wheel carries them inside of the package; in the repository (an editable install) they lie beside it.
    for folder in (package / "stacks", package.parent.parent / "stacks"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yml"))}
    return {}


def _build(path: Path, content: Section, files: Mapping[str, bytes], warnings: tuple[str, ...]) -> Stack:
    ours = content["x-fdtc"]
    training = dict(ours.get("training", {}))
    steps = training.pop("steps", 0)
    return Stack(
        name=_name(path, content),
        path=path,
        model=ours["model"],
        data=ours["data"],
        tokenizer=ours.get("tokenizer", ""),
        image=ours.get("image", ""),
        steps=steps,
        training=training,
        compression=ours.get("compression", {}),
        checkpointing=ours.get("checkpointing", {}),
        classes={service: _worker_class(service, keys) for service, keys in ours["classes"].items()},
        content=content,
        files=files,
        warnings=warnings,
    )


def _class_keys(worker: WorkerClass) -> dict[str, Any]:
    keys = {key: value for key, value in asdict(worker).items() if key != "service"}
    return {**keys, "replicas": "auto" if worker.replicas is None else worker.replicas}


def _name(path: Path, content: Section) -> str:
    """A file without a `name` is called by its own, as far as that can be a stack's name."""
    name = content.get("name")
    return str(name or re.sub(r"[^a-z0-9_-]+", "-", path.stem.lower()).lstrip("-_0123456789").rstrip("-_") or "stack")


def _worker_class(service: str, keys: Section) -> WorkerClass:
    profile = profiles()[keys["profile"]]
    replicas = keys.get("replicas", "auto")
    return WorkerClass(
        service=service,
        profile=keys["profile"],
        batch_size=keys.get("batch_size", profile.batch_size),
        accumulation_steps=keys.get("accumulation_steps", profile.accumulation_steps),
        replicas=None if replicas == "auto" else replicas,
        local_replicas=keys.get("local_replicas", 1),
    )


def _report(path: Path, problems: list[Problem]) -> str:
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    return "\n".join([f"{_shortest(path)} has {count}", *(_line(path, problem) for problem in problems)])


def _line(path: Path, problem: Problem) -> str:
    key = f"{problem.path}: " if problem.path else ""
    return f"{_shortest(path)}:{problem.line}:{problem.column}: {key}{problem.message}"


def _shortest(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def _known_stacks() -> tuple[str, ...]:
    return tuple(f"--stack {name}" for name in built_in_stacks())
