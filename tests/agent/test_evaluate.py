"""Held-out loss is the loss of the windows it says, for every form of checkpoint; errors are one message."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from swarm_agent import checkpoint
from swarm_agent.data import open_data
from swarm_agent.evaluate import evaluate, main
from swarm_agent.rwkv7 import PRESETS, RWKV7, Config
from swarm_agent.tokenizers import get_tokenizer

SMALL = Config(layers=2, width=32, head_size=16, rank_w=8, rank_a=8, rank_v=8, rank_g=8)


@pytest.fixture(scope="module")
def model() -> RWKV7:
    model = RWKV7(SMALL, seed=3)
    rng = np.random.default_rng(3)
    model.flat_parameters += rng.normal(0, 0.02, model.flat_parameters.size).astype(np.float32)
    return model


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"This is line {number}.\n" for number in range(3000)))
    return path


@pytest.fixture
def checkpoints(tmp_path: Path, model: RWKV7) -> Path:
    folder = tmp_path / "checkpoints"
    for version in (1, 2):
        checkpoint.save(folder, version, dict(model.parameters), {"steps": np.array([version])}, {}, keep=3)
    return folder


def measured(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main([*map(str, arguments), "--json"]) == 0
    facts: dict[str, object] = json.loads(capsys.readouterr().out)
    return facts


def test_the_loss_is_the_mean_over_every_held_out_window(model: RWKV7, text: Path) -> None:
    opened = open_data(text, tokenizer=get_tokenizer("bytes"), context=24, split="held-out")
    losses = [model.loss(opened.next_batch(1)) for _ in range(opened.windows)]
    opened.reset()
    result = evaluate(model, opened, tokens=10**9)
    assert result.tokens == 24 * opened.windows
    assert result.loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_an_untrained_model_is_as_good_as_guessing(capsys: pytest.CaptureFixture[str]) -> None:
    facts = measured(capsys, "init:rwkv-tiny", "--tokens", 512)
    assert facts["loss"] == pytest.approx(math.log(257), abs=0.15)
    assert facts["tokens"] == 512
    assert facts["parameters"] == RWKV7(PRESETS["rwkv-tiny"]).num_parameters


def test_every_form_of_a_checkpoint_gives_the_same_loss(
    checkpoints: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = checkpoint.find(checkpoints)[-1]
    forms = (checkpoints, newest, newest / checkpoint.WEIGHTS)
    facts = [measured(capsys, form, "--data", text, "--tokens", 1000) for form in forms]
    assert len({fact["loss"] for fact in facts}) == 1
    assert facts[0]["checkpoint"] == str(newest)
    assert facts[0]["tokens"] == 1024


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    checkpoints: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newest = checkpoint.find(checkpoints)
    weights = newest / checkpoint.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-7])
    facts = measured(capsys, checkpoints, "--data", text, "--tokens", 128)
    assert facts["checkpoint"] == str(older)
    assert main([str(newest), "--data", str(text)]) == 1
    assert "cut short" in capsys.readouterr().err


def test_the_result_is_a_sentence_for_people(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init:rwkv-tiny", "--data", str(text), "--tokens", "256"]) == 0
    assert "nats per byte on 256 held-out bytes" in capsys.readouterr().out


def test_what_is_no_checkpoint_or_no_data_is_told_in_one_line(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = {
        ("nowhere",): "there is no nowhere",
        (str(empty),): "holds no checkpoint",
        (str(text),): "can't be opened as a model",
        ("init:gpt",): "Built in are rwkv-tiny",
        ("init:rwkv-tiny", "--data", "nowhere.txt"): "there is no file nowhere.txt",
        ("init:rwkv-tiny", "--data", str(text), "--context", "100000"): "too few",
    }
    for arguments, message in cases.items():
        assert main(list(arguments)) == 1
        told = capsys.readouterr()
        assert message in told.err
        assert told.err.count("\n") == 1
        assert not told.out
