"""What to type next, where it has to name a stack. May import: ``stack``, ``local.state``."""

import shlex

from ..stack import built_in_stacks
from .state import Deployment, Folder


def to_deploy(stack: Folder | Deployment, *options: str) -> str:
    """The command that deploys a stack again: a file of the user's own is named by its path, as `deploy` needs it."""
    deployment = stack.read_deployment() if isinstance(stack, Folder) else stack
    name = deployment.stack if deployment else stack.name if isinstance(stack, Folder) else stack.stack
    return " ".join(("swarmctl deploy --stack", _named(name, deployment), "--local", *options))


def _named(name: str, deployment: Deployment | None) -> str:
    built_in = built_in_stacks().get(name)
    if deployment is None:
        return name if built_in else "PATH-OF-ITS-FILE"
    return name if deployment.source in {"", str(built_in)} else shlex.quote(deployment.source)
