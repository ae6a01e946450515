"""Waits until a local stack trains, and tells the story of how it comes up.

May import: ``local.observe``, ``local.client``, ``local.remedies``, ``console``, ``logs``, ``errors``.
"""

import time
from collections.abc import Iterable

from .. import coordinator
from ..console import Story, times
from ..errors import PartlyDoneError, SwarmctlError, WaitTimeoutError
from ..logs import Log, human
from . import checkpoints
from .client import ask
from .observe import Observed, how_it_ended, observe
from .processes import HOST
from .remedies import to_deploy
from .state import COORDINATOR, Folder

POLL_INTERVAL_SEC = 0.2
STOP_TIMEOUT_SEC = 120.0
CRASHES_TO_GIVE_UP = 3
LOG_LINES_SHOWN = 6


def wait_for_training(folder: Folder, story: Story, deadline: float, known: Iterable[str] = ()) -> Observed:
    """Wait until every worker takes part and the weights have changed; tell what happens meanwhile.

    Args:
        folder: The stack's folder.
        story: Where to tell it.
        deadline: By `time.monotonic`.
        known: Processes that were there before, of which nothing needs telling.

    Returns:
        What was seen at last: all of it trains, or is paused, or is finished.

    Raises:
        WaitTimeoutError: Not all of it trains at the deadline.
        PartlyDoneError: Some worker crashes again and again.
        SwarmctlError: The coordinator, or every worker, does.
    """
    watch = _Watch(folder, story, known)
    with story.waiting("waits for the coordinator") as show:
        while True:
            observed = _still_deployed(folder)
            watch.look(observed)
            if observed.is_finished:
                tell_finished(folder, story)
                return observed
            if watch.complete:
                _tell_training(observed, story)
                return observed
            watch.give_up_where_hopeless()
            if time.monotonic() > deadline:
                raise WaitTimeoutError(
                    f"not all of it trains yet: {watch.missing_in_words()}. It goes on in the background.",
                    f"swarmctl status --local --stack {folder.name} --watch",
                    f"swarmctl logs {watch.first_missing} --local --stack {folder.name} --tail 20",
                )
            show(f"waits for {watch.missing_in_words()}")
            time.sleep(POLL_INTERVAL_SEC)


