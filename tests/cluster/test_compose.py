"""What a stack file wants of a swarm. That docker means the same is shown with real engines, in tests/swarm."""

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from swarm_agent.config import CoordinatorConfig, WorkerConfig
from swarm_agent.config import load as read_settings
from swarmctl import stack
from swarmctl.cluster.compose import Pin, Wanted, wanted
from swarmctl.cluster.render import as_data, render
from swarmctl.cluster.state import IMAGE, NAMESPACE, SERVICE
from swarmctl.errors import StackError
from swarmctl.json_schema import json_schema
from swarmctl.schema import Either, Keys, Kind, Listing, Optional, Short, Table
from swarmctl.stack_schema import published, stack_schema

HERE = Path(__file__).parent
EVERYTHING = HERE / "everything.yml"
DOCS = HERE.parents[1] / "docs"
BUILT_IN = ["rwkv-tiny", "rwkv-100m", "rwkv-1b"]


def of(name: str | Path, **options: Any) -> Wanted:
    return wanted(stack.load(str(name)), **{"replicas": {}, **options})


def container(wish: Wanted, service: str) -> dict[str, Any]:
    found: dict[str, Any] = wish.services[service]["TaskTemplate"]["ContainerSpec"]
    return found


def environment(wish: Wanted, service: str) -> dict[str, str]:
    return dict(entry.partition("=")[::2] for entry in container(wish, service)["Env"])


def changed(tmp_path: Path, *changes: tuple[str, str], of_file: Path = EVERYTHING) -> Path:
    """A copy of a stack beside the files that it names."""
    text = of_file.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    for file in ("words.txt", "greeting.txt", "token.txt", "settings.env"):
        (tmp_path / file).write_bytes((HERE / file).read_bytes())
    copy = tmp_path / of_file.name
    copy.write_text(text)
    return copy


# Names and numbers


def test_names_and_labels_are_those_that_docker_stack_understands() -> None:
    tiny = of("rwkv-tiny")
    assert next(iter(tiny.services)) == "coordinator"
    for name, spec in tiny.services.items():
        assert spec["Name"] == f"rwkv-tiny_{name}"
        assert spec["Labels"] == {NAMESPACE: "rwkv-tiny", IMAGE: "swarm-agent:0.1.0", SERVICE: name}
        assert container(tiny, name)["Labels"] == {NAMESPACE: "rwkv-tiny"}
        assert spec["TaskTemplate"]["Networks"] == [{"Target": "rwkv-tiny_fdtc", "Aliases": [name]}]
    assert list(tiny.networks) == ["rwkv-tiny_fdtc"]
    assert tiny.networks["rwkv-tiny_fdtc"]["Labels"] == {NAMESPACE: "rwkv-tiny"}


def test_what_is_external_is_named_with_its_kind_and_not_made() -> None:
    everything = of(EVERYTHING)
    assert set(everything.external) == {
        ("network", "everything-outside"),
        ("config", "everything-config"),
        ("secret", "everything-secret"),
    }
    assert not {name for _, name in everything.external} & {
        *everything.networks, *everything.configs, *everything.secrets,
    }  # fmt: skip


def test_configs_and_secrets_have_names_that_change_with_what_they_hold(tmp_path: Path) -> None:
    before = of(EVERYTHING)
    digest = hashlib.sha256((HERE / "greeting.txt").read_bytes()).hexdigest()[:12]
    assert before.configs[f"everything_greeting-{digest}"].labels == {"tone": "kind", NAMESPACE: "everything"}
    assert any(name.startswith("everything-token-") for name in before.secrets)
    file = changed(tmp_path)
    same = of(file)
    (tmp_path / "greeting.txt").write_text("Good evening\n")
    after = of(file)
    assert set(same.configs) == set(before.configs)
    assert len(set(after.configs) & set(before.configs)) == 1  # the data stays
    mounted = {entry["ConfigName"] for entry in container(after, "coordinator")["Configs"]}
    assert len(set(after.configs) & mounted) == 1


