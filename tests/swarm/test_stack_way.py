"""A stack's life on a small swarm, in this order: plan, deploy, train, scale, control, change, roll back, remove."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_at_work import Operator

from swarmctl.cluster.apply import PlanOutdatedError, apply
from swarmctl.cluster.observe import observe_stack
from swarmctl.cluster.plan import UpdateService
from swarmctl.fleet.engine import Engine
from tests.lab import images
from tests.lab.fixtures import MakeLab
from tests.lab.lab import Lab

STACK = "small"


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    lab = make_lab(
        {
            "registry": True,
            "nodes": [
                {"name": "server-[1-2]", "hardware": "server"},
                {"name": "pi-[01-02]", "hardware": "rpi4-4g"},
                {"name": "laptop-1", "hardware": "laptop-16g"},
                {"name": "desktop-1", "hardware": "desktop"},
            ],
        }
    )
    images.agent(lab)
    return lab


@pytest.fixture(scope="module")
def operator(lab: Lab) -> Operator:
    operator = Operator(lab)
    operator.run("init", "server-1")
    operator.run("join", "server-2", "pi-[01-02]", "laptop-1", "desktop-1")
    operator.run("label", "--auto")
    return operator


@pytest.fixture(scope="module")
def stack_file(lab: Lab) -> Path:
    """rwkv-tiny under another name, that never ends by itself."""
    content = yaml.safe_load(Path("stacks/rwkv-tiny.yml").read_text())
    content["name"] = STACK
    for key in ("steps", "schedule", "final_lr_fraction"):
        del content["x-fdtc"]["training"][key]
    for name, keys in content["services"].items():
        if name != "coordinator":  # all nodes share this machine's processors, and swarmctl needs some, too
            keys["deploy"]["resources"]["limits"] = {"cpus": "0.2"}
    path = lab.home / "small.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture
def run(lab: Lab, operator: Operator) -> Callable[..., Any]:
    def run(*arguments: str | Path, code: int = 0) -> Any:
        return operator.run(*arguments, code=code, REGISTRY=lab.registry)

    return run


def tasks(lab: Lab, service: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lab.nodes["server-1"].api.tasks(
        filters={"service": f"{STACK}_{service}", "desired-state": "running"}
    )
    return found


def status(run: Callable[..., Any], code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("status", "--json", code=code).stdout)
    return found


def service(facts: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in facts["services"] if row["service"] == name)


def await_status(
    run: Callable[..., Any], done: Callable[[dict[str, Any]], Any], seconds: float = 120
) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while True:
        ended = run("status", "--json", code=None)
        facts: dict[str, Any] = json.loads(ended.stdout)
        if done(facts):
            return facts
        assert time.monotonic() < end, facts
        time.sleep(1)


def test_before_a_deploy_every_command_says_what_to_type(run: Callable[..., Any]) -> None:
    for command in (["status"], ["scale", "worker-rpi", "1"], ["logs", "coordinator"], ["history"], ["pause"]):
        assert "swarmctl deploy --stack" in run(*command, code=5).stderr
    assert "nothing to remove" in run("rm", "--yes").stderr


def test_plan_shows_what_would_be_made_and_makes_nothing(lab: Lab, run: Callable[..., Any], stack_file: Path) -> None:
    said = run("plan", "--stack", stack_file, code=10).stderr
    assert "create coordinator" in said
    assert "create worker-rpi with 2 replicas" in said
    assert lab.nodes["server-1"].api.services() == []


def test_an_image_that_no_registry_has_is_refused_before_anything_is_made(
    lab: Lab, operator: Operator, stack_file: Path
) -> None:
    ended = operator.run("deploy", "--stack", stack_file, code=1, REGISTRY=f"{lab.registry}/nowhere")
    assert "can't be found" in ended.stderr
    assert "swarmctl build" in ended.stderr
    assert lab.nodes["server-1"].api.services() == []


def test_no_worker_is_made_for_a_coordinator_that_does_not_start_however_often_one_deploys(
    lab: Lab, run: Callable[..., Any], stack_file: Path
) -> None:
    content = yaml.safe_load(stack_file.read_text())
    content["name"] = "broken"
    content["services"]["coordinator"]["command"] = ["python3", "-c", "raise SystemExit('no luck today')"]
    content["services"]["coordinator"]["deploy"]["restart_policy"] = {"condition": "any", "delay": "1s"}
    path = stack_file.with_name("broken.yml")
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    for _ in range(2):
        said = run("deploy", "--stack", path, code=1).stderr
        assert "coordinator does not start" in said
        assert "no luck today" in said
        assert [found["Spec"]["Name"] for found in lab.nodes["server-1"].api.services()] == ["broken_coordinator"]
    run("rm", "--yes")
    assert "nothing to remove" in run("rm", "--yes").stderr


@pytest.fixture
def sleeping(lab: Lab, stack_file: Path) -> Path:
    """The same stack with programs that only sleep."""
    content = yaml.safe_load(stack_file.read_text())
    content["name"] = "sleeping"
    tiny = images.tiny(lab)
    for keys in content["services"].values():
        keys.update(image=tiny, command=["sleep", "1000000"], stop_grace_period="1s")
    path = stack_file.with_name("sleeping.yml")
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_a_corrected_file_can_be_deployed_over_one_that_fails(run: Callable[..., Any], sleeping: Path) -> None:
    content = yaml.safe_load(sleeping.read_text())
    worker = content["services"]["worker-rpi"]
    worker["command"] = ["nonsense"]
    worker["deploy"]["restart_policy"] = {"condition": "any", "delay": "0s"}  # it goes on failing all the time
    sleeping.write_text(yaml.safe_dump(content, sort_keys=False))
    assert "worker-rpi does not start" in run("deploy", "--stack", sleeping, code=1).stderr
    worker["command"] = ["sleep", "1000000"]
    content["services"]["coordinator"]["environment"] = {"CHANGED": "1"}  # so that there is something to wait for
    sleeping.write_text(yaml.safe_dump(content, sort_keys=False))
    assert "worker-rpi: 2 of 2 running" in run("deploy", "--stack", sleeping).stderr
    assert service(status(run, code=5), "worker-rpi")["failures"] == 0
    run("rm", "--yes")


def test_a_deploy_that_was_interrupted_is_made_whole_by_the_next_one(
    lab: Lab, run: Callable[..., Any], sleeping: Path
) -> None:
    path = sleeping
    # Just before it would end: all services are there, and nothing is recorded yet.
    program = "import signal,sys; from swarmctl.cluster import deploy, history; "
    program += "history.record = lambda *_: signal.raise_signal(signal.SIGINT); "
    program += "from swarmctl.cli import run; sys.exit(run())"
    ended = subprocess.run(
        [sys.executable, "-c", program, "deploy", "--stack", str(path)],
        env={**lab.environment, "REGISTRY": lab.registry}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 130, ended.stderr
    assert json.loads(run("history", "--json").stdout) == []
    said = run("deploy", "--stack", path).stderr
    assert "nothing to change" in said
    assert "revision 1 of sleeping" in said
    assert "revision" not in run("deploy", "--stack", path).stderr
    assert "nothing to change" in run("reconcile").stderr
    assert [row["revision"] for row in json.loads(run("history", "--stack", path, "--json").stdout)] == [1]
    run("rm", "--stack", path, "--yes")


def test_deploy_brings_up_a_coordinator_and_a_worker_on_every_machine_of_a_class(
    lab: Lab, run: Callable[..., Any], stack_file: Path
) -> None:
    run("deploy", "--stack", stack_file)
    services = {found["Spec"]["Name"]: found["Spec"] for found in lab.nodes["server-1"].api.services()}
    assert {
        name: spec["Mode"]["Replicated"]["Replicas"] for name, spec in services.items()
    } == {
        "small_coordinator": 1,
        "small_worker-rpi": 2,
        "small_worker-laptop": 1,
        "small_worker-desktop": 1,
        "small_worker-server": 2,
    }  # fmt: skip
    image = services["small_worker-rpi"]["TaskTemplate"]["ContainerSpec"]["Image"]
    assert image.startswith(f"{lab.registry}/swarm-agent:")
    assert "@sha256:" in image


def test_the_loss_falls_over_the_overlay_network(run: Callable[..., Any]) -> None:
    facts = await_status(run, lambda f: f["training"] and f["training"]["version"] >= 5, 240)
    first = facts["training"]["loss"]
    assert facts["state"] == "training"

    def laptop(found: dict[str, Any]) -> dict[str, Any]:
        return next((row for row in found["tasks"] if row["task"] == "worker-laptop.1"), {})

    def done(found: dict[str, Any]) -> bool:
        return bool(found["training"] and found["training"]["loss"] < first - 0.3 and laptop(found).get("pushes"))

    assert laptop(await_status(run, done, 240))["node"] == "laptop-1"


def test_deploying_again_changes_nothing(lab: Lab, run: Callable[..., Any], stack_file: Path) -> None:
    before = {task["ID"] for task in lab.nodes["server-1"].api.tasks()}
    assert "nothing to change" in run("plan", "--stack", stack_file).stderr
    assert "nothing to change" in run("deploy", "--stack", stack_file).stderr
    assert {task["ID"] for task in lab.nodes["server-1"].api.tasks()} == before


def test_dockers_own_commands_understand_it(lab: Lab) -> None:
    docker = lab.nodes["server-1"].docker
    assert STACK in docker("stack", "ls").stdout
    assert "small_coordinator.1" in docker("stack", "ps", STACK).stdout
    assert "small_worker-rpi" in docker("stack", "services", STACK).stdout


def test_scale_keeps_the_wish_and_explains_the_shortage(lab: Lab, run: Callable[..., Any], stack_file: Path) -> None:
    run("scale", "worker-rpi", "1")
    assert len(tasks(lab, "worker-rpi")) == 1
    ended = run("scale", "worker-rpi", "20", code=6)
    assert "2 running, 18 wait: no free node of class rpi" in ended.stderr
    facts = status(run)
    assert service(facts, "worker-rpi")["wished"] == 20
    assert "pi-01: with 1 of it already" in service(facts, "worker-rpi")["nodes"]
    assert "nothing to change" in run("deploy", "--stack", stack_file).stderr
    assert "20 → 2" in run("scale", "worker-rpi", "auto").stderr


def test_a_scale_that_makes_no_sense_is_refused(run: Callable[..., Any]) -> None:
    for words, said in (
        (["coordinator", "2"], "always one coordinator"),
        (["worker-pi", "2"], "did you mean 'worker-rpi'"),
        (["worker-rpi"], "needs a number"),
        (["worker-rpi", "many"], "not a number"),
    ):
        assert said in run("scale", *words, code=2).stderr


def test_pause_resume_and_checkpoint_reach_the_coordinator(run: Callable[..., Any]) -> None:
    run("pause")
    await_status(run, lambda facts: facts["state"] == "paused")
    run("resume")
    await_status(run, lambda facts: facts["state"] == "training")
    assert "checkpoint written at version" in run("checkpoint").stderr


def test_a_checkpoint_is_exported_and_writes_text(lab: Lab, run: Callable[..., Any]) -> None:
    folder = lab.home / "export"
    run("export", "newest", folder)
    (checkpoint,) = folder.iterdir()
    assert run("generate", "--checkpoint", checkpoint, "--tokens", "20").stdout
    assert "is there already" in run("export", "newest", folder, code=2).stderr
    assert "no checkpoint 'ckpt-999'" in run("export", "ckpt-999", folder, code=2).stderr
    small = lab.home / "small-disk"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], check=True)
    try:
        said = run("export", "newest", small, code=1).stderr
        assert "No space left on device" in said
        assert "nothing of it was kept" in said
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_logs_merge_the_tasks_with_their_names(run: Callable[..., Any]) -> None:
    lines = run("logs", "worker-rpi", "--tail", "5").stdout.splitlines()
    assert {line.partition(" | ")[0] for line in lines} >= {"worker-rpi.1@pi-01"} or {
        line.partition(" | ")[0] for line in lines
    } >= {"worker-rpi.1@pi-02"}
    only = run("logs", "all", "--since", "1h", "--grep", "registered").stdout.splitlines()
    assert only
    assert all("registered" in line for line in only)
    assert "there is no log of 'worker-x'" in run("logs", "worker-x", code=2).stderr
    assert "--grep" in run("logs", "all", "--grep", "(", code=2).stderr
    assert "--since" in run("logs", "all", "--since", "yesterday", code=2).stderr


def test_a_changed_setting_is_shown_field_by_field_and_applied(
    lab: Lab, run: Callable[..., Any], stack_file: Path
) -> None:
    worker = lab.nodes["server-1"].api.inspect_service("small_worker-rpi")
    content = yaml.safe_load(stack_file.read_text())
    content["x-fdtc"]["training"]["learning_rate"] = 1e-3
    stack_file.write_text(yaml.safe_dump(content, sort_keys=False))
    said = run("plan", "--stack", stack_file, code=10).stderr
    assert "TaskTemplate.ContainerSpec.Env.FDTC_TRAINING_LEARNING_RATE: 0.002 → 0.001" in said
    ended = run("deploy", "--stack", stack_file)
    assert "before the coordinator stops" in ended.stderr
    facts = await_status(run, lambda f: f["training"] and f["training"]["version"] > 20)
    assert facts["training"]["learning_rate"] <= 1e-3
    assert lab.nodes["server-1"].api.inspect_service("small_worker-rpi")["Version"] == worker["Version"]


def test_rollback_goes_back_a_revision(run: Callable[..., Any]) -> None:
    said = run("rollback").stderr
    assert "0.001 → 0.002" in said
    rows = json.loads(run("history", "--json").stdout)
    assert [row["revision"] for row in rows if row["revision"]][-1] == 3
    assert "no revision 99" in run("rollback", "99", code=2).stderr


def test_a_broken_image_is_rolled_back_with_exit_code_4(lab: Lab, run: Callable[..., Any], stack_file: Path) -> None:
    good = stack_file.read_text()
    broken = images.tiny(lab, "broken")
    content = yaml.safe_load(good)
    content["services"]["worker-rpi"]["image"] = broken
    stack_file.write_text(yaml.safe_dump(content, sort_keys=False))
    ended = run("deploy", "--stack", stack_file, code=4)
    assert "worker-rpi does not start" in ended.stderr
    assert "rolled back" in ended.stderr
    stack_file.write_text(good)
    image = lab.nodes["server-1"].api.services(filters={"name": "small_worker-rpi"})[0]["Spec"]["TaskTemplate"]
    assert "swarm-agent" in image["ContainerSpec"]["Image"]
    assert service(status(run), "worker-rpi")["running"] == 2


def test_two_at_once_do_not_get_into_each_others_way(lab: Lab, run: Callable[..., Any], stack_file: Path) -> None:
    api = lab.nodes["server-1"].api
    api.create_config(
        "small.lock", b"locked", {"com.docker.stack.namespace": STACK, "fdtc.lock": "1", "fdtc.who": "anna@laptop"}
    )
    ended = run("deploy", "--stack", stack_file, code=1)
    assert "anna@laptop" in ended.stderr
    assert "swarmctl unlock --stack small" in ended.stderr
    assert "anna@laptop" in run("unlock").stderr
    assert "is not locked" in run("unlock").stderr
    run("deploy", "--stack", stack_file)
    # One that a process of this machine has left is taken over; here, one that died while it had it.
    program = "import os; from swarmctl.cluster import deploy; deploy.prepare = lambda *_: os._exit(9); "
    subprocess.run(
        [sys.executable, "-c", f"{program} from swarmctl.cli import run; run()", "deploy", "--stack", stack_file],
        env={**lab.environment, "REGISTRY": lab.registry}, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert "small.lock" in {config["Spec"]["Name"] for config in api.configs()}
    run("deploy", "--stack", stack_file)
    assert "small.lock" not in {config["Spec"]["Name"] for config in api.configs()}


def test_reconcile_brings_back_what_somebody_changed_and_leaves_the_rest(lab: Lab, run: Callable[..., Any]) -> None:
    docker = lab.nodes["server-1"].docker
    docker("service", "rm", "small_worker-laptop")
    docker("service", "update", "--detach", "--env-add", "FDTC_TRAINING_BATCH_SIZE=99", "small_worker-desktop")
    docker("service", "create", "--detach", "--name", "foreign", "--replicas", "0", images.tiny(lab))
    assert "create worker-laptop" in run("reconcile", "--dry-run").stderr
    run("reconcile")
    environment = lab.nodes["server-1"].api.services(filters={"name": "small_worker-desktop"})[0]["Spec"]
    assert "FDTC_TRAINING_BATCH_SIZE=99" not in environment["TaskTemplate"]["ContainerSpec"]["Env"]
    assert len(lab.nodes["server-1"].api.services(filters={"name": "small_worker-laptop"})) == 1
    assert len(lab.nodes["server-1"].api.services(filters={"name": "foreign"})) == 1
    assert "nothing to change" in run("reconcile").stderr
    did = json.loads(run("history", "--json").stdout)[-1]["what"]
    assert did.startswith("reconcile: ")
    assert "create worker-laptop" in did


def test_a_plan_that_is_out_of_date_overwrites_nothing(lab: Lab, run: Callable[..., Any]) -> None:
    engine = Engine(lab.nodes["server-1"].api, "server-1")
    present = observe_stack(engine, STACK).services["worker-rpi"]
    lab.nodes["server-1"].docker("service", "update", "--detach", "--label-add", "theirs=1", "small_worker-rpi")
    spec = {**present.spec, "Labels": {**present.spec["Labels"], "ours": "1"}}
    with pytest.raises(PlanOutdatedError, match="somebody else changed worker-rpi"):
        apply(UpdateService("worker-rpi", present.id, present.version, spec, (), restarts=False), engine)
    kept = lab.nodes["server-1"].api.inspect_service("small_worker-rpi")["Spec"]["Labels"]
    assert kept["theirs"] == "1"
    assert "ours" not in kept
    assert "nothing to change" in run("reconcile").stderr  # it is not the stack's to say


def test_a_32_bit_system_is_refused_with_the_remedy(lab: Lab, run: Callable[..., Any], stack_file: Path) -> None:
    docker = lab.nodes["server-1"].docker
    docker("node", "update", "--label-add", "fdtc.arch=arm", "pi-02")
    said = run("plan", "--stack", stack_file, code=1).stderr
    assert "pi-02 are arm" in said
    assert "64-bit" in said
    docker("node", "update", "--label-add", "fdtc.arch=amd64", "pi-02")


def test_drain_moves_the_work_and_activate_lets_it_back(lab: Lab, run: Callable[..., Any]) -> None:
    run("drain", "laptop-1")
    assert not [t for t in tasks(lab, "worker-laptop") if t["Status"]["State"] == "running"]
    assert "drained already" in run("drain", "laptop-1").stderr
    run("activate", "laptop-1")
    await_status(run, lambda facts: service(facts, "worker-laptop")["running"] == 1)


def test_drain_takes_the_coordinator_and_its_checkpoint_to_another_server(lab: Lab, run: Callable[..., Any]) -> None:
    def coordinators_node(facts: dict[str, Any]) -> str:
        return next(row["node"] for row in facts["tasks"] if row["task"].startswith("coordinator"))

    before = status(run)
    source = coordinators_node(before)
    target = {"server-1": "server-2", "server-2": "server-1"}[source]
    said = run("drain", source).stderr
    assert f"coordinator of small: {source} → {target}" in said
    assert f"copied to {target}" in said
    after = await_status(run, lambda facts: facts["state"] == "training")
    assert coordinators_node(after) == target
    assert after["training"]["version"] >= before["training"]["version"]
    # And it stays there: neither a deploy nor a reconcile takes it back to where its old checkpoints are.
    run("activate", source)
    assert "nothing to change" in run("reconcile").stderr
    assert coordinators_node(status(run)) == target

    # A node that has no room for it: it stays where it is, and so does the node's work.
    docker = lab.nodes["server-1"].docker
    memory = lab.nodes[source].api.info()["MemTotal"] - (512 << 20)  # a worker has 256 MiB there, it wants 512
    options = ["--constraint", f"node.hostname=={source}", "--reserve-memory", str(memory)]
    docker("service", "create", "--name", "hog", *options, images.tiny(lab))
    refused = run("drain", target, code=1).stderr
    assert f"{source} does not take the coordinator" in refused
    assert coordinators_node(await_status(run, lambda facts: facts["state"] == "training")) == target
    docker("service", "rm", "hog")

    # Somebody takes the label away, which stops it: it comes back to its checkpoints.
    docker("node", "update", "--label-rm", "fdtc.checkpoints.small", target)
    before = after
    assert f"keep the coordinator and its checkpoints on {target}" in run("reconcile").stderr
    after = await_status(run, lambda facts: facts["state"] == "training")
    assert coordinators_node(after) == target
    assert after["training"]["version"] >= before["training"]["version"]


def test_a_stack_with_many_mistakes_tells_them_all_with_line_and_column(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    content = yaml.safe_load(Path("stacks/rwkv-tiny.yml").read_text())
    content["x-fdtc"]["training"]["learning_rat"] = 1
    content["x-fdtc"]["classes"]["worker-rpi"]["profile"] = "RPI9"
    for name in ("worker-rpi", "worker-laptop", "worker-desktop", "worker-server"):
        content["services"][name]["restart"] = "always"
    for name in ("worker-rpi", "worker-laptop", "worker-desktop", "worker-server"):
        content["services"][name]["privileged"] = True
    path = tmp_path / "wrong.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    said = run("deploy", "--stack", path, code=2).stderr
    assert "has 10 mistakes" in said
    assert said.count(f"{path}:") >= 10


def test_rm_takes_everything_but_the_volumes(lab: Lab, run: Callable[..., Any]) -> None:
    api = lab.nodes["server-1"].api
    assert "no terminal to ask on" in run("rm", code=2).stderr
    run("rm", "--yes")
    assert [found["Spec"]["Name"] for found in api.services()] == ["foreign"]
    assert not [config for config in api.configs() if config["Spec"]["Name"].startswith("small")]
    assert "small_fdtc" not in {network["Name"] for network in api.networks()}
    volumes = [
        volume["Name"] for name in ("server-1", "server-2") for volume in lab.nodes[name].api.volumes()["Volumes"] or []
    ]
    assert "small_checkpoints" in volumes
