"""What a stack file may hold: Compose's keys that ``docker stack deploy`` heeds, and ours under ``x-fdtc``.

What is written short is read into the long form, so that the rest of swarmctl knows one form only. May import:
``schema``, ``json_schema``, ``short_forms``, ``units``; ``fdtc`` for the profiles.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from . import short_forms
from .json_schema import json_schema
from .schema import (
    Boolean,
    Either,
    Integer,
    Keys,
    Kind,
    Listing,
    Nothing,
    Number,
    Optional,
    Pairs,
    Scalar,
    Short,
    Table,
    Text,
    did_you_mean,
)
from .stack_files import looks_like_path
from .units import nano_cpus, nanoseconds, size_bytes

if TYPE_CHECKING:
    from fdtc import ProfileSpec

# The agent's own, which the operator can't ask.
MODELS = ("rwkv-tiny", "rwkv-small", "rwkv-100m", "rwkv-0.1b", "rwkv-0.4b", "rwkv-1b", "rwkv-1.5b")
TEXTS = ("shakespeare",)
MOST_LOCAL_REPLICAS = 64
MOST_REPLICAS = 10_000
SECTIONS = ("networks", "volumes", "configs", "secrets")

_IGNORED = "docker stack deploy ignores this key, so it is refused here"
_UNKNOWN = "docker stack deploy does not take this key"


def _one_or_more(kind: Kind) -> Kind:
    return Short(lambda text: [text], Listing(kind), "a text or a list of texts")


_DURATION = Text(check=nanoseconds)
_SIZE = Scalar(check=size_bytes)
_WORDS = Optional(Short(short_forms.words, Listing(Text()), "a text or a list of texts"))
_UPDATE = Keys(
    {
        "parallelism": Integer(),
        "delay": _DURATION,
        "failure_action": Text(("continue", "rollback", "pause")),
        "monitor": _DURATION,
        "max_failure_ratio": Number(most=1),
        "order": Text(("stop-first", "start-first")),
    }
)
_ROLLBACK = Keys({**_UPDATE.known, "failure_action": Text(("continue", "pause"))})
_DISCRETE = Keys({"kind": Text(), "value": Integer()}, required=("kind", "value"))
_RESOURCES = Keys(
    {
        "limits": Keys({"cpus": Scalar(check=nano_cpus), "memory": _SIZE, "pids": Integer()}),
        "reservations": Keys(
            {
                "cpus": Scalar(check=nano_cpus),
                "memory": _SIZE,
                "generic_resources": Listing(Keys({"discrete_resource_spec": _DISCRETE})),
            },
            refused={"devices": f"{_UNKNOWN}; it reserves generic_resources"},
        ),
    }
)
_DEPLOY = Keys(
    {
        "mode": Text(("replicated", "global")),
        "replicas": Integer(most=MOST_REPLICAS),
        "endpoint_mode": Text(("dnsrr", "vip")),
        "labels": Pairs(),
        "placement": Keys(
            {
                "constraints": Listing(Text(check=short_forms.constraint)),
                "preferences": Listing(Keys({"spread": Text()}, required=("spread",))),
                "max_replicas_per_node": Integer(),
            }
        ),
        "update_config": _UPDATE,
        "rollback_config": _ROLLBACK,
        "restart_policy": Keys(
            {
                "condition": Text(("none", "on-failure", "any")),
                "delay": _DURATION,
                "max_attempts": Integer(),
                "window": _DURATION,
            }
        ),
        "resources": _RESOURCES,
    }
)
_HEALTH = Keys(
    {
        "test": Short(lambda text: ["CMD-SHELL", text], Listing(Text()), "a text or a list of texts"),
        "interval": _DURATION,
        "timeout": _DURATION,
        "retries": Integer(),
        "start_period": _DURATION,
        "start_interval": _DURATION,
        "disable": Boolean(),
    }
)
_MOUNT = Keys(
    {
        "type": Text(("volume", "bind", "tmpfs")),
        "source": Text(),
        "target": Text(),
        "read_only": Boolean(),
        "volume": Keys({"nocopy": Boolean()}),
        # `docker compose config` always says create_host_path; on a swarm nobody creates it.
        "bind": Keys({"propagation": Text(short_forms.PROPAGATIONS), "create_host_path": Boolean()}),
        "tmpfs": Keys({"size": _SIZE}),
    },
    required=("type", "target"),
    refused={"consistency": _IGNORED},
)
_MODE = Either((Integer(most=0o7777), Scalar(check=short_forms.file_mode)), "a file mode such as 0444")
_MOUNTED_FILE = Short(
    lambda text: {"source": text},
    Keys({"source": Text(), "target": Text(), "uid": Scalar(), "gid": Scalar(), "mode": _MODE}, required=("source",)),
    "a name or keys",
)
_PORT = Short(
    short_forms.port,
    Keys(
        {
            "target": Integer(least=1, most=65535),
            "published": Scalar(check=short_forms.published_port),
            "protocol": Text(("tcp", "udp", "sctp")),
            "mode": Text(("ingress", "host")),
        },
        required=("target",),
        refused={
            "host_ip": "a swarm publishes on every address of a node; leave host_ip out",
            "app_protocol": _UNKNOWN,
            "name": _UNKNOWN,
        },
    ),
    "a port or keys",
)
_ATTACHED = Either((Nothing(), Keys({"aliases": Listing(Text()), "driver_opts": Table(Scalar())})), "keys, or nothing,")
_NETWORKS = Either((Listing(Text()), Table(_ATTACHED)), "a list of names, or keys,")
_ULIMIT = Either(
    (
        Integer(least=-1),
        Keys({"soft": Integer(least=-1), "hard": Integer(least=-1)}, required=("soft", "hard")),
    ),
    "a whole number, or soft and hard,",
)
REFUSED: Mapping[str, str] = {
    "build": f"{_IGNORED}; images are built with swarmctl build",
    "container_name": f"{_IGNORED}; a service has several containers",
    "cpus": f"{_UNKNOWN}; write deploy.resources.limits.cpus",
    "depends_on": f"{_IGNORED}; workers wait for the coordinator by themselves",
    "expose": _IGNORED,
    "extends": f"{_UNKNOWN}; use a YAML anchor",
    "gpus": f"{_UNKNOWN}; write deploy.resources.reservations.generic_resources",
    "links": f"{_IGNORED}; services of one network find each other by name",
    "mem_limit": f"{_UNKNOWN}; write deploy.resources.limits.memory",
    "mem_reservation": f"{_UNKNOWN}; write deploy.resources.reservations.memory",
    "network_mode": f"{_IGNORED}; write networks",
    "restart": "docker stack deploy heeds deploy.restart_policy instead; write that",
    "scale": f"{_UNKNOWN}; write deploy.replicas",
    "tmpfs": f"{_IGNORED}; write volumes: [{{ type: tmpfs, target: /tmp }}]",
    **dict.fromkeys(
        (
            *("cgroup_parent", "cgroupns_mode", "devices", "domainname", "external_links", "ipc"),
            *("mac_address", "pid", "privileged", "security_opt", "shm_size", "userns_mode"),
        ),
        _IGNORED,
    ),
    **dict.fromkeys(
        (
            *("annotations", "attach", "blkio_config", "cgroup", "cpu_count", "cpu_percent", "cpu_shares", "cpuset"),
            *("develop", "dns_opt", "mem_swappiness", "memswap_limit", "oom_kill_disable", "pids_limit", "platform"),
            *(
                "group_add",
                "post_start",
                "pre_stop",
                "profiles",
                "pull_policy",
                "runtime",
                "storage_opt",
                "uts",
                "volumes_from",
            ),
        ),
        _UNKNOWN,
    ),
    **dict.fromkeys(("credential_spec", "isolation"), "this key is for Windows"),
}
_SERVICE = Keys(
    {
        "image": Text(),
        "command": _WORDS,
        "entrypoint": _WORDS,
        "environment": Pairs(nothing=True),
        "env_file": _one_or_more(Text()),
        "labels": Pairs(),
        "deploy": _DEPLOY,
        "volumes": Listing(Short(short_forms.volume, _MOUNT, "a volume or keys")),
        "configs": Listing(_MOUNTED_FILE),
        "secrets": Listing(_MOUNTED_FILE),
        "networks": _NETWORKS,
        "ports": Listing(_PORT),
        "healthcheck": _HEALTH,
        "stop_grace_period": _DURATION,
        "stop_signal": Text(),
        "user": Text(),
        "working_dir": Text(),
        "hostname": Text(),
        "read_only": Boolean(),
        "init": Boolean(),
        "tty": Boolean(),
        "stdin_open": Boolean(),
        "logging": Keys({"driver": Text(), "options": Table(Scalar())}),
        "ulimits": Table(_ULIMIT),
        "sysctls": Pairs(),
        "cap_add": Listing(Text()),
        "cap_drop": Listing(Text()),
        "dns": _one_or_more(Text()),
        "dns_search": _one_or_more(Text()),
        "extra_hosts": Either((Listing(Text(check=short_forms.host)), Table(Scalar())), "a list or keys"),
    },
    required=("image",),
    extensions=True,
    refused=REFUSED,
)


def _declared(known: Mapping[str, Kind], refused: Mapping[str, str] | None = None) -> Kind:
    """One network, volume, config or secret of the whole stack."""
    external = Either((Boolean(), Keys({"name": Text()}, required=("name",))), "true, false or keys")
    ours: dict[str, Kind] = {"name": Text(), "external": external, "labels": Pairs(), **known}
    return Either((Nothing(), Keys(ours, extensions=True, refused=refused or {})), "keys, or nothing,")


_DRIVER: Mapping[str, Kind] = {"driver": Text(), "driver_opts": Table(Scalar())}
_SUBNET = Keys({"subnet": Text()}, required=("subnet",), refused={"gateway": _UNKNOWN, "ip_range": _UNKNOWN})
_IPAM = Keys({"driver": Text(), "config": Listing(_SUBNET)})
_FILE_ONLY = {
    **dict.fromkeys(("content", "environment"), f"{_UNKNOWN}; put it into a file and write file: PATH"),
    **dict.fromkeys(("driver", "driver_opts", "template_driver"), "swarmctl brings files along as they are"),
}
_DECLARED: Mapping[str, Kind] = {
    "networks": _declared(
        {**_DRIVER, "attachable": Boolean(), "internal": Boolean(), "ipam": _IPAM},
        dict.fromkeys(("enable_ipv4", "enable_ipv6"), _UNKNOWN),
    ),
    "volumes": _declared(_DRIVER),
    "configs": _declared({"file": Text()}, _FILE_ONLY),
    "secrets": _declared({"file": Text()}, _FILE_ONLY),
}
_TRAINING = Keys(
    {
        "method": Text(("full", "lora")),
        "lora_rank": Integer(least=1),
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
_COMPRESSION = Keys(
    {
        "type": Text(("none", "fp16", "topk", "qsgd")),
        "topk_ratio": Number(most=1, above=True),
        "levels": Integer(least=1, most=255),
    }
)


@cache
def profiles() -> "Mapping[str, ProfileSpec]":
    """What each hardware profile stands for, by its name."""
    # The protocol brings numpy with it, and only who reads a stack should wait for that.
    from fdtc import PROFILES

    return {profile.name: spec for profile, spec in PROFILES.items()}


def _model(name: str) -> None:
    if ":" not in name and name not in MODELS:
        raise ValueError(
            f"there is no built-in model {name!r} (your own: package.module:factory){did_you_mean(name, MODELS)}"
        )


def _data(name: str) -> None:
    if not looks_like_path(name) and ":" not in name and name not in TEXTS:
        raise ValueError(
            f"there is no built-in text {name!r} (a file: ./its-path.txt; your own code: package.module:factory)"
            f"{did_you_mean(name, TEXTS)}"
        )


@cache
def stack_schema() -> Keys:
    """What a stack file may hold."""
    worker_class = Keys(
        {
            "profile": Text(tuple(profiles())),
            "batch_size": Integer(least=1),
            "accumulation_steps": Integer(least=1),
            "replicas": Either((Integer(most=MOST_REPLICAS), Text(("auto",))), "a whole number or auto"),
            "local_replicas": Integer(most=MOST_LOCAL_REPLICAS),
        },
        required=("profile",),
    )
    ours = Keys(
        {
            "model": Text(check=_model),
            "data": Text(check=_data),
            "tokenizer": Text(("bytes", "world")),
            "image": Text(),
            "training": _TRAINING,
            "compression": _COMPRESSION,
            "checkpointing": Keys({"interval": Integer(least=1), "keep": Integer(least=1)}),
            "classes": Table(worker_class),
        },
        required=("model", "data", "classes"),
    )
    return Keys(
        {
            "version": Scalar(),
            "name": Text(),
            "services": Table(_SERVICE),
            **{section: Table(kind) for section, kind in _DECLARED.items()},
            "x-fdtc": ours,
        },
        required=("services", "x-fdtc"),
        extensions=True,
    )


def published() -> dict[str, Any]:
    """The same for editors, as a JSON schema."""
    title = "A stack of swarmctl: a Compose file for docker stack deploy, and what is trained, under x-fdtc"
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **json_schema(stack_schema())}
