"""The status of a local stack: as plain data (what ``--json`` prints) and as tables.

`report` is the only place that puts together what the supervisor and the coordinator know; its keys are documented in
``docs/local.md``. May import: ``local``, ``coordinator``, ``console``.
"""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from .. import coordinator
from ..console import duration, number, times
from . import checkpoints
from .observe import Observed, how_it_ended
from .remedies import to_deploy
from .state import COORDINATOR, ProcessSpec, living_process

Report = dict[str, Any]
_TRAINING = (
    *("version", "loss", "tokens", "tokens_per_sec", "parameters", "bytes_received", "bytes_sent", "weights_pulled"),
    *("gradients_applied", "gradients_refused", "avg_staleness", "max_staleness", "compression", "learning_rate"),
    *("uptime_sec", "checkpoint_error"),
)
_WORKER = (
    *("profile", "class", "batch_size", "accumulation_steps", "shard", "version", "pushes", "refused", "tokens"),
    *("loss", "samples_per_sec", "avg_staleness", "bytes_received", "last_seen_sec"),
)
_FAILING = "no checkpoint can be written"
_COLOURS = {
    "training": "green",
    "finishing": "blue",
    "finished": "blue",
    "paused": "yellow",
    "waiting": "yellow",
    "starting": "yellow",
    "connecting": "yellow",
    "stopping": "yellow",
    "restarting": "red",
}


def report(observed: Observed) -> Report:
    """Everything that is known of a stack, for programs."""
    deployment, status = observed.deployment, observed.status
    processes = [_process(observed, spec) for spec in deployment.processes]
    return {
        "stack": deployment.stack,
        "engine": "local",
        "state": _state(observed),
        "model": deployment.model,
        "source": deployment.source,
        "folder": str(observed.folder.path),
        "port": deployment.port,
        "http_port": deployment.http_port,
        "supervisor": {
            "running": observed.supervised,
            "pid": observed.state.supervisor_pid if observed.state and observed.supervised else None,
        },
        "training": _training(status) if status else _trained(observed),
        "checkpoint": _checkpoint(observed),
        "services": _services(observed, processes),
        "processes": processes,
        "notes": _notes(observed),
    }


def render(facts: Report) -> RenderableType:
    """The same for people."""
    parts: list[RenderableType] = [_heading(facts), process_table(facts)]
    failing = f"! {_FAILING}"
    for note in facts["notes"]:
        line = f"! {note}"
        parts.append(Text(line, "bold red" if line.startswith(failing) else "yellow"))
    return Group(*parts)


# Facts ---------------------------------------------------------------------------------------------------------


def _state(observed: Observed) -> str:
    if observed.is_finished:
        return "finished"
    if not observed.supervised:
        return "unsupervised" if observed.living else "stopped"
    if observed.status is not None:
        # It says so as soon as the last step is done, and then still has its last checkpoint to write.
        if observed.run_state == "training" and not sum(observed.deployment.replicas.values()):
            return "waiting"  # whatever the coordinator says: nobody is wished who could train
        return "finishing" if observed.run_state == "finished" else observed.run_state or "running"
    lead = observed.process(COORDINATOR)
    if lead is None or lead.state in {"waiting", "starting"}:
        return "starting"
    return "coordinator down" if lead.state != "running" else "coordinator does not answer"


def _training(status: Mapping[str, Any]) -> Report:
    run = status.get("run") if isinstance(status.get("run"), dict) else {}
    return {"steps": (run or {}).get("steps"), **{key: status.get(key) for key in _TRAINING}, **traffic(status)}


def _trained(observed: Observed) -> Report | None:
    """What the newest checkpoint says of a run that is over or stopped; None while it may still answer."""
    kept = checkpoints.newest(observed.folder) if _state(observed) in {"finished", "stopped"} else None
    if kept is None:
        return None
    known = {key: kept.manifest.get(key) for key in ("version", "loss", "tokens", "parameters")}
    count = kept.manifest.get("bytes")
    received, sent = count if isinstance(count, list) and len(count) == 2 else (None, None)
    config = kept.manifest.get("config")
    training = config.get("training") if isinstance(config, dict) else None
    steps = training.get("steps") if isinstance(training, dict) else None
    return _training({**known, "run": {"steps": steps}, "bytes_received": received, "bytes_sent": sent})


