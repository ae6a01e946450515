"""What swarmctl wants of a swarm, held against the real `docker stack deploy` of the same stack, on real engines."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operator_at_work import Operator

from swarmctl import stack
from swarmctl.cluster.apply import apply
from swarmctl.cluster.compose import wanted
from swarmctl.cluster.images import pins
from swarmctl.cluster.observe import observe_stack
from swarmctl.cluster.plan import plan
from swarmctl.cluster.state import SERVICE, Raw, Wanted
from swarmctl.console import Story
from swarmctl.fleet.engine import Engine
from swarmctl.stack_files import MOST_CONFIG_BYTES
from swarmctl.stack_schema import REFUSED as REFUSED_KEYS
from tests.lab import images
from tests.lab.fixtures import MakeLab
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.packages import Engine as EnginePackage
from tests.lab.system import eventually

EVERYTHING = Path(__file__).parents[1] / "cluster" / "everything.yml"
# Our own label; and what docker's command line always sends, though nobody asked for it.
MEANT = re.compile(
    rf"[\w-]+\.Labels\.{SERVICE}: ours .*docker's 'absent'"
    r"|[\w-]+\.TaskTemplate\.ContainerSpec\.Privileges.*: ours 'absent', docker's (None|False)"
)


class Manager:
    """A swarm of one node, asked by docker's own command line and through swarmctl's gate."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.node: LabNode = lab.nodes["m1"]
        self.engine = Engine(self.node.api, "m1")
        self.old = self.node.engine.version.startswith("20.")
        self.node.api.init_swarm(advertise_addr=self.node.address)
        for kind in ("config", "secret"):
            self.node.docker(kind, "create", f"everything-{kind}", "-", stdin="outside\n")
        self.node.docker("network", "create", "-d", "overlay", "everything-outside")

    def stack(self, path: Path, folder: Path) -> Path:
        """A stack file that this engine's docker knows all keys of."""
        text = path.read_text()
        if self.old:
            text, count = re.subn(r"\n +start_interval: .*|, driver_opts: {[^}]*ifname[^}]*}", "", text)
            assert count in {0, 2}
            text = text.replace(": ./", f": {path.parent}/")
        copy = folder / path.name if self.old else path
        copy.write_text(text) if self.old else None
        return copy

    def rendered(self, path: Path, **environment: str) -> str:
        return Operator(self.lab).run("config", "--stack", path, **environment).stdout

    def deploy_with_docker(self, name: str, text: str, resolve: str = "never") -> None:
        self.node.docker("stack", "deploy", "--resolve-image", resolve, "-c", "-", name, stdin=text)

    def deploy_with_swarmctl(self, wish: Wanted) -> None:
        for action in plan(wish, observe_stack(self.engine, wish.stack)):
            apply(action, self.engine)

    def remove(self, name: str) -> None:
        label = {"label": f"com.docker.stack.namespace={name}"}
        api = self.node.api
        lists = (api.services, api.networks, api.configs, api.secrets, api.tasks)

        def gone() -> bool:
            # Docker's command does not wait for the tasks that still use the network; it has to be typed again then.
            self.node.docker("stack", "rm", name, check=False)
            return not any(found(filters=label) for found in lists)

        eventually(gone, 60, f"{name} is gone")

    def specs(self, name: str) -> dict[str, Raw]:
        """Service specs as the engine has them, networks by name and nothing by number."""
        found = observe_stack(self.engine, name).services
        return {service: without_numbers(present.spec) for service, present in found.items()}

    def networks(self, name: str) -> dict[str, Raw]:
        label = {"label": f"com.docker.stack.namespace={name}"}
        found = [self.node.api.inspect_network(network["Id"]) for network in self.node.api.networks(filters=label)]
        numbers = {"Id", "Created", "Containers", "ConfigFrom", "Peers", "IPAM"}
        return {
            network["Name"]: {
                **{key: value for key, value in network.items() if key not in numbers},
                "Subnets": [entry["Subnet"] for entry in network["IPAM"]["Config"] or ()] * ("fdtc" in network["Name"]),
                "Options": {k: v for k, v in network["Options"].items() if "vxlanid" not in k},
            }
            for network in found
        }

    def stored(self, name: str) -> dict[str, Any]:
        label = {"label": f"com.docker.stack.namespace={name}"}
        found = [*self.node.api.configs(filters=label), *self.node.api.secrets(filters=label)]
        return {raw["Spec"]["Name"]: raw["Spec"] for raw in found}


