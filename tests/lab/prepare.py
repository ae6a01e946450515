"""Getting ready: packages, and a trial of each engine. Imports other parts of the lab."""

from tests.lab import packages
from tests.lab.images import tiny
from tests.lab.lab import Lab
from tests.lab.packages import Engine


def prepare() -> list[Engine]:
    """Get what is missing; nothing is done the second time. Returns the engines that run here, newest first.

    Raises:
        LabError: Not root, no apt, or no engine runs.
    """
    return packages.get(_trial)


def _trial(engine: Engine) -> None:
    """An engine works when it runs a container: Debian's newest may ask for a newer runc or C library than ours."""
    with Lab({"engine": engine.version, "nodes": ["trial"]}) as lab:
        lab.nodes["trial"].docker("run", "--rm", "--network", "none", tiny(lab), "true")
