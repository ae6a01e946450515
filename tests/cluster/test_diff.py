"""Differences between specs: only what is declared counts, and an unordered list has no order."""

from cluster_examples import as_the_engine_keeps_it, spec
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.cluster.diff import Difference, differences


def test_what_the_engine_adds_by_itself_is_no_difference() -> None:
    wanted = spec("worker-rpi")
    assert differences(as_the_engine_keeps_it(wanted), wanted) == []


def test_a_changed_field_is_named_by_its_path() -> None:
    old, new = spec("worker-rpi"), spec("worker-rpi", image="agent:2", replicas=3)
    assert differences(old, new) == [
        Difference("Mode.Replicated.Replicas", 1, 3),
        Difference("TaskTemplate.ContainerSpec.Image", "agent:1", "agent:2"),
    ]


def test_variables_are_compared_one_by_one() -> None:
    old, new = spec("w", Env=["A=1", "B=2"]), spec("w", Env=["C=x=y", "A=9"])
    assert differences(old, new) == [
        Difference("TaskTemplate.ContainerSpec.Env.A", "1", "9"),
        Difference("TaskTemplate.ContainerSpec.Env.B", "2", None),
        Difference("TaskTemplate.ContainerSpec.Env.C", None, "x=y"),
    ]


def test_an_entry_that_is_not_wanted_any_more_goes() -> None:
    mounts = [{"Target": "/a", "Source": "a"}, {"Target": "/b", "Source": "b"}]
    old, new = {"Mounts": mounts}, {"Mounts": mounts[1:]}
    assert differences(old, new) == [Difference("Mounts./a", mounts[0], None)]


def test_a_key_goes_only_where_it_was_declared_before() -> None:
    old = {"Labels": {"ours": "1", "theirs": "2"}}
    assert differences(old, {"Labels": {}}) == []
    assert differences(old, {"Labels": {}}, {"Labels": {"ours": "1"}}) == [Difference("Labels.ours", "1", None)]


def test_nothing_in_its_many_forms_is_the_same() -> None:
    assert differences({"A": None}, {"A": 0, "B": [], "C": {}, "D": "", "E": False}) == []


def test_order_counts_where_it_means_something() -> None:
    assert differences({"Args": ["a", "b"]}, {"Args": ["b", "a"]}) == [Difference("Args", ["a", "b"], ["b", "a"])]


_LEAF = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text("ab=", max_size=3))
_SPECS = st.recursive(
    st.dictionaries(st.sampled_from(["A", "B", "Env", "Labels"]), _LEAF, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["A", "B", "TaskTemplate"]), st.one_of(_LEAF, inner), max_size=3),
    max_leaves=8,
)


@given(_SPECS)
def test_nothing_differs_from_itself(raw: dict[str, object]) -> None:
    assert differences(raw, raw, raw) == []


@given(_SPECS, _SPECS)
def test_any_two_can_be_compared(old: dict[str, object], new: dict[str, object]) -> None:
    assert all(difference.old != difference.new for difference in differences(old, new))