class _Watch:
    """What was seen of a stack that comes up, and what of it has been told."""

    def __init__(self, folder: Folder, story: Story, known: Iterable[str]) -> None:
        self.folder = folder
        self.story = story
        self.told = set(known)
        self.restarts: dict[str, int] = {}
        self.restarts_at_first: dict[str, int] | None = None
        self.observed: Observed | None = None

    def look(self, observed: Observed) -> None:
        """Take in what is seen now, and tell what is new."""
        self.observed = observed
        processes = observed.state.processes if observed.state else {}
        if self.restarts_at_first is None:
            self.restarts_at_first = {name: process.restarts for name, process in processes.items()}
            self.restarts = dict(self.restarts_at_first)
        for name, process in processes.items():
            if process.restarts > self.restarts.get(name, 0):
                self.restarts[name] = process.restarts
                self.story.warn(f"{name} {how_it_ended(process)} and is started again")
        if observed.status and COORDINATOR not in self.told:
            self.told.add(COORDINATOR)
            self.story.done(
                "the coordinator listens", f"{HOST}:{observed.deployment.port}, model {observed.deployment.model}"
            )
        for spec in observed.deployment.processes:
            if spec.name not in self.told and observed.trains(spec.name):
                self.told.add(spec.name)
                facts = coordinator.worker(observed.status, spec.name)
                self.story.done(
                    f"{spec.name} trains", f"{facts.get('profile', '-')}, batch {facts.get('batch_size', '-')}"
                )

    @property
    def missing(self) -> list[str]:
        """Names of the processes that are not where they should be."""
        assert self.observed
        wanted = [spec.name for spec in self.observed.deployment.processes]
        if self.observed.status is None:
            return wanted
        return [name for name in wanted if name != COORDINATOR and not self.observed.trains(name)]

    @property
    def first_missing(self) -> str:
        """One process whose log may tell what is wrong."""
        return next(iter(self.missing), COORDINATOR)

    @property
    def complete(self) -> bool:
        """Whether all of it trains (or is paused)."""
        assert self.observed
        status = self.observed.status
        if status is None or self.missing:
            return False
        paused = coordinator.run_state(status) == "paused"
        return paused or not sum(self.observed.deployment.replicas.values()) or int(status.get("version") or 0) >= 1

    def missing_in_words(self) -> str:
        """Who is missing, and what is known of each."""
        assert self.observed
        words = []
        for name in self.missing:
            process = self.observed.process(name)
            state = process.state if process else "not started"
            state = "connects" if state == "running" else state
            if process and process.restarts:
                state += f", restarted {times(process.restarts)}"
            words.append(f"{name} ({state})")
        return ", ".join(words) or "the first update"

    def give_up_where_hopeless(self) -> None:
        """End the waiting where something crashes again and again."""
        assert self.observed
        lead = self.observed.process(COORDINATOR)
        if lead and lead.state == "failed":
            ask(self.folder, "stop", STOP_TIMEOUT_SEC)
            raise SwarmctlError(
                f"the coordinator did not come up: it {how_it_ended(lead)}. {last_words(self.folder, COORDINATOR)}",
                f"swarmctl logs coordinator --local --stack {self.folder.name}",
            )
        if not self.observed.supervised and not self.observed.is_finished:
            again = to_deploy(self.folder)
            raise SwarmctlError("the supervisor is gone", f"cat {self.folder.log('supervisor')}", again)
        at_first = self.restarts_at_first or {}
        crashing = [
            name for name in self.missing if self.restarts.get(name, 0) - at_first.get(name, 0) >= CRASHES_TO_GIVE_UP
        ]
        if crashing:
            message = f"again and again there crashes {', '.join(crashing)}. {last_words(self.folder, crashing[0])}"
            log = f"swarmctl logs {crashing[0]} --local --stack {self.folder.name}"
            if any(spec.name not in self.missing for spec in self.observed.deployment.processes[1:]):
                raise PartlyDoneError(f"{message}\nThe others go on.", log)
            remove = f"swarmctl rm --local --stack {self.folder.name}"
            raise SwarmctlError(f"{message}\nThe supervisor goes on trying.", log, remove)


def last_words(folder: Folder, process: str) -> str:
    """What a process last logged, for an error message."""
    lines = Log(process, folder.log(process)).last_lines(LOG_LINES_SHOWN)
    shown = (human(line).plain for line in lines)
    shown = (coordinator.without_remedy(line) if "--checkpoint-dir" in line else line for line in shown)
    return f"The last log lines of {process}:\n" + "\n".join(f"  {line}" for line in shown)


def _still_deployed(folder: Folder) -> Observed:
    observed = observe(folder)
    if observed is None:
        raise SwarmctlError(f"{folder.name} was removed meanwhile", to_deploy(folder))
    return observed


def _tell_training(observed: Observed, story: Story) -> None:
    status = observed.status or {}
    loss = status.get("loss")
    at = f"version {status.get('version', '-')}" + (f", loss {loss:.3f}" if loss is not None else "")
    for name, process in (observed.state.processes if observed.state else {}).items():
        if process.restarts:
            story.warn(f"{name} has been restarted {times(process.restarts)}; last it {how_it_ended(process)}")
    if coordinator.run_state(status) == "paused":
        story.warn(f"it is paused at {at}")
    elif not sum(observed.deployment.replicas.values()):
        story.warn(f"it waits at {at}: no worker is wished")
    else:
        story.done(f"it trains: {at}")


def tell_finished(folder: Folder, story: Story) -> None:
    """Say at which version the run is finished."""
    kept = checkpoints.newest(folder)
    at = f" at version {kept.version}" if kept else ""
    story.done(f"the run is finished{at}", str(kept.path) if kept else "")
