"""Sampling, and the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from swarm_agent import checkpoint
from swarm_agent.errors import ModelError
from swarm_agent.generate import generate, main, sample
from swarm_agent.models import open_model
from swarm_agent.rwkv7 import RWKV7, Config
from swarm_agent.tokenizers import ByteTokenizer

CONFIG = Config(layers=2, width=32, head_size=16, rank_w=4, rank_a=4, rank_v=4, rank_g=8)


@pytest.fixture(scope="module")
def model() -> RWKV7:
    model = RWKV7(CONFIG)
    model.flat_parameters[:] = np.random.default_rng(0).normal(0, 0.3, model.num_parameters)
    return model


def constant_model(text: bytes) -> RWKV7:
    """A model that says the text's bytes, all different, in a circle: an embedding points at the next head row."""
    assert len(set(text)) == len(text)
    model = RWKV7(Config(layers=1, width=256, head_size=16, rank_w=1, rank_a=1, rank_g=1))
    model.flat_parameters[:] = 0
    model.parameters["blocks.0.ln0.weight"][...] = 1
    model.parameters["ln_out.weight"][...] = 1
    for byte, following in zip(text, text[1:] + text[:1], strict=True):
        model.parameters["emb.weight"][byte + 1, byte] = 1
        model.parameters["head.weight"][following + 1, byte] = 1
    return model


# Sampling


def test_temperature_zero_takes_the_largest() -> None:
    rng = np.random.default_rng(0)
    assert {sample(np.array([0.0, 3.0, 2.9]), 0, 1, rng) for _ in range(20)} == {1}


def test_frequencies_are_the_probabilities() -> None:
    probabilities = np.array([0.5, 0.3, 0.2])
    rng = np.random.default_rng(0)
    chosen = [sample(np.log(probabilities), 1, 1, rng) for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(chosen) / 4000, probabilities, atol=0.03)


def test_a_low_temperature_sharpens() -> None:
    logits, rng = np.log(np.array([0.6, 0.4])), np.random.default_rng(0)
    cold = np.mean([sample(logits, 0.2, 1, rng) for _ in range(1000)])
    warm = np.mean([sample(logits, 5, 1, rng) for _ in range(1000)])
    assert cold < 0.2 < 0.4 < warm


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits, rng = np.log(np.array([0.05, 0.5, 0.3, 0.15])), np.random.default_rng(0)
    assert {sample(logits, 1, 0.5, rng) for _ in range(200)} == {1}
    assert {sample(logits, 1, 0.7, rng) for _ in range(200)} == {1, 2}
    assert {sample(logits, 1, 1.0, rng) for _ in range(400)} == {0, 1, 2, 3}


def test_impossible_tokens_are_never_chosen() -> None:
    logits = np.array([0.0, -np.inf, 0.0], np.float32)
    assert 1 not in {sample(logits, 1, 1, np.random.default_rng(seed)) for seed in range(100)}


@pytest.mark.parametrize(
    ("temperature", "top_p", "message"),
    [(-1, 0.9, "temperature"), (float("nan"), 0.9, "temperature"), (1, 0, "top_p"), (1, 1.1, "top_p")],
)
def test_settings_outside_their_range_are_refused(temperature: float, top_p: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(np.zeros(3), temperature, top_p, np.random.default_rng(0))


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not numbers"):
        sample(np.array([0.0, np.nan]), 1, 0.9, np.random.default_rng(0))


# Text


def test_characters_are_whole_although_tokens_are_bytes() -> None:
    pieces = list(generate(constant_model("é😀".encode()), ByteTokenizer(), "é", tokens=6, temperature=0))
    assert pieces == ["😀", "é"]


def test_a_character_cut_off_at_the_end_is_shown_as_replaced() -> None:
    assert "".join(generate(constant_model("é😀".encode()), ByteTokenizer(), "é", tokens=2, temperature=0)) == "\ufffd"


def test_the_end_of_a_text_ends_it() -> None:
    model = constant_model(b"ab")
    model.parameters["head.weight"][0] = 2 * model.parameters["head.weight"][ord("a") + 1]
    assert "".join(generate(model, ByteTokenizer(), "a", tokens=10, temperature=0)) == "b"


def test_the_seed_decides_the_text(model: RWKV7) -> None:
    def text(seed: int) -> str:
        return "".join(generate(model, ByteTokenizer(), "x", tokens=40, seed=seed))

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_an_empty_prompt_begins_a_new_text(model: RWKV7) -> None:
    assert len(list(generate(model, ByteTokenizer(), "", tokens=5, top_p=1.0))) > 0


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused() -> None:
    model = RWKV7(Config(layers=1, width=16, head_size=8, vocabulary=20))
    with pytest.raises(ModelError, match="trained with another one"):
        list(generate(model, ByteTokenizer(), "", tokens=5))


# The command


def save_checkpoint(folder: Path, version: int, model: RWKV7) -> Path:
    return checkpoint.save(folder, version, model.parameters, {"mean": np.zeros(1, np.float32)}, {}, keep=9)


def run(path: Path, *options: str, tokens: int = 6) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "swarm_agent.generate", str(path), "--tokens", str(tokens), *options],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )


def test_the_command_writes_prompt_and_text(tmp_path: Path) -> None:
    constant_model(b"lo, he").save(tmp_path / "model.safetensors")
    done = run(tmp_path / "model.safetensors", "--prompt", "lo", "--temperature", "0", tokens=10)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "lo, helo, he\n"


def test_the_newest_whole_checkpoint_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tmp_path, 1, constant_model(b"old"))
    save_checkpoint(tmp_path, 2, constant_model(b"new"))
    damaged = save_checkpoint(tmp_path, 3, constant_model(b"bad"))
    os.truncate(damaged / "weights.safetensors", 1000)
    assert main([str(tmp_path), "--prompt", "n", "--tokens", "2", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.endswith("new\n")


def test_one_checkpoint_can_be_named(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, constant_model(b"old"))
    save_checkpoint(tmp_path, 2, constant_model(b"new"))
    np.testing.assert_array_equal(open_model(str(path))[0].flat_parameters, constant_model(b"old").flat_parameters)


@pytest.mark.parametrize("kind", ["nothing", "empty folder", "rubbish", "rubbish.pth", "cut short"])
def test_what_is_no_model_gives_one_clear_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind.replace("rubbish", "rubbish.safetensors" if kind == "rubbish" else "rubbish")
    if kind == "empty folder":
        path.mkdir()
    elif kind.startswith("rubbish"):
        path.write_bytes(b"rubbish" * 20)
    elif kind == "cut short":
        path = save_checkpoint(tmp_path, 1, constant_model(b"old"))
        os.truncate(path / "weights.safetensors", 1000)
    done = run(path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(path) in done.stderr
    assert done.stderr.startswith("python -m swarm_agent.generate: ")


def test_a_wrong_setting_gives_one_clear_line(tmp_path: Path) -> None:
    constant_model(b"ab").save(tmp_path / "model.safetensors")
    done = run(tmp_path / "model.safetensors", "--top-p", "2")
    assert done.returncode == 1
    assert "top_p must be above 0 and at most 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    constant_model(b"ab").save(tmp_path / "model.safetensors")
    process = subprocess.Popen(
        [sys.executable, "-m", "swarm_agent.generate", str(tmp_path / "model.safetensors"), "--tokens", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(3)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0
    process.stderr.close()
