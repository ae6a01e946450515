"""Wrong stack files: every mistake at once, each with its line and column, and never anything but a clear refusal."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarmctl import stack
from swarmctl.cluster.compose import wanted
from swarmctl.cluster.render import render
from swarmctl.errors import StackError

EVERYTHING = Path(__file__).with_name("everything.yml")
TEXT = EVERYTHING.read_text().replace(": ./", f": {EVERYTHING.parent}/")
LINE = re.compile(r".*\.yml:\d+:\d+: .+")


def mistakes(
    folder: Path, *changes: tuple[str, str], text: str = TEXT, environ: dict[str, str] | None = None
) -> list[str]:
    """What is refused of a file after some changes, without the file's name."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    file = folder / "wrong.yml"
    file.write_text(text)
    with pytest.raises(StackError) as caught:
        stack.load(str(file), environ if environ is not None else dict(os.environ))
    first, *lines = str(caught.value).splitlines()
    assert first.endswith("1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes")
    assert all(LINE.fullmatch(line) for line in lines), lines
    return [line.split("wrong.yml:", 1)[1] for line in lines]


def place(text: str, word: str) -> str:
    """Line and column of a word that is there once, as messages begin."""
    assert text.count(word) == 1
    before = text[: text.index(word)]
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}: "


TEN = """\
x-fdtc:
  model: rwkv-tiny
  data: shakespeare
  trainig: { steps: 3 }
  classes:
    worker-rpi: { profile: RPI4_8GB }
    worker-server: { profile: SERVER, replicas: many }
services:
  coordinator:
    image: swarm-agent:0.1.0
    restart: always
    volumes: [checkpoint:/checkpoints]
    deploy: { replicas: 2, endpoint_mode: dnsrr }
    ports: ["7180:7180"]
  worker-rpi:
    image: swarm-agent:0.1.0
    networks: [ftdc]
    stop_grace_period: 30
    deploy:
      placement: { constraints: [node.labels.fdtc.clas == rpi], max_replicas_per_node: 1 }
  worker-server:
    image: swarm-agent:0.1.0
    deploy:
      placement: { constraints: [node.labels.fdtc.class == server], max_replicas_per_node: 1 }
      resources: { reservations: { memory: much } }
networks: { fdtc: }
volumes: { checkpoints: }
"""


def test_a_stack_with_twelve_mistakes_gets_twelve_messages_each_at_its_place(tmp_path: Path) -> None:
    said = mistakes(tmp_path, text=TEN)
    expected = [
        ("trainig", "x-fdtc.trainig: unknown key; did you mean 'training'?"),
        ("RPI4_8GB", "x-fdtc.classes.worker-rpi.profile: 'RPI4_8GB' is not one of the values known here"),
        ("many", "x-fdtc.classes.worker-server.replicas: a whole number or auto is needed, not 'many'"),
        ("restart", "services.coordinator.restart: docker stack deploy heeds deploy.restart_policy instead"),
        (
            "checkpoint:/",
            "services.coordinator.volumes[0]: there is no volume 'checkpoint'; did you mean 'checkpoints'?",
        ),
        ("replicas: 2", "services.coordinator.deploy.replicas: there is one coordinator"),
        ('"7180:7180"', "services.coordinator.ports[0]: endpoint_mode dnsrr has no virtual address to publish on"),
        ("ftdc", "services.worker-rpi.networks[0]: there is no network 'ftdc'; did you mean 'fdtc'?"),
        ("30\n", "services.worker-rpi.stop_grace_period: a text is needed, not '30'"),
        (
            "constraints: [node.labels.fdtc.clas ",
            "services.worker-rpi.deploy.placement.constraints: a worker runs on its",
        ),
        ("much", "services.worker-server.deploy.resources.reservations.memory: 'much' is no size"),
    ]
    for word, message in expected:
        (line,) = [line for line in said if message in line]
        assert line.startswith(place(TEN, word)), (line, place(TEN, word))
    assert len(said) == len(expected) + 1  # and worker-rpi meets the coordinator nowhere
    assert sum("shares no network with the coordinator" in line for line in said) == 1


