"""What numba computes for a coordinator is what numpy does, and one that can't be used is no harm."""

from pathlib import Path

import pytest
import v1_peer as v1
from processes import WITH_NUMBA, WITHOUT_NUMBA, Swarm

STEPS = [[[0.5 * step, -2.0, 0.5, 0.0, 0.0, 4.0, 0.0, 1e-3], [3.0 - step]] for step in range(6)]
ADAM = {"FDTC_TRAINING_LEARNING_RATE": 0.1, "FDTC_TRAINING_WEIGHT_DECAY": 0.01, "FDTC_COMPRESSION_TYPE": "none"}
CLIPPED = ADAM | {"FDTC_TRAINING_CLIP_NORM": 1, "FDTC_TRAINING_BETA1": 0}


def weights_after(swarm: Swarm, steps: list[list[list[float]]], **settings: object) -> list[float]:
    """Push gradients to a new coordinator, end it, and return the weights that came of it."""
    coordinator = swarm.coordinator(**settings)
    with v1.Worker(coordinator.port, "pusher") as worker:
        worker.pull()
        for step in steps:
            worker.push(step, compression=v1.NONE)
            weights = worker.pull()[3]
    coordinator.control("shutdown")
    assert coordinator.exit_status() == 0
    return weights


@pytest.mark.parametrize("rule", [ADAM, CLIPPED], ids=["plain", "as in our stacks"])
def test_both_ways_lead_to_the_same_weights_also_in_turn(tmp_path: Path, rule: dict[str, object]) -> None:
    ways = {"numba": [WITH_NUMBA], "numpy": [WITHOUT_NUMBA], "in turn": [WITH_NUMBA, WITHOUT_NUMBA]}
    found = {}
    for name, runs in ways.items():
        swarm = Swarm(tmp_path / name)
        share = len(STEPS) // len(runs)
        for number, run in enumerate(runs):  # the second run goes on from the first one's checkpoint
            found[name] = weights_after(swarm, STEPS[number * share :][:share], **rule, **run)
            said = swarm.processes[-1].event("coordinator listens")
            assert said["arithmetic"] == ("numba" if run is WITH_NUMBA else "numpy")
        swarm.end()

    for way in ("numba", "in turn"):
        assert found[way] == pytest.approx(found["numpy"], rel=1e-6)
    assert len({abs(weight) for weight in found["numpy"]}) > 3  # it has learnt something


def test_a_numba_that_cannot_be_used_is_told_of_and_done_without(swarm: Swarm, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "numba.py").write_text("raise ImportError('Numba needs NumPy 1.0 or less')")
    path = WITH_NUMBA["PYTHONPATH"] + f":{broken}"

    assert weights_after(swarm, STEPS, **ADAM, PYTHONPATH=path)

    (coordinator,) = swarm.processes
    assert coordinator.event("coordinator listens")["arithmetic"] == "numpy"
    (warning,) = coordinator.events("numba can't be used; numpy does its work, more slowly")
    assert warning["reason"] == "Numba needs NumPy 1.0 or less"
