"""What doctor prints: for people, grouped by machine and with nothing said twice; for programs, all of it."""

import json
from collections.abc import Sequence

from rich.console import Console

from swarmctl.fleet.doctor import as_json, render, summary
from swarmctl.fleet.facts import Finding

CGROUP = ("the kernel's memory controller is off", ("sudo sed -i '1 s/$/ cgroup_enable=memory/' FILE", "sudo reboot"))
FINDINGS = (
    Finding("warning", "memory-cgroup", "pi-01", *CGROUP),
    Finding("warning", "memory-cgroup", "pi-02", *CGROUP),
    Finding("error", "ports", "pi-02", "nobody reaches its UDP 4789", ("sudo ufw allow 4789/udp",)),
    Finding("warning", "heartbeat", "swarm", "5 s", ("swarmctl doctor --fix",), fix="heartbeat"),
)


def printed(findings: Sequence[Finding], width: int = 200) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(render(findings), soft_wrap=True)
    return capture.get()


def test_the_findings_stand_under_their_machines_and_the_swarms_come_first() -> None:
    lines = [line.rstrip() for line in printed(FINDINGS).splitlines()]
    assert lines == [
        "swarm",
        "  ! heartbeat  5 s  (--fix mends it)",
        "      swarmctl doctor --fix",
        "",
        "pi-01, pi-02",
        "  ! memory-cgroup  the kernel's memory controller is off",
        "      sudo sed -i '1 s/$/ cgroup_enable=memory/' FILE",
        "      sudo reboot",
        "",
        "pi-02",
        "  ✗ ports  nobody reaches its UDP 4789",
        "      sudo ufw allow 4789/udp",
        "",
        "1 error, 3 warnings; swarmctl doctor --fix mends 1 of them",
    ]


def test_what_twenty_machines_have_alike_is_told_once() -> None:
    text = printed([Finding("warning", "memory-cgroup", f"pi-{i:02}", *CGROUP) for i in range(20)])
    assert text.count("sudo reboot") == 1
    assert "pi-07 and 12 more" in text


def test_a_command_is_whole_on_a_narrow_terminal() -> None:
    command = "sudo firewall-cmd --permanent " + " ".join(f"--add-port={port}/tcp" for port in range(2377, 2387))
    text = printed([Finding("error", "ports", "pi-01", "shut", (command,))], width=60)
    assert f"      {command}\n" in text


def test_nothing_found_is_said() -> None:
    assert printed(()) == "nothing found that is wrong\n"


def test_brackets_in_a_message_are_printed_as_they_are() -> None:
    assert "a [bold] word" in printed([Finding("error", "x", "pi-01", "a [bold] word", ("echo [1]",))])


def test_programs_get_all_of_it() -> None:
    data = json.loads(json.dumps(as_json(FINDINGS)))
    assert (data["errors"], data["warnings"]) == (1, 3)
    assert data["findings"][3] == {
        "severity": "warning",
        "check": "heartbeat",
        "where": "swarm",
        "message": "5 s",
        "remedy": ["swarmctl doctor --fix"],
        "fix": "heartbeat",
        "subject": "",
    }


def test_counts_are_in_words() -> None:
    assert summary(FINDINGS[2:3]) == "1 error, 0 warnings"
