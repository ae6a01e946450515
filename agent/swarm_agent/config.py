"""The configuration of coordinator and worker: typed sections, and where each value comes from.

A value is taken from the command line, else from the environment (``FDTC_SECTION_KEY``), else from the TOML
file, else it is the default written here. A wrong key, type or range is refused with the file, the line, the
key and the nearest key that exists.

May import: ``errors``. Checking of types and ranges is msgspec's.
"""

import difflib
import os
import re
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import msgspec
from msgspec import Meta

from .errors import ConfigError

C = TypeVar("C", bound="Config")
# As much as a float64 counts one by one: what is above it is a slip of the hand, and overflows somewhere.
_MOST = 2**53
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Positive = Annotated[int, Meta(ge=1, le=_MOST)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
Ratio = Annotated[float, Meta(gt=0, le=1)]
NonNegative = Annotated[float, Meta(ge=0, le=1e30)]  # fits float32, and its product with a weight too
CompressionName = Literal["none", "fp16", "topk", "qsgd"]
Method = Literal["full", "lora"]


class Config(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Base of the two configurations: a set of sections."""

    @classmethod
    def of(cls, **keys: Any) -> Self:
        """Make a configuration from keys alone; each belongs to one section only.

        Raises:
            ConfigError: A key is unknown, or its value has a wrong type or is out of range.
        """
        sections = {key: name for name in cls.__struct_fields__ for key in _section_type(cls, name).__struct_fields__}
        flags = {}
        for key, value in keys.items():
            if key not in sections:
                raise ConfigError(f"{cls.__name__} has no key {key!r}{_nearest(key, sections)}")
            flags[f"{sections[key]}.{key}"] = value
        return load(cls, flags=flags, environ={})


class Section(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Base of all sections: immutable, every key has a default, unknown keys are refused."""


class Compression(Section, frozen=True):
    """How gradients travel."""

    type: CompressionName = "topk"
    topk_ratio: Ratio = 0.1  # of each tensor's entries, with topk
    levels: Annotated[int, Meta(ge=1, le=255)] = 255  # quantisation levels, with qsgd


class CoordinatorNetwork(Section, frozen=True):
    """Where the coordinator listens, and how long a silent worker is waited for."""

    host: str = "0.0.0.0"  # noqa: S104 - workers are on other machines
    port: Port = 7100
    http_port: Port = 7180
    heartbeat_interval_sec: Seconds = 10.0
    missed_heartbeats: Annotated[int, Meta(ge=1, le=1000)] = 3  # a worker silent for this many intervals has left
    restarts: bool = False  # something starts it again whenever it ends, so its workers wait for it


class CoordinatorTraining(Section, frozen=True):
    """The update rule. Formulas and sources are in ``optim``."""

    method: Method = "full"  # all weights, or adapters beside frozen ones
    lora_rank: Positive = 16  # inner size of each adapter, with lora
    optimizer: Literal["adam", "adamw", "sgd", "nesterov_outer"] = "adam"
    learning_rate: Annotated[float, Meta(gt=0, le=1e30)] = 1e-4
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Annotated[float, Meta(ge=1e-30, le=1)] = 1e-8  # below, it is nothing in float32
    momentum: Fraction = 0.0  # sgd and nesterov_outer
    nesterov: bool = False  # sgd
    weight_decay: NonNegative = 0.0  # on two-dimensional weights
    clip_norm: NonNegative = 0.0  # of each tensor's gradient; 0: no clipping
    clip_scope: Literal["tensor", "global"] = "tensor"
    schedule: Literal["constant", "cosine", "wsd"] = "constant"
    warmup_steps: Count = 0
    total_steps: Count = 0  # the length of the schedule; 0: that of `steps`
    final_lr_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.1
    steps: Count = 0  # stop at this version; 0: go on until told to stop
    min_workers: Positive = 1  # training starts when this many are there
    max_staleness: Count = 8  # versions; a gradient older than that is refused
    staleness_weight: bool = True  # scale an applied gradient by (1 + staleness) ** -0.5
    context: Count = 0  # tokens of one sample; 0: the model's own
    seed: Count = 0


class Model(Section, frozen=True):
    """Which model is trained."""

    name: str = "rwkv-tiny"  # a built-in one, or package.module:factory


class CoordinatorData(Section, frozen=True):
    """How the data is parted among workers."""

    path: str = ""  # the same as the workers'; named in /status
    shards: Annotated[int, Meta(ge=1, le=1_000_000)] = 64


class Checkpointing(Section, frozen=True):
    """When and where the coordinator saves its state."""

    interval: Positive = 1000  # versions
    directory: str = "/checkpoints"
    keep: Positive = 3


class CoordinatorConfig(Config, frozen=True):
    """All of ``coordinator.toml``."""

    network: CoordinatorNetwork = CoordinatorNetwork()
    model: Model = Model()
    training: CoordinatorTraining = CoordinatorTraining()
    data: CoordinatorData = CoordinatorData()
    checkpointing: Checkpointing = Checkpointing()
    compression: Compression = Compression()


class WorkerNetwork(Section, frozen=True):
    """Where the coordinator is and how patiently it is called."""

    coordinator_host: str = "localhost"
    coordinator_port: Port = 7100
    reconnect_attempts: Count = 10  # in a row; 0: for ever
    reconnect_delay_sec: Seconds = 5.0
    heartbeat_interval_sec: Seconds = 10.0


class Hardware(Section, frozen=True):
    """What this machine may use."""

    num_threads: Count = 0  # 0: the cores this container may use, two at most
    max_memory_mb: Count = 0  # 0: the container's limit, or the machine's memory
    profile: str = ""  # such as RPI4_4G; empty: detected


class WorkerTraining(Section, frozen=True):
    """How much this worker computes before it pushes."""

    method: Method = "full"  # the same as the coordinator's
    lora_rank: Positive = 16
    batch_size: Annotated[int, Meta(ge=0, lt=2**32)] = 0  # 0: from the profile
    accumulation_steps: Count = 0  # 0: as the coordinator assigns
    context: Count = 0  # tokens of one sample; 0: the model's own
    seed: Count = 0
    steps: Count = 0  # stop after this many pushes; 0: when the coordinator says so


class WorkerData(Section, frozen=True):
    """What this worker reads."""

    path: str = "shakespeare"  # the built-in text, a file, or package.module:factory
    tokenizer: Literal["bytes", "world"] = "bytes"
    shard_index: Annotated[int, Meta(ge=-1)] = -1  # -1: assigned by the coordinator
    on_broken: Literal["refuse", "skip"] = "refuse"


class WorkerCompression(Section, frozen=True):
    """How gradients travel; what is left out here is as the coordinator says."""

    type: CompressionName | None = None
    topk_ratio: Ratio | None = None
    levels: Annotated[int, Meta(ge=1, le=255)] | None = None


class WorkerConfig(Config, frozen=True):
    """All of ``worker.toml``."""

    network: WorkerNetwork = WorkerNetwork()
    model: Model = Model()
    hardware: Hardware = Hardware()
    training: WorkerTraining = WorkerTraining()
    data: WorkerData = WorkerData()
    compression: WorkerCompression = WorkerCompression()


PREFIX = "FDTC_"


def load(
    kind: type[C],
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> C:
    """Read a configuration.

    Args:
        kind: ``CoordinatorConfig`` or ``WorkerConfig``.
        file: A TOML file, or None.
        flags: Values given on the command line, by ``section.key``; None stands for "not given".
        environ: The environment; the process's own where None.
        options: What the flags are called on the command line, where that is not ``--key``.

    Raises:
        ConfigError: With file and line (or variable, or option), the key, and the nearest valid key.
    """
    values: dict[str, dict[str, object]] = {section: {} for section in kind.__struct_fields__}
    origin: dict[tuple[str, str], str] = {}
    if file is not None:
        _take_file(kind, file, values, origin)
    _take_environment(kind, os.environ if environ is None else environ, values, origin)
    for name, value in (flags or {}).items():
        if value is not None:
            section, key = name.split(".")
            values[section][key] = value
            origin[section, key] = f"option {(options or {}).get(name, '--' + key.replace('_', '-'))}"
    return kind(**{name: _convert(kind, name, keys, origin) for name, keys in values.items()})


def _take_file(
    kind: type[C], file: Path, values: dict[str, dict[str, object]], origin: dict[tuple[str, str], str]
) -> None:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror}. Name another file with --config.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start}). TOML files are UTF-8.") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    for section, keys in content.items():
        where = f"{file}:{_line_of(text, section)}"
        if section not in values:
            what = f"[{section}]" if isinstance(keys, dict) else f"the key {section!r} outside of a section"
            raise ConfigError(f"{where}: {what} is unknown{_nearest(section, values, '[{}]')}")
        if not isinstance(keys, dict):
            raise ConfigError(f"{where}: {section} is a section: write [{section}] and its keys below it.")
        known = _section_type(kind, section).__struct_fields__
        for key, value in keys.items():
            where = f"{file}:{_line_of(text, section, key)}"
            if key not in known:
                raise ConfigError(f"{where}: [{section}] has no key {key!r}{_nearest(key, known)}")
            values[section][key] = value
            origin[section, key] = where