def traffic(status: Mapping[str, Any]) -> Report:
    """Work out what the gradients cost, from a coordinator's status or a checkpoint's manifest."""
    uncompressed, received = coordinator.uncompressed_bytes(dict(status)), status.get("bytes_received")
    return {
        "bytes_received": received,
        "bytes_per_token": coordinator.bytes_per_token(dict(status)),
        "bytes_uncompressed": uncompressed,
        "compression_ratio": uncompressed / received if uncompressed and received else None,
    }


def _checkpoint(observed: Observed) -> Report | None:
    known = observed.status.get("checkpoint") if observed.status else None
    if isinstance(known, dict):
        return {key: known.get(key) for key in ("version", "path", "age_sec")}
    kept = checkpoints.newest(observed.folder)
    if kept is None:
        return None
    age = time.time() - kept.path.stat().st_mtime
    return {"version": kept.version, "path": str(kept.path), "age_sec": round(age, 1)}


def _process(observed: Observed, spec: ProcessSpec) -> Report:
    process = observed.process(spec.name)
    seen = coordinator.worker(observed.status, spec.name)
    state = process.state if process else "stopped"
    if process and not observed.supervised and state not in {"finished", "failed", "stopped"}:
        state = "unwatched" if living_process(process) else "gone"
    elif state == "running" and spec.name != COORDINATOR:
        state = seen.get("state", "connecting")
    elif state == "running" and observed.status is not None:
        state = _state(observed)
    ending = process.last_ending if process else None
    return {
        "name": spec.name,
        "service": spec.service,
        "state": state,
        "pid": process.pid if process else None,
        "restarts": process.restarts if process else 0,
        "last_ending": {"at": ending.at, "exit_code": ending.code} if ending else None,
        **({key: seen.get(key) for key in _WORKER} if spec.name != COORDINATOR else {}),
    }


def _services(observed: Observed, processes: list[Report]) -> list[Report]:
    replicas = {COORDINATOR: 1, **observed.deployment.replicas}
    return [
        {
            "service": service,
            "wanted": wanted,
            "training": sum(p["service"] == service and p["state"] == "training" for p in processes),
        }
        for service, wanted in replicas.items()
    ]


def _notes(observed: Observed) -> list[str]:
    name = observed.folder.name
    notes = []
    failing = observed.status.get("checkpoint_error") if observed.status else None
    if failing:
        why = coordinator.without_remedy(str(failing))
        notes.append(f"{_FAILING}: {why} Free some space in {observed.folder.path}")
    for process in (observed.state.processes if observed.state else {}).values():
        if process.restarts:
            ago = f" {duration(time.time() - process.last_ending.at)} ago" if process.last_ending else ""
            how = f"last it {how_it_ended(process)}{ago}"
            notes.append(f"{process.name} was restarted {times(process.restarts)}; {how}")
    for known in (observed.status or {}).get("workers") or []:
        notes += coordinator.often_stale(str(known.get("id")), [known])
    state = _state(observed)
    if state == "unsupervised":
        notes.append(f"the supervisor was killed; to be watched again: {to_deploy(observed.deployment)}")
    elif state == "stopped":
        notes.append(f"nothing of it runs; to go on: {to_deploy(observed.deployment)}")
    elif state.startswith("coordinator"):
        notes.append(f"see swarmctl logs coordinator --local --stack {name} --tail 20")
    if observed.deployment.source and state == "paused":
        notes.append(f"to go on: swarmctl resume --local --stack {name}")
    return notes


# Tables --------------------------------------------------------------------------------------------------------


def _heading(facts: Report) -> RenderableType:
    training: Mapping[str, Any] = facts["training"] or {}
    checkpoint = facts["checkpoint"]
    colour = _COLOURS.get(facts["state"], "red")
    title = Text.assemble(
        (facts["stack"], "bold"), "  ", (facts["state"], f"bold {colour}"), (f"  model {facts['model']}, local", "dim")
    )
    steps = training.get("steps")
    version = _plain(training.get("version")) + (f" of {steps}" if steps else "")
    ratio = training.get("compression_ratio")
    saved = f" (float32: {ratio:.1f} times as much)" if ratio else ""
    refused = sum((training.get("gradients_refused") or {}).values())
    at = f"version {checkpoint['version']}, {duration(checkpoint['age_sec'])} ago" if checkpoint else "none yet"
    staleness = f"{_decimal(training.get('avg_staleness'), 2)} (most {_plain(training.get('max_staleness'))})"
    up = f"{_decimal(training.get('bytes_per_token'), 1)} bytes/token{saved}"
    figures = [
        *(("version", version), ("loss", _decimal(training.get("loss"), 3)), ("staleness", staleness)),
        *(("tokens", number(training.get("tokens"))), ("speed", number(training.get("tokens_per_sec"), "tokens/s"))),
        *(("sent up", up), ("gradients", f"{_plain(training.get('gradients_applied'))}, {refused} refused")),
        *(("since", duration(training.get("uptime_sec"))), ("checkpoint", at)),
    ]
    return Group(title, _Figures(figures), Text())


