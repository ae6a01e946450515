"""`python -m tests.lab`: make a lab by hand and look around in it."""

import argparse
import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path

from tests.lab import lab as labs
from tests.lab.lab import Lab, attach
from tests.lab.packages import LabError
from tests.lab.prepare import prepare as get_ready
from tests.lab.spec import load


def prepare(_: argparse.Namespace) -> None:
    for engine in get_ready():
        print(f"Docker {engine.version} (Debian {engine.suite}) in {engine.root}")


def up(asked: argparse.Namespace) -> None:
    spec = load(asked.file)
    if asked.engine:
        spec = replace(spec, engine=asked.engine)
    get_ready()
    lab = Lab(spec, name=asked.name or asked.file.stem, keep=True).up()
    show(lab)


def down(asked: argparse.Namespace) -> None:
    there = labs.names()
    if not asked.name and not asked.all and len(there) > 1:
        raise LabError(f"which one? --name or --all (there: {', '.join(there)})")
    for name in [asked.name] if asked.name else there:
        labs.attach(name)  # says what there is when there is none
        labs.take_down(name)
        print(f"{name} is down")


def status(_: argparse.Namespace) -> None:
    for name in labs.names():
        with contextlib.suppress(LabError):  # taken down while we looked
            show(attach(name))
    if not labs.names():
        print("no labs")


def shell(asked: argparse.Namespace) -> None:
    for name in [asked.name] if asked.name else labs.names():
        lab = attach(name)
        if asked.node in lab.nodes:
            command = lab.nodes[asked.node].inside(
                *(asked.command or ["bash"]), environment={"TERM": os.environ.get("TERM", "dumb")}
            )
            os.execvp(command[0], command)
    raise LabError(f"no lab has a node {asked.node}")


def show(lab: Lab) -> None:
    print(f"{lab.name}: {lab.network}.0/24, files in {lab.folder}")
    for node in lab.nodes.values():
        engine = f"Docker {node.engine.version}" if node.engine_running else "engine does not answer"
        print(f"  {node.name:<16} {node.address:<14} {node.hardware:<12} {engine}  unix://{node.socket}")
    print(f"  as the operator:  . {lab.folder}/environment; ssh {next(iter(lab.nodes))}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for work, words in (
        (prepare, "get engines and tools (as root; again: what is missing)"),
        (up, "make a lab from a file"),
        (down, "take down one lab, or all"),
        (status, "what labs there are"),
        (shell, "a shell, or a command, in a node"),
    ):
        command = commands.add_parser(work.__name__, help=words)
        command.set_defaults(work=work)
        if work in (up, down, shell):
            command.add_argument("--name", default="", help="of the lab")
        if work is down:
            command.add_argument("--all", action="store_true", help="all labs, those of running tests too")
        if work is up:
            command.add_argument("file", type=Path)
            command.add_argument("--engine", default="", help="28, 26, 20.10: instead of the file's")
        if work is shell:
            command.add_argument("node")
            command.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    try:
        asked.work(asked)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
