"""Lets a checkpoint write text: starts the agent's generator as a process. May import: ``local``, ``errors``."""

import subprocess
import sys
from pathlib import Path

from .errors import SwarmctlError
from .local import checkpoints
from .local.state import Folder


def checkpoints_of(folder: Folder) -> Path:
    """Where the checkpoints of a local stack are; the agent takes the newest that is whole.

    Raises:
        SwarmctlError: There is none yet.
    """
    found = checkpoints.newest(folder)
    if found is None:
        raise SwarmctlError(
            f"{folder.name} has no checkpoint yet", f"swarmctl checkpoint --local --stack {folder.name}"
        )
    return folder.checkpoints


def command(
    model: str | Path,
    *,
    prompt: str,
    tokens: int,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int | None = None,
) -> list[str]:
    """The command that generates text from a checkpoint's folder (or another name that the agent knows)."""
    return [
        *(sys.executable, "-m", "swarm_agent.generate", str(model)),
        *(f"--prompt={prompt}", "--tokens", str(tokens)),  # in one word, since a prompt may begin with a dash
        *("--temperature", str(temperature), "--top-p", str(top_p)),
        *(("--seed", str(seed)) if seed is not None else ()),
    ]


def run(model: Path, *, prompt: str, tokens: int, temperature: float, top_p: float, seed: int | None = None) -> None:
    """Generate to standard output.

    Raises:
        SwarmctlError: The generator failed; it has said why.
    """
    arguments = command(model, prompt=prompt, tokens=tokens, temperature=temperature, top_p=top_p, seed=seed)
    ended = subprocess.run(arguments, check=False, stderr=subprocess.PIPE, text=True, errors="replace")
    if ended.returncode:
        said = ended.stderr.strip().removeprefix("python -m swarm_agent.generate: ")
        raise SwarmctlError(said or f"the generator ended with exit code {ended.returncode}")
