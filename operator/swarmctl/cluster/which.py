"""Which stack a command means. May import: ``observe``; ``fleet.engine``, ``stack``, ``errors``."""

from collections.abc import Sequence

from ..errors import UnreachableError, UsageError
from ..fleet.engine import Engine
from ..stack import find, is_path, load, to_type
from .observe import stacks


def chosen(engine: Engine, name: str | None, there: Sequence[str] | None = None) -> str:
    """The stack that is meant, by its name or its file; without a name, the only one.

    Args:
        engine: A manager's.
        name: What was typed.
        there: Stacks to choose from; default: those that have services.

    Raises:
        UsageError: There are several and none was named.
        UnreachableError: It is not deployed.
    """
    there = stacks(engine) if there is None else there
    path = find(name) if name is not None and is_path(name) else None
    if path is not None:
        name = load(str(path)).name
    if name is None and len(there) == 1:
        return there[0]
    if name is None and there:
        raise UsageError("several stacks are deployed; say which", *(f"--stack {other}" for other in there))
    if name is None or name not in there:
        also = f"; deployed are {', '.join(there)}" if there else ""
        raise UnreachableError(
            f"{name or 'no stack'} is {'not ' if name else ''}deployed in the swarm{also}",
            f"swarmctl deploy --stack {to_type(name or 'rwkv-tiny', path)}",
        )
    return name
