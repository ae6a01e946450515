"""Configuration: the documented files work unchanged, mistakes are named where they are, and precedence holds."""

import re
from pathlib import Path

import pytest

from swarm_agent.config import CoordinatorConfig, WorkerConfig, load
from swarm_agent.errors import ConfigError

COORDINATOR = """\
[network]
port = 7100
[training]
learning_rate = 1e-4
beta1 = 0.9
beta2 = 0.999
min_workers = 2
[checkpointing]
interval = 1000
directory = "/checkpoints"
[compression]
type = "topk"
topk_ratio = 0.1
"""

WORKER = """\
[network]
coordinator_host = "coordinator"
coordinator_port = 7100
reconnect_attempts = 10
reconnect_delay_sec = 5
[hardware]
num_threads = 0        # 0: automatic
max_memory_mb = 0      # 0: automatic
[training]
batch_size = 0         # 0: from the profile
accumulation_steps = 0 # 0: automatic
[data]
path = "/data/train.jsonl"
shard_index = -1       # -1: assigned by the coordinator
[compression]
type = "topk"
topk_ratio = 0.1
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_documented_coordinator_file_works_unchanged(tmp_path: Path) -> None:
    config = load(CoordinatorConfig, write(tmp_path, COORDINATOR), environ={})
    assert config.network.port == 7100
    assert config.training.min_workers == 2
    assert config.training.learning_rate == 1e-4
    assert config.checkpointing.directory == "/checkpoints"
    assert config.compression.topk_ratio == 0.1


def test_documented_worker_file_works_unchanged(tmp_path: Path) -> None:
    config = load(WorkerConfig, write(tmp_path, WORKER), environ={})
    assert config.network.coordinator_host == "coordinator"
    assert config.network.reconnect_delay_sec == 5.0
    assert config.data.path == "/data/train.jsonl"
    assert config.compression.type == "topk"


def test_defaults_are_the_documented_ones() -> None:
    config = load(CoordinatorConfig, environ={})
    training = config.training
    assert (config.network.port, config.network.http_port) == (7100, 7180)
    assert (training.learning_rate, training.beta1, training.beta2, training.epsilon) == (1e-4, 0.9, 0.999, 1e-8)
    assert (training.min_workers, training.max_staleness, training.staleness_weight) == (1, 8, True)
    assert (config.checkpointing.interval, config.checkpointing.directory) == (1000, "/checkpoints")
    assert (config.compression.type, config.compression.topk_ratio) == ("topk", 0.1)
    network = load(WorkerConfig, environ={}).network
    assert (network.reconnect_attempts, network.reconnect_delay_sec) == (10, 5.0)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[training]\n\nlearning_rat = 1.0\n", 3, "learning_rate"),
        ("[network]\nport = 1\n[trainin]\nbeta1 = 0.5\n", 3, "[training]"),
        ("[training]\nbeta1 = 'high'\n", 2, "beta1"),
        ("[training]\nbeta1 = 1.5\n", 2, "beta1"),
        ("[network]\nport = 70000\n", 2, "65535"),
        ("[network]\nport = '7100'\n", 2, "int"),
        ("[compression]\ntype = 'zip'\n", 2, "topk, qsgd"),
        ("# nothing\nlearning_rate = 1.0\n", 2, "section"),
        ("[training]\nbeta1 = 0.9\n[network]\nbeta1 = 0.9\n", 4, "[network]"),
        ("training = 3\n", 1, "[training]"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line_and_what_would_be_right(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(f"{file}:{line}:")) as error:
        load(CoordinatorConfig, file, environ={})
    assert words in str(error.value)


def test_a_missing_file_and_broken_toml_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(CoordinatorConfig, tmp_path / "none.toml", environ={})
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(CoordinatorConfig, write(tmp_path, "[training\n"), environ={})
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(CoordinatorConfig, tmp_path / "config.toml", environ={})


def test_option_wins_over_environment_wins_over_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[training]\nbeta1 = 0.1\nbeta2 = 0.1\nepsilon = 0.1\n")
    environ = {"FDTC_TRAINING_BETA2": "0.2", "FDTC_TRAINING_EPSILON": "0.2"}
    flags = {"training.epsilon": 0.3, "training.seed": None}
    training = load(CoordinatorConfig, file, flags, environ).training
    assert (training.beta1, training.beta2, training.epsilon, training.seed) == (0.1, 0.2, 0.3, 0)


def test_environment_is_checked_like_a_file() -> None:
    with pytest.raises(ConfigError, match="FDTC_TRAINING_LEARNING_RATE"):
        load(CoordinatorConfig, environ={"FDTC_TRAINING_LEARNING_RAT": "1"})
    with pytest.raises(ConfigError, match=r"FDTC_TRAINING_BETA1.*float"):
        load(CoordinatorConfig, environ={"FDTC_TRAINING_BETA1": "high"})
    # Both commands may share an environment.
    load(CoordinatorConfig, environ={"FDTC_NETWORK_COORDINATOR_HOST": "pi"})


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ConfigError, match="option --topk-ratio"):
        load(CoordinatorConfig, flags={"compression.topk_ratio": 3.0}, environ={})


def test_keys_alone_make_a_configuration_since_each_belongs_to_one_section() -> None:
    for kind in (CoordinatorConfig, WorkerConfig):
        keys = [key for section in kind.__struct_fields__ for key in getattr(kind(), section).__struct_fields__]
        assert len(keys) == len(set(keys))
    config = CoordinatorConfig.of(port=0, steps=5, type="none")
    assert (config.network.port, config.training.steps, config.compression.type) == (0, 5, "none")
    with pytest.raises(ConfigError, match="did you mean steps"):
        CoordinatorConfig.of(step=5)
    with pytest.raises(ConfigError, match="min_workers"):
        CoordinatorConfig.of(min_workers=0)
