"""How a service is doing, and why it is not whole: node by node, in words."""

from cluster_examples import node, observed, spec, task

from swarmctl.cluster.tasks import ServiceState, judge, unfit

NODES = [node("n1"), node("n2"), node("s1", "server")]
NO_NODE = "no suitable node (scheduling constraints not satisfied on 1 node)"


def state(*tasks: object, replicas: int = 2, nodes: object = NODES) -> ServiceState:
    seen = observed({"worker-rpi": spec("worker-rpi", replicas=replicas)}, tuple(tasks))  # type: ignore[arg-type]
    return judge("worker-rpi", seen.services["worker-rpi"], seen, nodes)  # type: ignore[arg-type]


def test_a_whole_service_needs_no_words() -> None:
    found = state(task("worker-rpi", 1, "n1"), task("worker-rpi", 2, "n2"))
    assert (found.running, found.wished, found.why, found.whole) == (2, 2, (), True)


def test_a_task_of_a_node_that_is_down_does_not_count_though_it_reads_running() -> None:
    nodes = [node("n1"), node("n2", state="down")]
    found = state(task("worker-rpi", 1, "n1"), task("worker-rpi", 2, "n2"), nodes=nodes)
    assert found.running == 1


def test_a_task_that_waits_is_told_with_what_it_waits_for() -> None:
    waiting = task("worker-rpi", 3, "", "pending", error=NO_NODE)
    found = state(task("worker-rpi", 1, "n1"), task("worker-rpi", 2, "n2"), waiting, replicas=3)
    assert (found.running, found.waiting) == (2, 1)
    assert "1 wait: no free node of class rpi (2 there)" in found.why[0]


def test_a_task_that_fails_is_told_with_its_last_words_and_where() -> None:
    broken = task("worker-rpi", 2, "n2", "failed", wanted="shutdown", error="task: non-zero exit (1)", exit_code=1)
    found = state(task("worker-rpi", 1, "n1"), broken)
    assert "1 failed, the last on host-n2: task: non-zero exit (1), exit code 1" in found.why


def test_of_each_slot_the_task_that_should_run_is_shown() -> None:
    old = task("worker-rpi", 1, "n1", "shutdown", wanted="shutdown", since="2026-01-02T00:00:00Z")
    assert [shown.state for shown in state(old, task("worker-rpi", 1, "n1")).tasks] == ["running"]


def test_each_node_says_what_speaks_against_it() -> None:
    raw = spec("worker-rpi")
    raw["TaskTemplate"]["Resources"] = {"Reservations": {"MemoryBytes": 8 << 30}}
    raw["TaskTemplate"]["Placement"]["Platforms"] = [{"Architecture": "amd64", "OS": "linux"}]
    seen = observed({"worker-rpi": raw}, (task("worker-rpi", 1, "n1"),))
    for found, said in (
        (node("x", "laptop"), "without label fdtc.class=rpi"),
        (node("x", state="down"), "down"),
        (node("x", availability="drain"), "drained"),
        (node("n1"), "with 1 of it already"),
        (node("x", memory_mb=4000), "with 4000 MiB of memory, where 8192 are reserved"),
        (node("x", memory_mb=16000), "of arm64, for which the image has nothing"),
        (node("x", memory_mb=16000, platform_arch="x86_64"), ""),
    ):
        assert said in unfit(raw, found, seen)
        assert bool(said) == bool(unfit(raw, found, seen))
