"""The stack file: a Compose file that ``docker stack deploy`` accepts, with our part under ``x-fdtc``.

`load` reads a built-in stack by name or any file by path and refuses a wrong one with every problem at once. What
Docker would ignore silently is a problem here. May import: ``schema``, ``errors``; ``fdtc`` for the profiles.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from . import schema
from .errors import StackError, UsageError
from .schema import Anything, Boolean, Either, Integer, Keys, Listing, Nothing, Number, Problem, Table, Text

if TYPE_CHECKING:
    from fdtc import ProfileSpec

Section = Mapping[str, Any]
COORDINATOR = "coordinator"
MOST_LOCAL_REPLICAS = 64
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class WorkerClass:
    """The part of ``x-fdtc.classes`` for one worker service.

    Attributes:
        service: Name of the service, such as ``worker-rpi``.
        profile: Name of the hardware profile that its workers are told to have.
        batch_size: Samples of one mini-batch.
        accumulation_steps: Mini-batches before a push.
        local_replicas: How many workers the local engine starts.
    """

    service: str
    profile: str
    batch_size: int
    accumulation_steps: int
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
        steps: The version at which the run ends; 0: it goes on until it is stopped.
        training: Keys of ``[training]``, without `steps`.
        compression: Keys of ``[compression]``.
        checkpointing: Keys of ``[checkpointing]``, without the directory.
        classes: Worker classes by service, in the file's order.
        content: The whole file as plain data.
    """

    name: str
    path: Path
    model: str
    data: str
    steps: int
    training: Section
    compression: Section
    checkpointing: Section
    classes: Mapping[str, WorkerClass]
    content: Mapping[str, Any]

    @property
    def replicas(self) -> dict[str, int]:
        """How many workers of each service the file wants on this machine."""
        return {service: worker.local_replicas for service, worker in self.classes.items()}

    def with_steps(self, steps: int) -> "Stack":
        """The same stack with another end, and a warm-up that is short enough for it."""
        warmup = min(self.training.get("warmup_steps", 0), steps // 10)
        return replace(self, steps=steps, training={**self.training, "warmup_steps": warmup})

    def as_data(self) -> dict[str, Any]:
        """The whole stack as plain data, with our defaults filled in."""
        ours = {
            "model": self.model,
            "data": self.data,
            "training": {**self.training, **({"steps": self.steps} if self.steps else {})},
            "compression": dict(self.compression),
            "checkpointing": dict(self.checkpointing),
            "classes": {service: _class_keys(worker) for service, worker in self.classes.items()},
        }
        # Anchors have done their work; their definitions under other x- keys need not be shown.
        compose = {key: value for key, value in self.content.items() if not key.startswith("x-")}
        return {**compose, "name": self.name, "x-fdtc": ours}


def load(name_or_path: str) -> Stack:
    """Read a stack.

    Args:
        name_or_path: The name of a built-in stack, or the path of a file (it has a slash, or ends in .yml/.yaml).

    Raises:
        UsageError: There is no such stack.
        StackError: It has mistakes; the message lists all of them with file, line and column.
    """
    path = find(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}", *_known_stacks()) from error
    except UnicodeDecodeError as error:
        raise StackError(f"{path}: not UTF-8 text (byte {error.start})") from error
    content, problems = schema.read(text, stack_schema())
    if not problems:
        problems = _check_meaning(content, text)
    if problems:
        raise StackError(_report(path, problems), f"swarmctl config --stack {name_or_path}   # to check again")
    return _build(path, content)


def is_path(name_or_path: str) -> bool:
    """Whether a file is meant, not a stack's name."""
    return "/" in name_or_path or name_or_path.endswith((".yml", ".yaml"))


def find(name_or_path: str) -> Path:
    """Find the file of a stack.

    Raises:
        UsageError: No built-in stack has this name.
    """
    if is_path(name_or_path):
        return Path(name_or_path).expanduser().absolute()
    built_in = built_in_stacks()
    if name_or_path in built_in:
        return built_in[name_or_path]
    nearest = schema.did_you_mean(name_or_path, built_in)
    raise UsageError(
        f"there is no built-in stack {name_or_path!r}{nearest}\nA file of your own is named by its path: ./my.yml",
        *_known_stacks(),
    )


def built_in_stacks() -> dict[str, Path]:
    """The stacks that come with swarmctl, by name."""
    package = Path(__file__).resolve().parent
    # A wheel carries them inside of the package; in the repository (an editable install) they lie beside it.
    for folder in (package / "stacks", package.parent.parent / "stacks"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yml"))}
    return {}


def render(stack: Stack) -> str:
    """The stack as YAML: merged, with our defaults filled in, as swarmctl understands it."""
    shown = stack.as_data()
    if "name" not in stack.content:  # `docker stack deploy` refuses this key, though Compose has it
        del shown["name"]
    return yaml.dump(shown, Dumper=_NoAliases, sort_keys=False, allow_unicode=True, width=100)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _build(path: Path, content: Section) -> Stack:
    ours = content["x-fdtc"]
    training = dict(ours.get("training", {}))
    steps = training.pop("steps", 0)
    return Stack(
        name=content.get("name") or _name_from(path),
        path=path,
        model=ours["model"],
        data=_absolute_data(ours["data"], path.parent),
        steps=steps,
        training=training,
        compression=ours.get("compression", {}),
        checkpointing=ours.get("checkpointing", {}),
        classes={service: _worker_class(service, keys) for service, keys in ours["classes"].items()},
        content=content,
    )


def _class_keys(worker: WorkerClass) -> dict[str, Any]:
    return {key: value for key, value in asdict(worker).items() if key != "service"}


def _name_from(path: Path) -> str:
    """A file without a `name` is called by its own, as far as that can be a stack's name."""
    return re.sub(r"[^a-z0-9_-]+", "-", path.stem.lower()).lstrip("-_0123456789").rstrip("-_") or "stack"


@cache
def _profiles() -> "Mapping[str, ProfileSpec]":
    # The protocol brings numpy with it, and only who reads a stack should wait for that.
    from fdtc import PROFILES

    return {profile.name: spec for profile, spec in PROFILES.items()}


def _worker_class(service: str, keys: Section) -> WorkerClass:
    profile = _profiles()[keys["profile"]]
    return WorkerClass(
        service=service,
        profile=keys["profile"],
        batch_size=keys.get("batch_size", profile.batch_size),
        accumulation_steps=keys.get("accumulation_steps", profile.accumulation_steps),
        local_replicas=keys.get("local_replicas", 1),
    )


def _absolute_data(data: str, folder: Path) -> str:
    """A path is meant where it begins like one; it counts from the stack file's folder, as in Compose."""
    if data.startswith(("./", "../", "/", "~")):
        return str((folder / Path(data).expanduser()).resolve())
    return data


def _check_meaning(content: Section, text: str) -> list[Problem]:
    """What the shape of the file can't say: names that must fit to each other."""
    where = _positions(text)
    problems: list[Problem] = []

    def refuse(path: str, message: str) -> None:
        line, column = where.get(path, (1, 1))
        problems.append(Problem(line, column, path, message))

    services = content["services"]
    name = content.get("name")
    if name is not None and not _NAME.fullmatch(name):
        refuse("name", f"{name!r} is no name for a stack: small letters, digits, - and _, a letter first")
    if COORDINATOR not in services:
        refuse("services", f"there is no service {COORDINATOR!r}")
    for service, keys in content["x-fdtc"]["classes"].items():
        path = f"x-fdtc.classes.{service}"
        if service not in services:
            refuse(path, f"there is no service of this name{schema.did_you_mean(service, services)}")
        wanted = _profiles()[keys["profile"]].hardware_class
        if service != f"worker-{wanted}":
            refuse(f"{path}.profile", f"{keys['profile']} is a profile of worker-{wanted}, not of {service}")
    for service in services:
        if service.startswith("worker-") and service not in content["x-fdtc"]["classes"]:
            refuse(f"services.{service}", f"x-fdtc.classes says nothing about {service}")
    return sorted(problems)


def _positions(text: str) -> dict[str, tuple[int, int]]:
    """Line and column of every key, by its path."""
    found: dict[str, tuple[int, int]] = {}

    def walk(node: yaml.Node | None, path: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = f"{path}.{key.value}" if path else key.value
                found.setdefault(here, (key.start_mark.line + 1, key.start_mark.column + 1))
                walk(value, here)

    walk(yaml.compose(text, Loader=yaml.SafeLoader), "")
    return found


def _report(path: Path, problems: list[Problem]) -> str:
    shown = _shortest(path)
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    lines = [f"{shown}:{p.line}:{p.column}: {p.path + ': ' if p.path else ''}{p.message}" for p in problems]
    return f"{shown} has {count}\n" + "\n".join(lines)


def _shortest(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def _known_stacks() -> tuple[str, ...]:
    return tuple(f"--stack {name}" for name in built_in_stacks())


# The schema ----------------------------------------------------------------------------------------------------

_TEXTS = Either((Text(), Listing(Text())), "a text or a list of texts")
_TEXT_OR_NUMBER = Either((Text(), Number(least=-1e18)), "a text or a number")
_PAIRS = Either((Listing(Text()), Table(Either((_TEXT_OR_NUMBER, Boolean()), "a text or a number"))), "a list or keys")
_NAMES = Either((Listing(Text()), Table(Anything())), "a list of names, or keys")
_IGNORED = "docker stack deploy ignores this key, so it is refused here"

_UPDATE = Keys(
    {
        "parallelism": Integer(),
        "delay": Text(),
        "failure_action": Text(("continue", "rollback", "pause")),
        "monitor": Text(),
        "max_failure_ratio": Number(most=1),
        "order": Text(("stop-first", "start-first")),
    }
)
_RESOURCE = Keys({"cpus": _TEXT_OR_NUMBER, "memory": Text(), "pids": Integer()})
_DEPLOY = Keys(
    {
        "mode": Text(("replicated", "global")),
        "replicas": Either((Integer(), Text(("auto",))), "a whole number or auto"),
        "endpoint_mode": Text(("dnsrr", "vip")),
        "labels": _PAIRS,
        "placement": Keys(
            {
                "constraints": Listing(Text()),
                "preferences": Listing(Keys({"spread": Text()})),
                "max_replicas_per_node": Integer(),
            }
        ),
        "update_config": _UPDATE,
        "rollback_config": _UPDATE,
        "restart_policy": Keys(
            {
                "condition": Text(("none", "on-failure", "any")),
                "delay": Text(),
                "max_attempts": Integer(),
                "window": Text(),
            }
        ),
        "resources": Keys({"limits": _RESOURCE, "reservations": _RESOURCE}),
    }
)
_HEALTH = Keys(
    {
        "test": _TEXTS,
        "interval": Text(),
        "timeout": Text(),
        "retries": Integer(),
        "start_period": Text(),
        "start_interval": Text(),
        "disable": Boolean(),
    }
)
_MOUNTED = Listing(Either((Text(), Table(Anything())), "a name or keys"))
_SERVICE = Keys(
    {
        "image": Text(),
        "command": _TEXTS,
        "entrypoint": _TEXTS,
        "environment": _PAIRS,
        "env_file": _TEXTS,
        "labels": _PAIRS,
        "deploy": _DEPLOY,
        "volumes": _MOUNTED,
        "configs": _MOUNTED,
        "secrets": _MOUNTED,
        "networks": _NAMES,
        "ports": Listing(Either((_TEXT_OR_NUMBER, Table(Anything())), "a port or keys")),
        "healthcheck": _HEALTH,
        "stop_grace_period": Text(),
        "stop_signal": Text(),
        "user": Text(),
        "working_dir": Text(),
        "hostname": Text(),
        "read_only": Boolean(),
        "tmpfs": _TEXTS,
        "init": Boolean(),
        "logging": Keys({"driver": Text(), "options": Table(_TEXT_OR_NUMBER)}),
        "ulimits": Table(Anything()),
        "sysctls": _PAIRS,
        "cap_add": Listing(Text()),
        "cap_drop": Listing(Text()),
        "dns": _TEXTS,
        "extra_hosts": _PAIRS,
    },
    required=("image",),
    extensions=True,
    refused={
        "build": f"{_IGNORED}; images are built with swarmctl build",
        "restart": f"{_IGNORED}; write deploy.restart_policy",
        "container_name": _IGNORED,
        "depends_on": f"{_IGNORED}; workers wait for the coordinator by themselves",
        "devices": _IGNORED,
        "privileged": _IGNORED,
        "links": _IGNORED,
        "network_mode": _IGNORED,
        "security_opt": _IGNORED,
        "mem_limit": f"{_IGNORED}; write deploy.resources.limits.memory",
        "cpus": f"{_IGNORED}; write deploy.resources.limits.cpus",
        "expose": _IGNORED,
        "scale": f"{_IGNORED}; write deploy.replicas",
    },
)
_SERVER_OBJECT = Either(
    (
        Keys(
            {
                "name": Text(),
                "external": Either((Boolean(), Keys({"name": Text()})), "true, false or keys"),
                "driver": Text(),
                "driver_opts": Table(Anything()),
                "attachable": Boolean(),
                "internal": Boolean(),
                "ipam": Anything(),
                "labels": _PAIRS,
                "file": Text(),
                "environment": Text(),
                "content": Text(),
                "template_driver": Text(),
            },
            extensions=True,
        ),
        Nothing(),
    ),
    "keys, or nothing,",
)
_TRAINING = Keys(
    {
        "learning_rate": Number(above=True),
        "optimizer": Text(("adam", "adamw", "sgd", "nesterov_outer")),
        "beta1": Number(most=1),
        "beta2": Number(most=1),
        "epsilon": Number(above=True),
        "momentum": Number(most=1),
        "nesterov": Boolean(),
        "schedule": Text(("constant", "cosine", "wsd")),
        "warmup_steps": Integer(),
        "total_steps": Integer(),
        "final_lr_fraction": Number(most=1),
        "clip_norm": Number(),
        "clip_scope": Text(("tensor", "global")),
        "weight_decay": Number(),
        "max_staleness": Integer(),
        "staleness_weight": Boolean(),
        "min_workers": Integer(least=1),
        "context": Integer(),
        "seed": Integer(),
        "steps": Integer(),
    }
)


@cache
def stack_schema() -> Keys:
    """What a stack file may hold."""
    ours = Keys(
        {
            "model": Text(),
            "data": Text(),
            "training": _TRAINING,
            "compression": Keys(
                {
                    "type": Text(("none", "fp16", "topk", "qsgd")),
                    "topk_ratio": Number(most=1, above=True),
                    "levels": Integer(least=1, most=255),
                }
            ),
            "checkpointing": Keys({"interval": Integer(least=1), "keep": Integer(least=1)}),
            "classes": Table(
                Keys(
                    {
                        "profile": Text(tuple(_profiles())),
                        "batch_size": Integer(least=1),
                        "accumulation_steps": Integer(least=1),
                        "local_replicas": Integer(most=MOST_LOCAL_REPLICAS),
                    },
                    required=("profile",),
                )
            ),
        },
        required=("model", "data", "classes"),
    )
    return Keys(
        {
            "version": _TEXT_OR_NUMBER,
            "name": Text(),
            "services": Table(_SERVICE),
            "networks": Table(_SERVER_OBJECT),
            "volumes": Table(_SERVER_OBJECT),
            "configs": Table(_SERVER_OBJECT),
            "secrets": Table(_SERVER_OBJECT),
            "x-fdtc": ours,
        },
        required=("services", "x-fdtc"),
        extensions=True,
    )
