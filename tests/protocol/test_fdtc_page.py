"""docs/protocol.md says what the code does: each of its tables is compared with the one that the code follows."""

from pathlib import Path

import fdtc
from fdtc import PROFILES, ErrorCode, MessageType, Role, State
from fdtc.constants import ERROR_TEXT_SIZE
from fdtc.fields import Kind
from fdtc.messages import LAYOUTS, MESSAGES, PAYLOAD_SIZES
from fdtc.states import MAY_SEND, TRANSITIONS

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
ROLES = {Role.WORKER: "w", Role.COORDINATOR: "c"}


def table(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, without its head."""
    lines = PAGE.split(f"# {heading}\n", 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows


def payload(type_: MessageType) -> str:
    sizes = PAYLOAD_SIZES[type_]
    if type_ is MessageType.WEIGHTS_META:
        return f"{LAYOUTS[type_].size} + {sizes.step} per tensor"
    if len(sizes) > 1:
        return f"{sizes[0]} + tensor data" if sizes[0] else "tensor data"
    return str(sizes[0]) if sizes[0] else "empty"


def direction(type_: MessageType) -> str:
    senders = [role for role in Role if any(type_ in types for types in MAY_SEND[role].values())]
    return "either" if len(senders) == 2 else f"{ROLES[senders[0]]} → {ROLES[senders[0].peer]}"


def wire_type(kind: Kind) -> str:
    known = {"B": "u8", "I": "u32", "Q": "u64", "f": "f32"}
    return known.get(kind.code, kind.code)


def test_messages_are_in_the_table_with_their_codes_sizes_and_states() -> None:
    rows = [
        [
            f"{type_:#04x}".replace("0xff", "0xFF"),
            type_.name,
            MESSAGES[type_].__name__,
            direction(type_),
            payload(type_),
        ]
        for type_ in MessageType
    ]
    assert table("Messages") == rows


def test_structs_are_in_the_table_with_their_offsets() -> None:
    rows = [
        [type_.name, name, wire_type(kind), str(layout.offsets()[name])]
        for type_, layout in LAYOUTS.items()
        for name, kind in layout.fields
    ]
    tensor = [["(per tensor)", *row] for row in
              (["name", "64s", "0"], ["ndim", "u32", "64"], ["shape", "8 × u64", "68"], ["numel", "u64", "132"],
               ["dtype", "u8", "140"])]  # fmt: skip
    after = max(i for i, row in enumerate(rows) if row[0] == "WEIGHTS_META") + 1
    assert table("Structs") == rows[:after] + tensor + rows[after:]
    assert f"{ERROR_TEXT_SIZE}s" in {row[2] for row in rows}


def test_the_state_table_is_the_code_s() -> None:
    rows = [[type_.name, *(_cell(type_, state) for state in State)] for type_ in MessageType]
    assert table("States") == rows


def _cell(type_: MessageType, state: State) -> str:
    """Who may send it, and the state that it leads to."""
    senders = "".join(ROLES[role] for role in Role if type_ in MAY_SEND[role][state])
    if not senders:
        return ""
    after = TRANSITIONS.get((state, type_))
    return f"{senders} → {after.value}" if after is not None else senders


def test_error_codes_are_in_the_table() -> None:
    assert [row[:2] for row in table("Error codes")] == [[str(int(code)), code.name] for code in ErrorCode]


def test_profiles_are_in_the_table() -> None:
    rows = [
        [str(int(spec.profile)), spec.profile.name, spec.hardware_class, str(spec.batch_size),
         str(spec.accumulation_steps)]
        for spec in sorted(PROFILES.values(), key=lambda spec: spec.profile)
    ]  # fmt: skip
    assert table("Profiles") == rows


def test_the_numbers_of_the_page_are_the_code_s() -> None:
    for number in (
        f"{fdtc.MAGIC:#010X}".replace("X", "x"),
        f"{fdtc.MAX_MESSAGE:,}",
        f"{fdtc.MAX_TENSORS:,}",
        str(fdtc.PORT),
    ):
        assert number in PAGE
