"""Reads the files that a stack file names, and makes every path in it absolute.

Paths count from the stack file's folder, as in Compose. May import: ``schema``, ``units``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .paths import expanded
from .schema import Places, Problem
from .units import size_text

# Of one config or secret, which managers keep and send to every node that needs it: the limit of Docker 20.10.
DATA_SUFFIXES = (".txt", ".jsonl", ".bin")
MOST_CONFIG_BYTES = 500 * 1024 - 1


def resolve(
    content: dict[str, Any], folder: Path, environ: Mapping[str, str], places: Places, problems: list[Problem]
) -> dict[str, bytes]:
    """Fill in what lies outside of the file: env files, configs, secrets, and data if it is small.

    Args:
        content: As the schema has read it; where that found problems, parts are None or missing. Changed in place.
        folder: Where relative paths begin.
        environ: Values of variables that a service takes over by their name.
        places: Where keys stand.
        problems: What can't be read is added.

    Returns:
        What the files hold, by absolute path.
    """

    def refuse(path: str, message: str) -> None:
        problems.append(Problem(*places.get(path, (1, 1)), path, message))

    files: dict[str, bytes] = {}
    for name, keys in (content.get("services") or {}).items():
        if isinstance(keys, dict):
            _fill_environment(keys, f"services.{name}", folder, environ, refuse)
            for mount in keys.get("volumes") or ():
                if mount and mount.get("type") == "bind" and mount.get("source"):
                    mount["source"] = absolute(mount["source"], folder)
    for section in ("configs", "secrets"):
        for name, keys in (content.get(section) or {}).items():
            if keys and keys.get("file") and not keys.get("external"):
                keys["file"] = absolute(keys["file"], folder)
                _take(keys["file"], f"{section}.{name}.file", files, refuse)
    ours = content.get("x-fdtc") or {}
    if looks_like_path(ours.get("data")):
        ours["data"] = absolute(ours["data"], folder)
        if wrong := _wrong_with_data(Path(ours["data"])):
            refuse("x-fdtc.data", wrong)
        if (data := _small(Path(ours["data"]))) is not None:
            files[ours["data"]] = data
    return files


def _wrong_with_data(path: Path) -> str:
    """What the agent would say of a file; nothing of one that is not here, which may be so in the containers."""
    if not path.exists():
        return ""
    if not path.is_file():
        return f"{path} is not a file"
    if path.suffix not in DATA_SUFFIXES:
        return f"the name of {path} must end in {' or '.join(DATA_SUFFIXES)}, which says how it is read"
    return "" if path.stat().st_size else f"{path} is empty"


def looks_like_path(data: object) -> bool:
    """Whether data is a path: other names stand for texts that the agent brings along, or for its own code."""
    return isinstance(data, str) and data.startswith(("./", "../", "/", "~"))


def absolute(path: str, folder: Path) -> str:
    """A path as seen from a folder."""
    return str((folder / expanded(path)).resolve())


def _take(path: str, key: str, files: dict[str, bytes], refuse: Any) -> None:
    try:
        size = Path(path).stat().st_size
        if size > MOST_CONFIG_BYTES:
            refuse(key, f"{path} has {size_text(size)}; a swarm keeps at most {size_text(MOST_CONFIG_BYTES)} of a file")
        elif not size:
            refuse(key, f"{path} is empty, and a swarm keeps nothing that is")
        else:
            files[path] = Path(path).read_bytes()
    except OSError as error:
        refuse(key, f"can't read {path}: {error.strerror}")


def _small(path: Path) -> bytes | None:
    """A file's content, if it is one that fits into a config. Otherwise the engine in question says what is wrong."""
    try:
        fits = path.is_file() and 0 < path.stat().st_size <= MOST_CONFIG_BYTES
        return path.read_bytes() if fits else None
    except OSError:
        return None


def _fill_environment(
    service: dict[str, Any], path: str, folder: Path, environ: Mapping[str, str], refuse: Any
) -> None:
    own = service.get("environment") or {}
    of_files: dict[str, str | None] = {}
    for i, name in enumerate(service.pop("env_file", None) or ()):
        key = f"{path}.env_file[{i}]"
        try:
            of_files |= _env_file(Path(absolute(name, folder)).read_text(encoding="utf-8"))
        except OSError as error:
            refuse(f"{path}.env_file", f"can't read {name}: {error.strerror}")
        except ValueError as error:
            refuse(key, f"{name}: {error}")
    if own or of_files:
        both = {**of_files, **own}
        service["environment"] = {key: environ.get(key) if value is None else value for key, value in both.items()}


def _env_file(text: str) -> dict[str, str | None]:
    """``NAME=VALUE`` a line, values taken as they are; a name alone stands for the variable of this environment."""
    found: dict[str, str | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not name or name != name.strip() or " " in name:
            raise ValueError(f"line {number} is not NAME=VALUE")
        found[name] = value if equals else None
    return found