def test_the_command_ends_with_2_and_prints_all_of_them(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yml"
    file.write_text(TEN)
    command = [sys.executable, "-m", "swarmctl", "config", "--stack", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert len(re.findall(r"wrong\.yml:\d+:\d+: ", ended.stderr)) == 12
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # Names that fit to nothing
        ("networks: [plain]", "networks: [plian]", "services.everywhere.networks[0]: there is no network 'plian'"),
        ("      outside:\n", "      outsied:\n", "networks.outsied: there is no network 'outsied'"),
        ("- cache:/cache", "- cahce:/cache", "volumes[1]: there is no volume 'cahce'; did you mean 'cache'?"),
        ("configs: [greeting", "configs: [greetings", "there is no config 'greetings'; did you mean 'greeting'?"),
        ("secrets: [token", "secrets: [tokens", "secrets[0]: there is no secret 'tokens'; did you mean 'token'?"),
        ("name: everything\n", "name: Every Thing\n", "name: 'Every Thing' is no name for a stack"),
        ("  everywhere:\n", "  every where:\n", "services.every where: 'every where' is no name for a service"),
        ("  everywhere:\n", f"  {'e' * 60}:\n", "has 71 characters; the engine takes 63"),
        ("  coordinator:\n", "  coordinater:\n", "services: there is no service 'coordinator'"),
        # What a swarm can't do, or must not
        ("protocol: tcp, mode: host", "protocol: tcp", "ports[0]: endpoint_mode dnsrr has no virtual address"),
        ("mode: global", "mode: global, replicas: 2", "everywhere.deploy.replicas: a global service has one"),
        ("      replicas: 1\n", "      replicas: 3\n", "deploy.replicas: there is one coordinator"),
        ("mode: replicated", "mode: global", "services.coordinator.deploy.mode: can't be global"),
        ("order: stop-first, failure", "order: start-first, failure", "order: must be stop-first: a new worker can't"),
        ("      order: stop-first\n", "      order: start-first\n", "order: must be stop-first: two coordinators"),
        ("node.labels.fdtc.class == rpi]", "node.role == worker]", "add node.labels.fdtc.class == rpi"),
        ("fdtc.class == rpi]", "fdtc.class == server]", "a worker-rpi runs on its own class only"),
        ("fdtc.class == rpi]", "fdtc.class != rpi]", "a worker-rpi runs on its own class only"),
        ("== rpi], max_replicas_per_node: 1", "== rpi]", "max_replicas_per_node: must be 1"),
        ("== rpi], max_replicas_per_node: 1", "== rpi], max_replicas_per_node: 2", "max_replicas_per_node: must be 1"),
        ("memory: 256M", "memory: 4G", "4G is more than any RPI4_4G has (3.71 GB): it would never run there"),
        ("memory: 2gb, pids", "memory: 256M, pids", "limits.memory: 256M is less than the 512M that are reserved"),
        ("node.role != worker", "node.roll != worker", "no node has 'node.roll'; did you mean 'node.role'?"),
        ("node.role != worker", "node.role = worker", "is no constraint; write KEY == VALUE"),
        ("healthcheck: { disable: true }", "healthcheck: { disable: true, test: a }", "a test, and disable: true"),
        ("test: [CMD, python3", "test: [python3", "healthcheck.test: a list begins with CMD, CMD-SHELL or NONE"),
        # Forms
        ("- checkpoints:/check points", "- checkpoints:/a:ro:x", "volumes[0]: 'checkpoints:/a:ro:x' is no volume"),
        ("ro,nocopy", "ro,nocpy", "'nocpy' is no option of a volume; did you mean 'nocopy'?"),
        ("type: tmpfs, target: /tmp", "type: tmpfs, target: tmp", "'tmp' must be a path in the container"),
        ("- /nameless", "- /tmp", "volumes[5]: /tmp is mounted twice"),
        ("type: bind, source: ", "type: tmpfs, source: ", "a tmpfs has no source"),
        ("type: volume, source: elsewhere", "type: bind", "a bind needs a source"),
        ("tmpfs: { size: 64M }", "bind: { propagation: shared }", "bind is for a mount of type bind"),
        ('["8080:80"', '["127.0.0.1:8080:80"', "'127.0.0.1:8080:80' is no port"),
        ('["8080:80"', '["80800:80"', "ports go to 65535"),
        ('["8080:80"', "[{ target: 80, published: '8080-8090' }", "'8080-8090' is no port from 0 to 65535"),
        ("mode: 0440", "mode: rw", "a file mode such as 0444 is needed, not 'rw'"),
        ('"nas=10.0.0.8"', '"nas"', "'nas' is no host; write NAME:ADDRESS"),
        ("interval: 1m30s", "interval: 90", "healthcheck.interval: a text is needed, not '90'"),
        ("interval: 1m30s", "interval: 90 s", "'90 s' is no duration; write one as 30s"),
        ("memory: 512M", "memory: 512X", "'512X' is no size; write one as 512M"),
        ("cpus: 0.25", "cpus: -1", "'-1' is no number of processors"),
        ("command: swarm_agent", "command: it's swarm_agent", "can't be split into words"),
        ("parallelism: 1\n", "parallelism: one\n", "a whole number is needed, not 'one'"),
        ("failure_action: continue", "failure_action: rollback", "'rollback' is not one of the values known here"),
        # What is declared
        ("  outside: { external: true, name: everything-config }", "  outside: { external: true, file: a }",
         "configs.outside.file: what is external was made elsewhere"),
        ("secrets:\n  token: {", "secrets:\n  other:\n  token: {", "secrets.other: says neither file nor external"),
        ("file: ./greeting.txt", "file: ./none.txt", "configs.greeting.file: can't read"),
        ("env_file: ./settings.env", "env_file: ./none.env", "env_file: can't read ./none.env: No such file"),
        ("file: ./greeting.txt", "content: hello", "configs.greeting.content: docker stack deploy does not take"),
        # Ours
        ("method: full", "method: lora8", "x-fdtc.training.method: 'lora8' is not one of the values known here"),
        ("worker-laptop: { profile", "worker-labtop: { profile", "did you mean 'worker-laptop'?"),
        ("profile: LAPTOP_MID", "profile: SERVER", "SERVER is a profile of worker-server, not of worker-laptop"),
        ("replicas: auto", "replicas: -1", "a whole number or auto is needed, not '-1'"),
    ],
)  # fmt: skip
def test_one_mistake(tmp_path: Path, old: str, new: str, expected: str) -> None:
    for file in ("words.txt", "greeting.txt", "token.txt", "settings.env"):
        (tmp_path / file).write_bytes(EVERYTHING.with_name(file).read_bytes())
    said = mistakes(tmp_path, (old, new), text=EVERYTHING.read_text())
    assert any(expected in line for line in said), said


