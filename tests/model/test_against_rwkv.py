"""The model against an independent implementation: the package `rwkv`, by the author of RWKV, on torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from swarm_agent.models import open_model
from swarm_agent.rwkv7 import RWKV7, Config, parameter_shapes

torch = pytest.importorskip("torch")
pytest.importorskip("rwkv")

CONFIG = Config(layers=3, width=128, head_size=64, vocabulary=97, rank_w=8, rank_a=6, rank_v=5, rank_g=12)
TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, CONFIG.vocabulary, 45)]
# It reads its settings from the environment when imported, hence a process of its own.
THEIRS = """
import sys
import numpy
from rwkv.model import RWKV
tokens = [int(token) for token in sys.argv[1].split(",")]
for path in sys.argv[2:]:
    logits, _ = RWKV(model=path, strategy="cpu fp32").forward(tokens, None, full_output=True)
    numpy.save(path + ".npy", logits.numpy())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold ours.pth and theirs.pth, and their package's logits of both as .npy."""
    folder = tmp_path_factory.mktemp("rwkv")
    tensors = {name: torch.from_numpy(value.copy()) for name, value in our_model().parameters.items()}
    torch.save(tensors, folder / "ours.pth")
    torch.manual_seed(7)
    torch.save(
        {name: torch.randn(shape) * 0.2 for name, shape in parameter_shapes(CONFIG).items()}, folder / "theirs.pth"
    )
    settings = {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "1", "RWKV_CUDA_ON": "0", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", THEIRS, ",".join(map(str, TOKENS)), str(folder / "ours"), str(folder / "theirs")],
        env=os.environ | settings,
        check=True,
        capture_output=True,
        timeout=200,
    )
    return folder


def our_model() -> RWKV7:
    model = RWKV7(CONFIG)
    model.flat_parameters[:] = np.random.default_rng(6).normal(0, 0.2, model.num_parameters)
    return model


def test_our_model_opened_there_gives_our_logits(folder: Path) -> None:
    found = our_model().forward(np.array([TOKENS]))[0]
    assert np.abs(found).max() > 1
    np.testing.assert_allclose(found, np.load(folder / "ours.npy"), atol=1e-3)


def test_a_model_made_by_torch_opened_by_us_gives_their_logits(folder: Path) -> None:
    model, _ = open_model(str(folder / "theirs.pth"))
    assert model.config == CONFIG
    np.testing.assert_allclose(model.forward(np.array([TOKENS]))[0], np.load(folder / "theirs.npy"), atol=1e-3)
