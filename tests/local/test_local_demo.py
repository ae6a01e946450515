"""The demo with the real agent, as short as it can be."""

import re

from .conftest import Swarmctl


def test_the_demo_tells_before_and_after_and_leaves_a_checkpoint_and_no_process(swarmctl: Swarmctl) -> None:
    ended = swarmctl.run("demo", "--steps", "4", "--minutes", "2", "--state", str(swarmctl.state / "demo"))
    told = ended.stdout
    assert told.count("ROMEO:") == 2
    losses = re.search(r"held-out loss +(\d\.\d+) before, (\d\.\d+) after", told)
    assert losses
    assert 5 < float(losses[1]) < 6
    assert float(losses[2]) != float(losses[1])
    assert re.search(r"gradients sent: .* instead of .* less\)", told)
    assert "counting alone gets" in told
    checkpoint = swarmctl.state / "demo" / "rwkv-tiny" / "checkpoints" / "ckpt-000000004"
    assert str(checkpoint) in told
    assert (checkpoint / "manifest.json").exists()
    assert swarmctl.agents() == []