class _Figures:
    """Named figures, three in a row or as many as fit."""

    def __init__(self, figures: list[tuple[str, str]]) -> None:
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        in_a_row = next((n for n in (3, 2) if self._width(n) <= options.max_width), 1)
        grid = Table.grid(padding=(0, 2))
        for _ in range(in_a_row):
            grid.add_column(style="dim", no_wrap=True)
            grid.add_column(no_wrap=in_a_row > 1)
        for i in range(0, len(self.figures), in_a_row):
            grid.add_row(*(text for figure in self.figures[i : i + in_a_row] for text in figure))
        yield grid

    def _width(self, in_a_row: int) -> int:
        columns = [self.figures[i::in_a_row] for i in range(in_a_row)]
        names = sum(max(len(name) for name, _ in column) for column in columns)
        return names + sum(max(len(text) for _, text in column) for column in columns) + 2 * (2 * in_a_row - 1)


_COLUMNS = (
    *("name", "class", "profile", "state", "batch", "samples/s", "loss", "pushes", "refused", "staleness"),
    *("restarts", "pid"),
)
_TO_THE_LEFT = ("name", "class", "profile", "state")
# What a narrow terminal does without, the first first; name, state and pid stay whole.
_DISPENSABLE = ("profile", "restarts", "staleness", "class", "refused", "batch", "pushes", "samples/s", "loss")


def process_table(facts: Report) -> RenderableType:
    """The table of processes alone, with as many columns as fit."""
    idle = [s["service"] for s in facts["services"] if s["wanted"] == 0]
    table = _Processes([_cells(process) for process in facts["processes"]])
    return Group(table, Text(f"none wished: {', '.join(idle)}", "dim")) if idle else table


class _Processes:
    """The table of processes; what does not fit in the width is left out by the column, not cut."""

    def __init__(self, rows: list[dict[str, Text]]) -> None:
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = list(_COLUMNS)
        for name in _DISPENSABLE:
            if self._width(columns) <= options.max_width:
                break
            columns.remove(name)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in columns:
            table.add_column(name, no_wrap=True, justify="left" if name in _TO_THE_LEFT else "right")
        for row in self.rows:
            table.add_row(*(row[name] for name in columns))
        yield table

    def _width(self, columns: list[str]) -> int:
        widths = (max(len(name), *(row[name].cell_len for row in self.rows)) for name in columns)
        return sum(widths) + 2 * len(columns)


def _cells(process: Report) -> dict[str, Text]:
    state, restarts = process["state"], process["restarts"]
    is_worker = process["name"] != COORDINATOR
    texts = (
        Text(process["name"]),
        Text(process["service"].removeprefix("worker-") if is_worker else ""),
        Text(process.get("profile") or ""),
        Text(state, _COLOURS.get(state, "red" if state != "running" else "green")),
        *(Text(figure) for figure in _figures(process)),
        Text(str(restarts), "yellow" if restarts else "dim"),
        Text(_plain(process["pid"])),
    )
    return dict(zip(_COLUMNS, texts, strict=True))


def _figures(process: Report) -> tuple[str, ...]:
    if process["name"] == COORDINATOR:
        return ("",) * 6
    refused = process.get("refused")
    return (
        _plain(process.get("batch_size")),
        _decimal(process.get("samples_per_sec"), 1),
        _decimal(process.get("loss"), 3),
        _plain(process.get("pushes")),
        str(sum(refused.values())) if isinstance(refused, dict) else _plain(refused),
        _decimal(process.get("avg_staleness"), 2),
    )


def _plain(value: object) -> str:
    return "-" if value is None else str(value)


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