def test_a_mistake_that_services_share_through_an_anchor_is_told_once(tmp_path: Path) -> None:
    said = mistakes(tmp_path, ("restart_policy: { condition: on-failure }", "restart_polcy: { condition: on-failure }"))
    assert len(said) == 1
    assert "unknown key; did you mean 'restart_policy'?" in said[0]


def test_a_variable_without_a_value_is_told_and_not_left_empty(tmp_path: Path) -> None:
    asked = ("${PAGES:-2}", "${PAGES}"), ("${PORT:-8080}", "${PORT:?which port}"), ("PRICE=$$5", "PRICE=$5")
    said = mistakes(tmp_path, *asked, environ={})
    assert [line.partition(": services.")[2] for line in said] == [
        "coordinator.environment[1]: a dollar sign begins a variable; for the sign itself write $$ (in 'PRICE=$5')",
        "page.environment.PORT: the environment has no variable PORT: which port",
        "page.deploy.replicas: the environment has no variable PAGES; export it, or write ${PAGES:-…}",
    ]
    said = mistakes(tmp_path, *asked[:2], environ={"PAGES": "two", "PORT": ""})
    assert ["which port" in said[0], "a whole number is needed, not 'two'" in said[1]] == [True, True]


def test_a_file_that_a_swarm_can_not_keep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(600_000))
    (line,) = mistakes(tmp_path, ("file: " + str(EVERYTHING.with_name("greeting.txt")), "file: large"))
    assert "has 586 kB; a swarm keeps at most 500 kB of a file" in line
    (tmp_path / "large").write_bytes(b"")
    (line,) = mistakes(tmp_path, ("file: " + str(EVERYTHING.with_name("greeting.txt")), "file: large"))
    assert "is empty, and a swarm keeps nothing that is" in line


def test_a_virtual_address_is_warned_of_and_taken() -> None:
    (warning,) = stack.load(str(EVERYTHING)).warnings
    assert re.search(
        r"everything\.yml:\d+:\d+: services\.page\.deploy\.endpoint_mode: a virtual address drops", warning
    )
    assert stack.load("rwkv-tiny").warnings == ()


@pytest.mark.parametrize("text", ["a: &a [*a]", "&a {a: *a}", "a: " + "[" * 2000, "? [a]\n: b", "1: 2", "- a", "a"])
def test_odd_yaml_is_refused_and_nothing_else_happens(tmp_path: Path, text: str) -> None:
    assert mistakes(tmp_path, text=text)


LINES = TEXT.splitlines()
WORDS = [
    "",
    "null",
    "-1",
    "1e400",
    "yes",
    "[]",
    "{}",
    "a",
    "$X",
    "${",
    "*deploy",
    "<<: a",
    "'",
    "[[",
    "{a: 1, a: 2}",
    "\x00",
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, len(LINES) - 1), st.sampled_from(WORDS), st.sampled_from(["drop", "twice", "value", "key", "deeper"])
)
def test_any_change_to_a_file_is_either_taken_or_refused_in_words(tmp_path: Path, at: int, word: str, how: str) -> None:
    line = LINES[at]
    key, colon, _ = line.partition(": ")
    new = {
        "drop": [],
        "twice": [line, line],
        "value": [f"{key}{colon or ': '}{word}"],
        "key": [line.replace(line.strip()[:4], word, 1)],
        "deeper": [f"  {line}"],
    }[how]
    file = tmp_path / "any.yml"
    file.write_text("\n".join([*LINES[:at], *new, *LINES[at + 1 :]]))
    try:
        found = stack.load(str(file), {})
        wish = wanted(found, replicas={})
        text = render(found, replicas={})
    except StackError as error:
        said = str(error)
    else:
        assert set(wish.services) == set(yaml.safe_load(text)["services"])
        return
    assert len(said.splitlines()) > 1 or "x-fdtc.data" in said