def test_the_number_of_replicas_is_asked_for_or_the_files_or_one() -> None:
    everything = of(EVERYTHING, replicas={"worker-laptop": 7})
    modes = {name: spec["Mode"] for name, spec in everything.services.items()}
    assert modes == {
        "coordinator": {"Replicated": {"Replicas": 1}},
        "worker-rpi": {"Replicated": {"Replicas": 3}},
        "worker-laptop": {"Replicated": {"Replicas": 7}},
        "page": {"Replicated": {"Replicas": 2}},
        "everywhere": {"Global": {}},
    }
    assert everything.auto == ("worker-laptop",)
    assert stack.load(str(EVERYTHING)).wishes == {"worker-rpi": 3, "worker-laptop": None}
    assert of("rwkv-tiny").services["worker-rpi"]["Mode"] == {"Replicated": {"Replicas": 1}}


# The image


@pytest.mark.parametrize(
    ("image", "registry", "expected"),
    [
        ("swarm-agent:0.2.0", None, "swarm-agent:0.2.0"),
        ("swarm-agent:0.2.0", "10.0.0.1:5000", "10.0.0.1:5000/swarm-agent:0.2.0"),
        ("mine/agent", "localhost:5000/", "localhost:5000/mine/agent"),
        ("registry.example/agent:1", "10.0.0.1:5000", "registry.example/agent:1"),
        ("localhost:5000/agent:1", "10.0.0.1:5000", "localhost:5000/agent:1"),
        ("agent@sha256:" + "0" * 64, "pi:5000", "pi:5000/agent@sha256:" + "0" * 64),
    ],
)
def test_the_agents_image_comes_from_the_registry_unless_it_names_one(
    tmp_path: Path, image: str, registry: str | None, expected: str
) -> None:
    wish = of(changed(tmp_path, ("image: swarm-agent:0.2.0", f"image: {image}")), registry=registry)
    agents = ("coordinator", "worker-rpi", "worker-laptop")
    assert {wish.images[name] for name in agents} == {expected}
    assert {wish.services[name]["Labels"][IMAGE] for name in agents} == {expected}
    assert wish.images["page"] == "registry.example/page:1"


def test_without_an_image_under_x_fdtc_each_service_has_its_own(tmp_path: Path) -> None:
    file = changed(tmp_path, ("  image: swarm-agent:0.2.0\n", ""))
    assert of(file, registry="pi:5000").images["coordinator"] == "pi:5000/swarm-agent:0.1.0"


def test_a_pin_sets_the_digest_and_the_platforms() -> None:
    digest = "sha256:" + "a" * 64
    pin = Pin(digest, (("linux", "amd64", ""), ("linux", "arm64", "v8"), ("linux", "arm", "v7")))
    spec = of("rwkv-tiny", pins={"swarm-agent:0.1.0": pin}).services["worker-rpi"]["TaskTemplate"]
    assert spec["ContainerSpec"]["Image"] == f"swarm-agent:0.1.0@{digest}"
    assert spec["Placement"]["Platforms"] == [
        {"Architecture": "amd64", "OS": "linux"},
        {"Architecture": "arm64", "OS": "linux"},
        {"Architecture": "", "OS": "linux"},
    ]
    assert spec["Placement"]["MaxReplicas"] == 1


# Settings


@pytest.mark.parametrize("name", [*BUILT_IN, EVERYTHING])
def test_the_agent_understands_every_setting_that_it_is_given(name: str | Path) -> None:
    wish, found = of(name), stack.load(str(name))
    lead = read_settings(CoordinatorConfig, environ=environment(wish, "coordinator"))
    assert lead.model.name == found.model
    assert lead.training.steps == found.steps
    assert lead.training.learning_rate == found.training["learning_rate"]
    assert lead.checkpointing.interval == found.checkpointing["interval"]
    for service, worker in found.classes.items():
        settings = read_settings(WorkerConfig, environ=environment(wish, service))
        assert settings.hardware.profile == worker.profile
        assert settings.training.batch_size == worker.batch_size
        assert settings.training.method == found.training.get("method", "full")
        assert settings.compression.topk_ratio == found.compression["topk_ratio"]
        assert settings.network.reconnect_attempts == 0


def test_the_files_own_environment_wins_over_x_fdtc() -> None:
    assert environment(of(EVERYTHING), "coordinator")["FDTC_TRAINING_SEED"] == "7"
    assert environment(of(EVERYTHING), "worker-rpi")["FDTC_TRAINING_SEED"] == "1"


