"""What can't be trained yet is refused at once, in plain words, by coordinator and worker alike."""

import pytest

LORA = {"FDTC_TRAINING_METHOD": "lora", "FDTC_TRAINING_LORA_RANK": "16"}


def started(swarm, command, model, **settings):
    """A coordinator or worker, and what it says that ends with status 1."""
    options = ("--model", model)
    starts = {
        "coordinator": lambda: swarm.coordinator(*options, **settings),
        "worker": lambda: swarm.worker(1, "one", *options, **settings),
    }
    process = starts[command]()
    assert process.exit_status() == 1, process.output
    return process.output


@pytest.mark.parametrize("command", ["coordinator", "worker"])
def test_lora_is_refused_before_a_large_model_is_made(swarm, command):
    said = started(swarm, command, "rwkv-1b", **LORA)
    assert 'rwkv-1b is to be trained with method = "lora"' in said
    assert "can't do yet" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["coordinator", "worker"])
def test_a_model_that_the_protocol_can_not_carry_is_refused_before_it_is_made(swarm, command):
    said = started(swarm, command, "rwkv-100m")
    assert "90766080 parameters take 363064320 bytes" in said
    assert "at most 67 million parameters" in said
    assert "Traceback" not in said


def test_an_unknown_method_names_those_there_are(swarm):
    said = started(swarm, "coordinator", "rwkv-tiny", FDTC_TRAINING_METHOD="qlora")
    assert "there are full, lora" in said
