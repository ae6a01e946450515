"""What the command line says when it can't do what was typed; no process of a stack is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmctl.console import typeable

from .conftest import SMALL, Swarmctl


@pytest.fixture
def empty(tmp_path: Path) -> Swarmctl:
    return Swarmctl(tmp_path)


@pytest.mark.parametrize(
    "typed",
    [
        ["deploy", "--stack", "rwkv-tiny"],
        ["status"],
        ["scale", "worker-rpi", "3"],
        ["logs", "coordinator"],
        ["rm"],
        ["pause"],
    ],
)
def test_without_local_it_says_what_to_type_instead(empty: Swarmctl, typed: list[str]) -> None:
    said = empty.run(*typed, code=5).stderr
    assert "no swarm is known here" in said
    assert "swarmctl init" in said
    assert "--local" in said


def test_nothing_deployed_is_said_with_how_to_deploy(empty: Swarmctl) -> None:
    for typed in (["status"], ["logs", "coordinator"], ["scale", "worker-rpi", "2"], ["checkpoint"], ["rm", "--yes"]):
        said = empty.run(*typed, "--local", code=5).stderr
        assert "no stack is deployed" in said
        assert "swarmctl deploy --stack rwkv-tiny --local" in said


def test_a_number_that_is_none_is_refused(empty: Swarmctl) -> None:
    assert "'many' is not a number" in empty.run("scale", "worker-rpi", "many", "--local", code=2).stderr
    assert "each service needs a number" in empty.run("scale", "worker-rpi", "--local", code=2).stderr


def test_a_number_that_python_would_not_even_read_is_refused(empty: Swarmctl) -> None:
    said = empty.run("scale", "worker-rpi", "9" * 5000, "--local", code=2).stderr
    assert "at most 10000" in said
    assert len(said) < 200


def test_a_path_that_is_no_text_is_told(empty: Swarmctl) -> None:
    user = Swarmctl(empty.state)
    user.environment["SWARMCTL_STATE"] = os.fsdecode(b"/tmp/\xff")
    assert "not valid UTF-8" in user.run("deploy", "--local", "--stack", "rwkv-tiny", code=2).stderr
    assert "not valid UTF-8" in empty.run("deploy", "--local", "--stack", "./\udcff.yml", code=2).stderr


def test_config_of_the_local_engine_is_json_too(empty: Swarmctl) -> None:
    facts = json.loads(empty.run("config", "--local", "--stack", SMALL, "--json").stdout)
    assert any(path.endswith("coordinator.toml") for path in facts["files"])
    assert "swarm_agent.coordinator_command" in facts["processes"]["coordinator"]


def test_a_home_that_is_not_known_is_told(empty: Swarmctl) -> None:
    for typed in (["status", "--local"], ["deploy", "--local", "--stack", "~no-such-user/x.yml"]):
        user = Swarmctl(empty.state)
        user.environment["SWARMCTL_STATE"] = "~no-such-user/state"
        assert "does not know the home folder that ~ stands for" in user.run(*typed, code=2).stderr


def test_what_to_type_is_what_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv/bin/swarmctl"), "demo"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typeable("swarmctl status --local") == ".venv/bin/swarmctl status --local"
    assert typeable("ls -l") == "ls -l"
    (tmp_path / "swarmctl").touch(mode=0o755)
    assert typeable("swarmctl status --local") == "swarmctl status --local"


def test_a_wrong_stack_ends_with_2_and_its_places(empty: Swarmctl, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(SMALL.read_text().replace("model:", "modle:"))
    said = empty.run("config", "--stack", wrong, code=2).stderr
    assert f"{wrong}:10:3: x-fdtc.modle: unknown key; did you mean 'model'?" in said


def test_missing_data_is_refused_before_anything_is_written(empty: Swarmctl, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(SMALL.read_text().replace("data: shakespeare", "data: ./none.txt"))
    said = empty.run("deploy", "--stack", wrong, "--local", code=2).stderr
    assert f"there is no file {tmp_path / 'none.txt'}" in said
    assert not (tmp_path / "local").exists()


def test_workers_that_can_never_be_enough_are_refused(empty: Swarmctl, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(SMALL.read_text().replace("min_workers: 1", "min_workers: 3"))
    assert "it would wait for ever" in empty.run("deploy", "--stack", wrong, "--local", code=2).stderr


def test_a_dry_run_of_a_first_deploy_lists_the_processes_and_writes_nothing(empty: Swarmctl, ports: list[str]) -> None:
    plan = json.loads(empty.run("deploy", "--stack", SMALL, "--local", *ports, "--dry-run", "--json").stdout)
    assert [step["process"] for step in plan] == ["coordinator", "worker-rpi-1", "worker-laptop-1"]
    assert {step["action"] for step in plan} == {"start"}
    assert list(empty.state.iterdir()) == []


def test_config_shows_the_files_and_commands_of_the_local_engine(empty: Swarmctl) -> None:
    shown = empty.run("config", "--stack", SMALL, "--local").stdout
    assert "swarm_agent.coordinator_command" in shown
    assert 'profile = "LAPTOP_MID"' in shown


def test_a_demo_does_not_begin_in_a_folder_that_has_a_run(empty: Swarmctl, tmp_path: Path) -> None:
    earlier = tmp_path / "rwkv-tiny" / "deployment.json"
    earlier.parent.mkdir()
    earlier.write_text("{}")
    assert "holds an earlier run" in empty.run("demo", "--state", tmp_path, code=2).stderr


def test_an_install_of_the_agent_only_says_how_to_get_the_operator() -> None:
    hidden = "import sys; sys.modules['typer'] = None; from swarmctl.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "pip install 'swarmctl[operator]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_generate_needs_no_engine(empty: Swarmctl) -> None:
    assert "no stack is deployed" in empty.run("generate", "--prompt", "ROMEO:", code=5).stderr


def test_a_prompt_may_look_like_an_option(empty: Swarmctl) -> None:
    written = empty.run("generate", "--checkpoint", "init:rwkv-tiny", "--tokens", "1", "--prompt=-x").stdout
    assert written.startswith("-x")


def test_a_generator_that_fails_says_so_once(empty: Swarmctl) -> None:
    said = empty.run("generate", "--checkpoint", "init:rwkv-tiniest", code=1).stderr
    assert said.startswith("error: there is no model 'rwkv-tiniest'")
    assert "swarm_agent" not in said


@pytest.mark.parametrize(
    "options",
    [
        ["--seed", "-1"],
        *(["--top-p", value] for value in ("0", "1.1", "nan")),
        *(["--temperature", value] for value in ("-1", "nan", "inf")),
        ["--prompt", "\udcff"],
    ],
)
def test_generate_refuses_options_that_make_no_sense(empty: Swarmctl, options: list[str]) -> None:
    assert options[0] in empty.run("generate", *options, code=2).stderr


def test_a_stack_that_is_not_deployed_is_said_so_and_not_looked_for_among_the_built_in(empty: Swarmctl) -> None:
    for typed in (["status"], ["rm", "--yes"], ["rm", "--yes", "--volumes"], ["logs", "all"]):
        said = empty.run(*typed, "--local", "--stack", "mine", code=5).stderr
        assert "mine is not deployed" in said
        assert "built-in" not in said


def test_a_removed_stack_is_known_by_its_path_and_a_dry_run_lists_its_checkpoints(empty: Swarmctl) -> None:
    kept = empty.folder() / "checkpoints" / "ckpt-00000003"
    kept.mkdir(parents=True)
    said = empty.run("rm", "--local", "--stack", SMALL, "--volumes", "--dry-run").stdout
    assert said == f"- delete 1 checkpoint in {kept.parent}\n"
    hint = empty.run("rm", "--local", "--stack", SMALL, "--volumes", code=2).stderr
    assert "swarmctl rm --local --stack small --volumes --yes" in hint
    assert kept.exists()


@pytest.mark.parametrize("typed", [["status", "--local"], ["deploy", "--stack", "rwkv-tiny", "--local"], ["demo"]])
def test_a_state_folder_that_is_a_file_is_named_with_its_variable(tmp_path: Path, typed: list[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    ended = Swarmctl(file).run(*typed, code=2)
    assert "is not a folder" in ended.stderr
    assert "SWARMCTL_STATE" in ended.stderr
    assert ended.stdout == ""


def test_a_service_named_twice_is_refused(empty: Swarmctl) -> None:
    assert "named twice" in empty.run("scale", "worker-rpi", "1", "worker-rpi=2", "--local", code=2).stderr


def test_the_version_is_printed(empty: Swarmctl) -> None:
    assert empty.run("--version").stdout.startswith("swarmctl 0.")