def test_environment_comes_from_file_variables_and_the_operators_own() -> None:
    own = {"OWNER": "me", "TAKEN_OVER": "yes", "PORT": "9"}
    found = wanted(stack.load(str(EVERYTHING), own), replicas={})
    lead = environment(found, "coordinator")
    assert (lead["HOME_OF"], lead["TAKEN_OVER"], lead["FROM_FILE"], lead["EMPTY"]) == ("me", "yes", "a word or two", "")
    assert lead["PRICE"] == "$5"
    assert environment(found, "page") == {"PORT": "9"}
    bare = wanted(stack.load(str(EVERYTHING), {}), replicas={})
    assert "TAKEN_OVER" in container(bare, "coordinator")["Env"]
    assert environment(bare, "coordinator")["HOME_OF"] == "nobody"


def test_lora_reaches_coordinator_and_workers() -> None:
    big = of("rwkv-1b")
    for service in big.services:
        assert environment(big, service)["FDTC_TRAINING_METHOD"] == "lora"
        assert environment(big, service)["FDTC_TRAINING_LORA_RANK"] == "16"
    assert environment(big, "worker-rpi")["FDTC_DATA_TOKENIZER"] == "world"


# Data


def test_a_small_data_file_is_brought_along_as_a_config() -> None:
    everything = of(EVERYTHING)
    (name,) = [name for name in everything.configs if name.startswith("everything_fdtc-data-")]
    assert everything.configs[name].data == (HERE / "words.txt").read_bytes()
    assert environment(everything, "coordinator")["FDTC_DATA_PATH"] == "/data/words.txt"
    for service in ("worker-rpi", "worker-laptop"):
        assert environment(everything, service)["FDTC_DATA_PATH"] == "/data/words.txt"
        files = {entry["ConfigName"]: entry["File"]["Name"] for entry in container(everything, service)["Configs"]}
        assert files[name] == "/data/words.txt"
    assert "Configs" not in container(everything, "page")
    # Else another text would restart the coordinator.
    assert name not in {entry["ConfigName"] for entry in container(everything, "coordinator")["Configs"]}


def test_data_too_large_for_a_config_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = changed(tmp_path)
    (tmp_path / "words.txt").write_bytes(b"x" * (500 * 1024))
    with pytest.raises(StackError, match="at most 500 kB") as caught:
        of(file)
    assert any("volumes: [ /srv/fdtc:/data:ro ]" in step for step in caught.value.next_steps)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(StackError, match="no file of this machine"):
        of(file)


def test_data_that_the_workers_mount_themselves_is_taken_as_it_is_called_there(tmp_path: Path) -> None:
    there = ("data: ./words.txt", "data: /texts/all.bin")
    everything = of(changed(tmp_path, there))
    assert environment(everything, "worker-rpi")["FDTC_DATA_PATH"] == "/texts/all.bin"
    assert not [name for name in everything.configs if "fdtc-data" in name]


# The rendered file


@pytest.mark.parametrize("name", [*BUILT_IN, EVERYTHING])
def test_a_rendered_file_means_the_same_and_renders_to_itself(tmp_path: Path, name: str | Path) -> None:
    found = stack.load(str(name))
    first = render(found, replicas={}, registry="pi:5000")
    again = tmp_path / f"{found.name}.yml"
    again.write_text(first)
    second = stack.load(str(again))
    assert render(second, replicas={}) == first
    mine, other = (dataclasses.asdict(wanted(it, replicas={}, registry="pi:5000")) for it in (found, second))
    assert mine == other


def test_texts_that_could_be_taken_for_something_else_are_in_quotes(tmp_path: Path) -> None:
    words = ["1e3", "yes", "0x10", "1_000", "12:30:45", "~", "null", ".5", "2001-01-01", "a: b", "# c", "", " d", "é"]
    file = changed(tmp_path, ("TAKEN_OVER", '"WORDS=' + "|".join(words) + '"'))
    everything = stack.load(str(file))
    listed = dataclasses.replace(everything, content={**everything.content, "services": {
        **everything.content["services"],
        "page": {**everything.content["services"]["page"], "labels": dict.fromkeys(words[:11], "x"), "command": words},
    }})  # fmt: skip
    text = render(listed, replicas={})
    back = yaml.safe_load(text)["services"]["page"]
    assert back["command"] == words
    assert set(back["labels"]) == set(words[:11])
    # What comes of a text in a YAML of version 1.2 depends on quotes alone.
    lines = [line.strip().removeprefix("- ") for line in text.partition("\n  page:")[2].splitlines()]
    assert all(f"'{word}'" in lines for word in words)


