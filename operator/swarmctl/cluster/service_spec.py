"""One service of a Compose file, in the long form that the schema reads, as the engine's raw service spec. Pure.

The fields and their defaults are those of ``docker stack deploy`` (docker/cli, cli/compose/convert); keys are the
engine API's. May import: ``state``; ``short_forms``, ``units``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ..short_forms import file_mode, host
from ..units import nano_cpus, nanoseconds, size_bytes
from .state import IMAGE, NAMESPACE, SERVICE, Raw

Keys = Mapping[str, Any]
_LOCAL_NETWORKS = {"bridge", "host", "none", "default"}


def service_spec(stack: str, name: str, keys: Keys, content: Keys) -> Raw:
    """The raw spec of a service; its networks, configs and secrets are named, not numbered.

    Args:
        stack: The stack's name.
        name: The service's within the stack.
        keys: The service.
        content: The whole file, where its networks, volumes, configs and secrets are declared.
    """
    deploy: Keys = keys.get("deploy") or {}
    labels = {**deploy.get("labels", {}), NAMESPACE: stack, IMAGE: keys["image"], SERVICE: name}
    spec: Raw = {
        "Name": f"{stack}_{name}",
        "Labels": labels,
        "TaskTemplate": _task(stack, name, keys, deploy, content),
        "Mode": _mode(deploy),
        "EndpointSpec": _endpoint(keys, deploy),
    }
    for key, ours in (("UpdateConfig", "update_config"), ("RollbackConfig", "rollback_config")):
        if deploy.get(ours) is not None:
            spec[key] = _update(deploy[ours])
    return spec


def _task(stack: str, name: str, keys: Keys, deploy: Keys, content: Keys) -> Raw:
    task: Raw = {
        "ContainerSpec": _container(stack, keys, content),
        "Resources": _resources(deploy.get("resources") or {}),
        "Placement": _placement(deploy.get("placement") or {}),
        "Networks": sorted(_networks(stack, name, keys, content), key=lambda network: str(network["Target"])),
    }
    if deploy.get("restart_policy") is not None:
        task["RestartPolicy"] = _restart(deploy["restart_policy"])
    if keys.get("logging") is not None:
        logging = keys["logging"]
        task["LogDriver"] = _some({"Name": logging.get("driver"), "Options": logging.get("options")})
    return task


# The container ---------------------------------------------------------------------------------------------------


def _container(stack: str, keys: Keys, content: Keys) -> Raw:
    dns = _some({"Nameservers": keys.get("dns"), "Search": keys.get("dns_search")})
    add, drop = _capabilities(keys)
    return _some(
        {
            "Image": keys["image"],
            "Command": keys.get("entrypoint"),
            "Args": keys.get("command"),
            "Hostname": keys.get("hostname"),
            "Hosts": _hosts(keys.get("extra_hosts")),
            "DNSConfig": dns or None,
            "Healthcheck": _health(keys["healthcheck"]) if keys.get("healthcheck") else None,
            "Env": _env(keys.get("environment") or {}),
            "Labels": {**keys.get("labels", {}), NAMESPACE: stack},
            "Dir": keys.get("working_dir"),
            "User": keys.get("user"),
            "Mounts": [_mount(stack, mount, content) for mount in keys.get("volumes") or ()],
            "StopGracePeriod": _duration(keys.get("stop_grace_period")),
            "StopSignal": keys.get("stop_signal"),
            "TTY": keys.get("tty"),
            "OpenStdin": keys.get("stdin_open"),
            "Secrets": _files(stack, keys, content, "secrets", "SecretName"),
            "Configs": _files(stack, keys, content, "configs", "ConfigName"),
            "ReadOnly": keys.get("read_only"),
            "Init": keys.get("init"),
            "Sysctls": keys.get("sysctls"),
            "CapabilityAdd": add,
            "CapabilityDrop": drop,
            "Ulimits": _ulimits(keys.get("ulimits") or {}),
        },
        keep={"Init"},
    )


def _env(environment: Keys) -> list[str]:
    """``NAME=VALUE``; a name alone takes the variable away that the image sets."""
    return sorted(name if value is None else f"{name}={value}" for name, value in environment.items())


def _hosts(hosts: Any) -> list[str]:
    """``ADDRESS NAME``, as in /etc/hosts."""
    entries = sorted(f"{name}:{address}" for name, address in hosts.items()) if isinstance(hosts, dict) else hosts or ()
    pairs = (host(entry).partition(":") for entry in entries)
    return [f"{address} {name}" for name, _, address in pairs]


def _health(health: Keys) -> Raw:
    if health.get("disable"):
        return {"Test": ["NONE"]}
    return _some(
        {
            "Test": health.get("test"),
            "Interval": _duration(health.get("interval")),
            "Timeout": _duration(health.get("timeout")),
            "Retries": health.get("retries"),
            "StartPeriod": _duration(health.get("start_period")),
            "StartInterval": _duration(health.get("start_interval")),
        }
    )


def _mount(stack: str, mount: Keys, content: Keys) -> Raw:
    kind, source = mount["type"], mount.get("source")
    raw: Raw = {"Type": kind, "Source": source, "Target": mount["target"], "ReadOnly": mount.get("read_only")}
    if kind == "volume" and source:
        declared = (content.get("volumes") or {}).get(source) or {}
        raw["Source"] = declared_name(stack, source, declared)
        raw["VolumeOptions"] = _volume_options(stack, mount, declared)
        return _some(raw, keep={"VolumeOptions"})
    if kind == "bind" and (mount.get("bind") or {}).get("propagation"):
        raw["BindOptions"] = {"Propagation": mount["bind"]["propagation"]}
    if kind == "tmpfs" and (mount.get("tmpfs") or {}).get("size"):
        raw["TmpfsOptions"] = {"SizeBytes": size_bytes(mount["tmpfs"]["size"])}
    return _some(raw)


def _volume_options(stack: str, mount: Keys, declared: Keys) -> Raw:
    options: Raw = {"NoCopy": (mount.get("volume") or {}).get("nocopy")}
    if not declared.get("external"):
        options["Labels"] = {**declared.get("labels", {}), NAMESPACE: stack}
        options["DriverConfig"] = _some({"Name": declared.get("driver"), "Options": declared.get("driver_opts")})
    return _some(options)


def _files(stack: str, keys: Keys, content: Keys, section: str, name_key: str) -> list[Raw]:
    """Configs or secrets that are files in the container, sorted, so that their order never makes a difference."""
    declared = content.get(section) or {}
    files = [
        {
            name_key: declared_name(stack, mount["source"], declared.get(mount["source"])),
            "File": {
                "Name": mount.get("target") or mount["source"],
                "UID": mount.get("uid") or "0",
                "GID": mount.get("gid") or "0",
                "Mode": mode_bits(mount.get("mode", 0o444)),
            },
        }
        for mount in keys.get(section) or ()
    ]
    return sorted(files, key=lambda entry: str(entry[name_key]))


def mode_bits(mode: int | str) -> int:
    """Permissions as a number, however they were written."""
    return mode if isinstance(mode, int) else file_mode(mode)


def _capabilities(keys: Keys) -> tuple[list[str], list[str]]:
    """As ``CAP_…``, sorted; what is both dropped and added is added, as docker's command line has it."""
    add, drop = ({_capability(name) for name in keys.get(key) or ()} for key in ("cap_add", "cap_drop"))
    everything = "ALL"
    if everything in add:
        add = {everything}
    if everything in drop:
        drop = {everything}
    return sorted(add), sorted(drop - add if everything not in add else drop)