def _take_environment(
    kind: type[C],
    environ: Mapping[str, str],
    values: dict[str, dict[str, object]],
    origin: dict[tuple[str, str], str],
) -> None:
    ours = _variables(kind)
    # Both commands may run in one environment, so a variable for the other one is no mistake.
    known = _variables(CoordinatorConfig) | _variables(WorkerConfig)
    for name, value in environ.items():
        if name in ours:
            section, key = ours[name]
            values[section][key] = value
            origin[section, key] = f"environment variable {name}"
        elif name.startswith(PREFIX) and name not in known:
            raise ConfigError(f"environment variable {name} is unknown{_nearest(name, known)}")


def _variables(kind: type[Config]) -> dict[str, tuple[str, str]]:
    return {
        f"{PREFIX}{section}_{key}".upper(): (section, key)
        for section in kind.__struct_fields__
        for key in _section_type(kind, section).__struct_fields__
    }


def _section_type(kind: type[Config], section: str) -> type[Section]:
    found: type[Section] = kind.__annotations__[section]
    return found


def _convert(kind: type[C], section: str, keys: dict[str, object], origin: dict[tuple[str, str], str]) -> Any:
    wanted = _section_type(kind, section)
    for key, value in keys.items():
        # Only text from the environment may be read as a number; "7" in a file is a wrong type.
        lax = origin[section, key].startswith("environment")
        try:
            keys[key] = getattr(msgspec.convert({key: value}, wanted, strict=not lax), key)
        except msgspec.ValidationError as error:
            reason = re.sub(r" - at `.*`$", "", str(error))
            if "enum" in reason:
                reason = f"there are {', '.join(_choices(wanted, key))}"
            raise ConfigError(f"{origin[section, key]}: [{section}] {key} = {_shown(value)}: {reason}") from error
    return wanted(**keys)


def _choices(section: type[Section], key: str) -> list[str]:
    field = next(field for field in msgspec.structs.fields(section) if field.name == key)
    literals = [field.type, *typing.get_args(field.type)]
    return [str(choice) for kind in literals for choice in typing.get_args(kind) if isinstance(choice, str)] or [
        str(choice) for choice in typing.get_args(field.type)
    ]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def _nearest(name: str, known: Mapping[str, object] | tuple[str, ...], form: str = "{}") -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if close:
        return f"; did you mean {form.format(close[0])}?"
    return f"; known here: {', '.join(form.format(k) for k in known)}."


def _line_of(text: str, section: str, key: str | None = None) -> int:
    """The line where a section or one of its keys is written, for error messages only."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*[\"']?([^\]\"']+?)[\"']?\s*\]", line)
        if header:
            inside = header[1] == section
            if inside and key is None:
                return number
        name = re.match(r"\s*[\"']?([\w.-]+?)[\"']?\s*=", line)
        if name and (name[1] == f"{section}.{key}" or name[1] == (key if inside else section)):
            return number
    return 1
