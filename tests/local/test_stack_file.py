"""Stack files: what is refused and where, and what a good one becomes."""

import tomllib
from pathlib import Path

import pytest

from swarm_agent import data, rwkv7
from swarmctl import stack, stack_files, stack_schema
from swarmctl.cluster.render import as_data, render
from swarmctl.errors import StackError, UsageError
from swarmctl.settings import coordinator_sections, toml, worker_sections

from .conftest import SMALL


def refused(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "bad.yml"
    file.write_text(text)
    with pytest.raises(StackError) as caught:
        stack.load(str(file))
    assert caught.value.code == 2
    return str(caught.value).splitlines()[1:]


def test_the_built_in_stack_is_right_and_has_three_unequal_local_workers() -> None:
    tiny = stack.load("rwkv-tiny")
    local = {service: tiny.classes[service].batch_size for service, count in tiny.replicas.items() if count}
    assert local == {"worker-rpi": 2, "worker-laptop": 4, "worker-server": 8}


def test_all_mistakes_are_told_at_once_with_line_column_key_and_the_nearest_valid_key(tmp_path: Path) -> None:
    text = (
        SMALL.read_text()
        .replace("context: 16", "contxt: 16, beta1: fast")
        .replace("worker-rpi: { image: swarm-agent:test,", "worker-rpi: { image: a, restart: always,")
        .replace("RPI4_4G", "RPI4")
    )
    said = refused(tmp_path, text)
    assert [line.split(": ", 2)[1] for line in said] == [
        "services.worker-rpi.restart",
        "x-fdtc.training.contxt",
        "x-fdtc.training.beta1",
        "x-fdtc.classes.worker-rpi.profile",
    ]
    row = text.splitlines().index(next(line for line in text.splitlines() if "contxt" in line))
    column = text.splitlines()[row].index("contxt") + 1
    assert f"bad.yml:{row + 1}:{column}: x-fdtc.training.contxt: unknown key; did you mean 'context'?" in said[1]
    assert "deploy.restart_policy" in said[0]
    assert "a number is needed, not 'fast'" in said[2]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("model: rwkv-tiny", "#"), "x-fdtc.model: this key is missing"),
        (
            ("model: rwkv-tiny", "model: rwkv-tin"),
            "(your own: package.module:factory); did you mean 'rwkv-tiny'?",
        ),
        (("model: rwkv-tiny", 'model: "rwkv\\0tiny"'), "x-fdtc.model: there is a character of code 0 in it"),
        (
            ("data: shakespeare", "data: shakespear"),
            "your own code: package.module:factory); did you mean 'shakespeare'?",
        ),
        (("data: shakespeare", "data: ./"), "is not a file"),
        (("batch_size: 1", "batch_size: 0"), "batch_size: must be at least 1, not 0"),
        (("batch_size: 1", "batch_size: one"), "batch_size: a whole number is needed, not 'one'"),
        (("learning_rate: 1e-3", "learning_rate: 0"), "learning_rate: must be above 0, not '0'"),
        (("profile: RPI4_4G", "profile: SERVER"), "SERVER is a profile of worker-server, not of worker-rpi"),
        (
            ("  worker-rpi: { image", "  worker-pi: { image"),
            "there is no service of this name; did you mean 'worker-pi'?",
        ),
        (("name: small", "name: Small Stack"), "name: 'Small Stack' is no name for a stack"),
        (("name: small", "name: small\nname: again"), "name: this key is already in line 2"),
        (("services:", "services: ["), "not valid YAML"),
    ],
)
def test_one_mistake(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    said = refused(tmp_path, SMALL.read_text().replace(*change))
    assert any(expected in line for line in said), said


def test_the_names_of_models_and_texts_are_the_agents_own() -> None:
    assert tuple(rwkv7.PRESETS) == stack_schema.MODELS
    assert data.BUILT_IN == stack_schema.TEXTS
    assert set(stack_files.DATA_SUFFIXES) == {".txt", ".jsonl", ".bin"}


def test_a_short_file_that_means_billions_of_keys_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["x-a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"x-a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    (said,) = refused(tmp_path, "\n".join([*lines, SMALL.read_text()]))
    assert "its anchors make more than" in said


def test_an_empty_file_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    assert "the file is empty" in refused(tmp_path, "")[0]
    file = tmp_path / "binary.yml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StackError, match="not UTF-8"):
        stack.load(str(file))


def test_an_unknown_name_says_which_is_near() -> None:
    with pytest.raises(UsageError, match="did you mean 'rwkv-tiny'"):
        stack.load("rwkv-tiy")


def test_numbers_are_read_as_people_write_them() -> None:
    assert stack.load(str(SMALL)).training["learning_rate"] == 0.001


def test_anchors_and_merge_keys_do_what_compose_does(tmp_path: Path) -> None:
    file = tmp_path / "merged.yml"
    file.write_text(
        SMALL.read_text()
        .replace("services:", "x-base: &base { image: swarm-agent:base, user: nobody }\nservices:")
        .replace("worker-rpi: { image: swarm-agent:test,", "worker-rpi: { <<: *base, image: swarm-agent:own,")
    )
    service = stack.load(str(file)).content["services"]["worker-rpi"]
    assert service["image"] == "swarm-agent:own"
    assert service["user"] == "nobody"


def test_a_data_path_counts_from_the_stack_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(SMALL.read_text().replace("data: shakespeare", "data: ./texts/mine.txt"))
    assert stack.load(str(file)).data == str(tmp_path / "texts" / "mine.txt")


@pytest.mark.parametrize("name", ["rwkv-tiny", str(SMALL)])
def test_what_config_prints_is_a_stack_that_means_the_same(tmp_path: Path, name: str) -> None:
    first = stack.load(name)
    again = tmp_path / f"{first.name}.yml"
    again.write_text(render(first, replicas={}))
    assert as_data(stack.load(str(again)), replicas={}) == as_data(first, replicas={})


def test_what_docker_stack_config_prints_is_accepted() -> None:
    printed = stack.load(str(Path(__file__).with_name("printed_by_docker_stack_config.yml")))
    assert {service: worker.batch_size for service, worker in printed.classes.items()} == {
        "worker-rpi": 2,
        "worker-laptop": 4,
        "worker-desktop": 4,
        "worker-server": 8,
    }
    assert printed.training["learning_rate"] == 0.002


def test_the_toml_files_hold_what_the_stack_says() -> None:
    tiny = stack.load("rwkv-tiny").with_steps(30)
    lead = tomllib.loads(toml(coordinator_sections(tiny)))
    assert lead["training"]["steps"] == 30
    assert lead["training"]["warmup_steps"] <= 3
    assert lead["model"] == {"name": "rwkv-tiny"}
    worker = tomllib.loads(toml(worker_sections(tiny, tiny.classes["worker-server"])))
    assert worker["hardware"] == {"profile": "SERVER"}
    assert worker["training"]["batch_size"] == 8


def test_toml_texts_survive_quotes_and_control_characters() -> None:
    odd = 'a "b" \\ c\n\t\x7f é 😀'
    assert tomllib.loads(toml({"data": {"path": odd}})) == {"data": {"path": odd}}


@pytest.mark.parametrize(
    ("file", "name"), [("bad1.yml", "bad1"), ("bad2.yml", "bad2"), ("2-my run.yml", "my-run"), ("7.yml", "stack")]
)
def test_a_file_without_a_name_is_called_by_its_own(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text(SMALL.read_text().replace("name: small", ""))
    assert stack.load(str(tmp_path / file)).name == name