def _capability(name: str) -> str:
    upper = name.strip().upper()
    return upper if upper == "ALL" or upper.startswith("CAP_") else f"CAP_{upper}"


def _ulimits(ulimits: Keys) -> list[Raw]:
    both = {
        name: value if isinstance(value, dict) else {"soft": value, "hard": value} for name, value in ulimits.items()
    }
    return [{"Name": name, "Soft": both[name]["soft"], "Hard": both[name]["hard"]} for name in sorted(both)]


# Around the container --------------------------------------------------------------------------------------------


def _networks(stack: str, name: str, keys: Keys, content: Keys) -> Iterator[Raw]:
    declared = content.get("networks") or {}
    attached = keys.get("networks") or {"default": None}
    for network in attached:
        options = (attached[network] if isinstance(attached, dict) else None) or {}
        target = declared_name(stack, network, declared.get(network))
        aliases = [*options.get("aliases", ()), *(() if target in _LOCAL_NETWORKS else (name,))]
        yield _some({"Target": target, "Aliases": aliases, "DriverOpts": options.get("driver_opts")})


def _resources(resources: Keys) -> Raw:
    limits, reservations = resources.get("limits"), resources.get("reservations")
    raw: Raw = {}
    if limits is not None:
        raw["Limits"] = _some({**_amounts(limits), "Pids": limits.get("pids")})
    if reservations is not None:
        generic = [
            {"DiscreteResourceSpec": {"Kind": spec["kind"], "Value": spec["value"]}}
            for spec in (entry["discrete_resource_spec"] for entry in reservations.get("generic_resources") or ())
        ]
        raw["Reservations"] = _some({**_amounts(reservations), "GenericResources": generic})
    return raw