def without_numbers(spec: Raw) -> Raw:
    """The spec without ids of configs and secrets."""
    return json.loads(json.dumps(spec), object_hook=lambda keys: {
        key: value for key, value in keys.items() if key not in {"SecretID", "ConfigID"}
    })  # fmt: skip


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every field by its path; what is empty counts for itself."""
    entries: Any = {}
    if isinstance(value, dict):
        entries = {f"{path}.{key}" if path else key: inner for key, inner in value.items()}
    elif isinstance(value, list):
        entries = {f"{path}[{number}]": inner for number, inner in enumerate(value)}
    return {k: v for at, inner in entries.items() for k, v in flat(inner, at).items()} if entries else {path: value}


def unlike(ours: dict[str, Raw], theirs: dict[str, Raw]) -> list[str]:
    """Fields that differ, but for those that are meant to."""
    mine, other = flat(ours), flat(theirs)
    fields = sorted(key for key in {*mine, *other} if mine.get(key, "absent") != other.get(key, "absent"))
    told = [f"{key}: ours {mine.get(key, 'absent')!r}, docker's {other.get(key, 'absent')!r}" for key in fields]
    return [line for line in told if not MEANT.match(line)]


@pytest.fixture(scope="module", params=["newest", "20.10"])
def manager(request: pytest.FixtureRequest, make_lab: MakeLab, lab_packages: list[EnginePackage]) -> Manager:
    if request.param != "newest" and not any(engine.version.startswith(request.param) for engine in lab_packages):
        pytest.skip(f"Docker {request.param} does not run here")
    nodes = [{"name": "m1", "hardware": "server"}]
    return Manager(make_lab({"engine": request.param, "registry": True, "nodes": nodes}))


def test_every_key_means_what_docker_stack_deploy_makes_of_it(manager: Manager, tmp_path: Path) -> None:
    file = manager.stack(EVERYTHING, tmp_path)
    manager.deploy_with_docker("everything", manager.rendered(file))
    theirs = manager.specs("everything"), manager.networks("everything"), manager.stored("everything")
    manager.remove("everything")
    wish = wanted(stack.load(str(file)), replicas={})
    manager.deploy_with_swarmctl(wish)
    ours = manager.specs("everything"), manager.networks("everything"), manager.stored("everything")
    assert len(wish.services) == 5
    assert set(theirs[0]) == set(ours[0]) == set(wish.services)
    assert unlike(ours[0], theirs[0]) == []
    assert ours[1:] == theirs[1:]
    # What the engine gives back is what was wanted: there is nothing to do a second time.
    assert plan(wish, observe_stack(manager.engine, "everything")) == []
    listed = manager.node.docker("stack", "ls", "--format", "{{.Name}} {{.Services}}").stdout.split("\n")
    assert "everything 5" in listed
    manager.remove("everything")


@pytest.mark.parametrize("name", ["rwkv-tiny", "rwkv-100m", "rwkv-1b"])
def test_docker_takes_a_built_in_file_as_it_is_and_only_settings_are_missing_then(
    manager: Manager, tmp_path: Path, name: str
) -> None:
    manager.deploy_with_docker(name, stack.find(name).read_text())
    bare = manager.specs(name)
    manager.remove(name)
    manager.deploy_with_docker(name, manager.rendered(stack.find(name)))
    rendered = manager.specs(name)
    manager.remove(name)
    found = stack.load(name)
    assert set(bare) == set(rendered) == {"coordinator", *found.classes}
    different = {line.partition(": ours")[0].rpartition("[")[0] for line in unlike(rendered, bare)}
    assert different == {f"{service}.TaskTemplate.ContainerSpec.Env" for service in rendered}


def test_what_other_commands_print_of_a_file_means_the_same(manager: Manager, tmp_path: Path) -> None:
    file = manager.stack(EVERYTHING, tmp_path)
    first = wanted(stack.load(str(file)), replicas={})
    for number, printed in enumerate(printed_by_docker(manager, file)):
        again = tmp_path / f"printed-{number}" / "everything.yml"
        again.parent.mkdir()
        again.write_text(printed)
        shutil.copy(EVERYTHING.with_name("words.txt"), again.parent)  # x-fdtc's paths stay as they were written
        second = wanted(stack.load(str(again)), replicas={})
        told = unlike(dict(second.services), dict(first.services))
        assert [line for line in told if "ours '/run/secrets/token', docker's 'token'" not in line] == []
        assert (second.networks, second.configs, second.secrets) == (first.networks, first.configs, first.secrets)
        assert (second.external, second.images, second.auto) == (first.external, first.images, first.auto)


def printed_by_docker(manager: Manager, file: Path) -> Iterator[str]:
    yield manager.rendered(file)
    if manager.old:  # has neither
        return
    printed = manager.node.docker("stack", "config", "-c", "-", stdin=manager.rendered(file)).stdout
    yield printed.replace("$", "$$")  # which docker forgets; it would not take its own output again
    yield manager.node.docker("compose", "-f", file, "-p", "everything", "config").stdout


def test_an_image_is_pinned_as_docker_pins_it(manager: Manager, tmp_path: Path) -> None:
    image = images.tiny(manager.lab, "swarm-agent", version="0.1.0")
    rendered = manager.rendered(stack.find("rwkv-tiny"), REGISTRY=manager.lab.registry)
    manager.deploy_with_docker("rwkv-tiny", rendered, "always")
    theirs = manager.specs("rwkv-tiny")
    manager.remove("rwkv-tiny")
    tiny, registry = stack.load("rwkv-tiny"), manager.lab.registry
    asked = list(wanted(tiny, replicas={}, registry=registry).images.values())
    assert set(asked) == {image}
    found = pins(asked, manager.engine, Story(), allow_unpinned=False)
    manager.deploy_with_swarmctl(wanted(tiny, replicas={}, registry=registry, pins=found))
    ours = manager.specs("rwkv-tiny")
    manager.remove("rwkv-tiny")
    assert unlike(ours, theirs) == []
    assert "@sha256:" in ours["coordinator"]["TaskTemplate"]["ContainerSpec"]["Image"]
    assert ours["coordinator"]["TaskTemplate"]["Placement"]["Platforms"] == [{"Architecture": "amd64", "OS": "linux"}]


def test_the_largest_file_is_kept_and_an_empty_one_is_not(manager: Manager) -> None:
    created = [
        manager.node.docker("config", "create", name, "-", stdin="x" * size, check=False).returncode
        for name, size in (("largest", MOST_CONFIG_BYTES), ("empty", 0))
    ]
    manager.node.docker("config", "rm", "largest")
    assert created == [0, 1]


# A value for every key that is refused because docker ignores or does not take it.
REFUSED = {
    "annotations": "[a=b]",
    "attach": "false",
    "blkio_config": "{ weight: 300 }",
    "build": ".",
    "cgroup": "host",
    "cgroup_parent": "m-executor",
    "cgroupns_mode": "host",
    "container_name": "mine",
    "cpu_count": "2",
    "cpu_percent": "50",
    "cpu_shares": "73",
    "cpus": "0.5",
    "cpuset": "0-1",
    "credential_spec": "{ file: a.json }",
    "depends_on": "[coordinator]",
    "develop": "{ watch: [] }",
    "devices": "[/dev/ttyUSB0]",
    "dns_opt": "[use-vc]",
    "domainname": "example.org",
    "expose": '["3000"]',
    "extends": "{ service: coordinator }",
    "external_links": "[other]",
    "gpus": "all",
    "group_add": "[mail]",
    "ipc": "host",
    "isolation": "default",
    "links": "[coordinator]",
    "mac_address": "02:42:ac:11:65:43",
    "mem_limit": "1g",
    "mem_reservation": "1g",
    "mem_swappiness": "10",
    "memswap_limit": "1g",
    "network_mode": "host",
    "oom_kill_disable": "true",
    "pid": "host",
    "pids_limit": "10",
    "platform": "linux/arm64",
    "post_start": "[]",
    "pre_stop": "[]",
    "privileged": "true",
    "profiles": "[a]",
    "pull_policy": "always",
    "restart": "always",
    "runtime": "runc",
    "scale": "2",
    "security_opt": "[no-new-privileges]",
    "shm_size": "64M",
    "storage_opt": "{ size: 1G }",
    "tmpfs": "[/tmp]",
    "userns_mode": "host",
    "uts": "host",
    "volumes_from": "[coordinator]",
}


def test_keys_are_refused_because_docker_ignores_or_does_not_know_them(manager: Manager) -> None:
    """One service a key: what has no effect there is told so, and what docker refuses is told so too."""
    assert set(REFUSED) == set(REFUSED_KEYS)
    version = "3.9" if manager.old else "3.13"
    known, unknown = {}, set()
    for key, value in REFUSED.items():
        text = f'version: "{version}"\nservices:\n  one:\n    image: a\n    {key}: {value}\n'
        typed = ("stack", "deploy", "--resolve-image", "never", "-c", "-", "probe")
        said = manager.node.docker(*typed, stdin=text, check=False)
        if said.returncode:
            assert re.search(f"Additional property {key} |unsupported options:\n\n{key}: ", said.stderr), said.stderr
            unknown.add(key)
        else:
            known[key] = manager.specs("probe")["one"]
    manager.remove("probe")
    told = {word: {key for key, why in REFUSED_KEYS.items() if word in why} for word in ("ignores", "does not take")}
    assert unknown == told["does not take"]
    plain = known["build"]
    assert {key for key in told["ignores"] & set(known) if known[key] != plain} == set()