def test_config_prints_yaml_data_and_the_schema() -> None:
    def typed(*options: str) -> str:
        command = [sys.executable, "-m", "swarmctl", "config", *options]
        environment = {key: value for key, value in os.environ.items() if key != "REGISTRY"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout

    tiny = stack.load("rwkv-tiny")
    assert typed("--stack", "rwkv-tiny", "--registry", "pi:5000") == render(tiny, replicas={}, registry="pi:5000")
    assert json.loads(typed("--stack", "rwkv-tiny", "--json")) == as_data(tiny, replicas={})
    assert json.loads(typed("--schema")) == published()


# The schema


def test_the_published_schema_is_fresh() -> None:
    assert json.loads((DOCS / "stack.schema.json").read_text()) == published(), (
        "swarmctl config --schema > docs/stack.schema.json"
    )


class Yaml12Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as editors do."""


Yaml12Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"\d+e-?\d+$"), list("0123456789"))


@pytest.mark.parametrize("name", [*BUILT_IN, EVERYTHING])
def test_an_editor_finds_nothing_wrong_with_a_right_file(name: str | Path) -> None:
    jsonschema.Draft7Validator.check_schema(published())
    content = yaml.load(stack.find(str(name)).read_text(), Loader=Yaml12Loader)
    jsonschema.Draft7Validator(published()).validate(content)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lora_rank: 8", "lora_rnak: 8"),
        ("beta2: 0.98", "beta2: 1.98"),
        ("mode: global", "mode: globl"),
        ("read_only: true\n    init", "read_only: perhaps\n    init"),
        ("model: rwkv-tiny", "modle: rwkv-tiny"),
        ("driver: overlay", "divrer: overlay"),
    ],
)
def test_an_editor_finds_what_swarmctl_refuses(tmp_path: Path, old: str, new: str) -> None:
    file = changed(tmp_path, (old, new))
    with pytest.raises(StackError):
        stack.load(str(file))
    content = yaml.load(file.read_text(), Loader=Yaml12Loader)
    assert list(jsonschema.Draft7Validator(published()).iter_errors(content))


def test_the_stack_that_is_held_against_docker_uses_every_key() -> None:
    written, understood = yaml.safe_load(EVERYTHING.read_text()), stack.load(str(EVERYTHING)).content
    found = used(stack_schema(), written, "") | used(stack_schema(), understood, "")
    same_as_of_networks = {f".{section}.external.name" for section in ("configs", "secrets", "volumes")}
    assert keys_of(stack_schema(), "") - found - same_as_of_networks == set()


def keys_of(kind: Kind, path: str) -> set[str]:
    """Every key that a schema knows, by its path."""
    match kind:
        case Keys(known=known):
            inner = [keys_of(one, f"{path}.{key}") for key, one in known.items()]
            return {f"{path}.{key}" for key in known}.union(*inner)
        case Table(of=one) | Listing(of=one) | Optional(of=one) | Short(long=one):
            return keys_of(one, path)
        case Either(kinds=kinds):
            return set().union(*(keys_of(one, path) for one in kinds))
    json_schema(kind)  # what is left has no keys
    return set()


def used(kind: Kind, value: Any, path: str) -> set[str]:
    """Those that a value has."""
    match kind, value:
        case Keys(known=known), dict():
            inner = [used(known[key], entry, f"{path}.{key}") for key, entry in value.items() if key in known]
            return {f"{path}.{key}" for key in value if key in known}.union(*inner)
        case Table(of=one), dict():
            return set().union(*(used(one, entry, path) for entry in value.values()))
        case Listing(of=one), list():
            return set().union(*(used(one, entry, path) for entry in value))
        case (Optional(of=one), _) | (Short(long=one), _):
            return used(one, value, path)
        case Either(kinds=kinds), _:
            return set().union(*(used(one, value, path) for one in kinds))
    return set()