def _amounts(keys: Keys) -> Raw:
    return {
        "NanoCPUs": nano_cpus(keys["cpus"]) if keys.get("cpus") else None,
        "MemoryBytes": size_bytes(keys["memory"]) if keys.get("memory") else None,
    }


def _placement(placement: Keys) -> Raw:
    preferences = [{"Spread": {"SpreadDescriptor": entry["spread"]}} for entry in placement.get("preferences") or ()]
    return _some(
        {
            "Constraints": placement.get("constraints"),
            "Preferences": preferences,
            "MaxReplicas": placement.get("max_replicas_per_node"),
        }
    )


def _restart(policy: Keys) -> Raw:
    return _some(
        {
            "Condition": policy.get("condition"),
            "Delay": _duration(policy.get("delay")),
            "MaxAttempts": policy.get("max_attempts"),
            "Window": _duration(policy.get("window")),
        },
        keep={"Delay", "MaxAttempts", "Window"},
    )


def _update(update: Keys) -> Raw:
    return {
        **_some(
            {
                "Delay": _duration(update.get("delay")),
                "FailureAction": update.get("failure_action"),
                "Monitor": _duration(update.get("monitor")),
                "Order": update.get("order"),
            }
        ),
        "Parallelism": update.get("parallelism", 1),
        "MaxFailureRatio": update.get("max_failure_ratio", 0),
    }


def _mode(deploy: Keys) -> Raw:
    if deploy.get("mode") == "global":
        return {"Global": {}}
    return {"Replicated": {"Replicas": deploy.get("replicas", 1)}}


def _endpoint(keys: Keys, deploy: Keys) -> Raw:
    ports = [
        _some(
            {
                "Protocol": port.get("protocol", "tcp"),
                "TargetPort": port["target"],
                "PublishedPort": int(port.get("published") or 0),
                "PublishMode": port.get("mode", "ingress"),
            }
        )
        for port in keys.get("ports") or ()
    ]
    ports.sort(key=lambda port: (port.get("PublishedPort", 0), port["TargetPort"], port["Protocol"]))
    return _some({"Mode": deploy.get("endpoint_mode", "vip"), "Ports": ports})


# Small things ----------------------------------------------------------------------------------------------------


def declared_name(stack: str, name: str, keys: Keys | None) -> str:
    """The name in the swarm of a network, volume, config or secret."""
    external = (keys or {}).get("external")
    if isinstance(external, dict):
        return str(external["name"])
    return str((keys or {}).get("name") or (name if external else f"{stack}_{name}"))


def _duration(text: str | None) -> int | None:
    return None if text is None else nanoseconds(text)


def _some(fields: Raw, keep: frozenset[str] | set[str] = frozenset()) -> Raw:
    """Without what says nothing, as the engine gives it back: empty, zero and false; `keep` only has to be there."""
    return {key: value for key, value in fields.items() if value or (key in keep and value is not None)}
