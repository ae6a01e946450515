"""What the agent's image adds to its base: megabytes that each node downloads, by architecture, layer and package.

    python -m bench.image 192.168.1.10:5000/swarm-agent:0.1.0 192.168.1.10:5000/python:bookworm

Both images have to be in a registry that answers by plain HTTP (or https:// before its name). A package's own figure is
what its files come to when they are compressed by themselves, as the layer is.
"""

import argparse
import hashlib
import io
import json
import sys
import tarfile
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_INDEX = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFEST = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
MEGABYTE = 1e6


@dataclass(frozen=True)
class Layer:
    """One layer: its digest and how many bytes a node downloads for it."""

    digest: str
    size: int


@dataclass(frozen=True)
class InRegistry:
    """An image in a registry."""

    registry: str
    repository: str
    tag: str

    def get(self, kind: str, reference: str) -> bytes:
        scheme, _, host = self.registry.rpartition("://")
        request = urllib.request.Request(f"{scheme or 'http'}://{host}/v2/{self.repository}/{kind}/{reference}")
        request.add_header("Accept", ", ".join([*_INDEX, *_MANIFEST]))
        with urllib.request.urlopen(request, timeout=60) as reply:
            content: bytes = reply.read()
        return content

    def manifests(self) -> dict[str, Mapping[str, Any]]:
        """The manifest for each architecture."""
        top = json.loads(self.get("manifests", self.tag))
        if top["mediaType"] in _INDEX:
            return {
                entry["platform"]["architecture"]: json.loads(self.get("manifests", entry["digest"]))
                for entry in top["manifests"]
            }
        config = json.loads(self.get("blobs", top["config"]["digest"]))
        return {config["architecture"]: top}

    def configs(self) -> dict[str, Mapping[str, Any]]:
        """What the image says of itself, for each architecture."""
        return {
            arch: json.loads(self.get("blobs", manifest["config"]["digest"]))
            for arch, manifest in self.manifests().items()
        }

    def digest(self) -> str:
        """Of what its tag stands for."""
        return "sha256:" + hashlib.sha256(self.get("manifests", self.tag)).hexdigest()

    @property
    def reference(self) -> str:
        """Its full name."""
        return f"{self.registry}/{self.repository}:{self.tag}"

    def layers(self) -> dict[str, list[Layer]]:
        """The layers for each architecture, lowest first."""
        return {
            arch: [Layer(layer["digest"], layer["size"]) for layer in manifest["layers"]]
            for arch, manifest in self.manifests().items()
        }


def parse(reference: str) -> InRegistry:
    """Of ``HOST:PORT/NAME:TAG``."""
    scheme, separator, rest = reference.rpartition("://")
    host, _, name = rest.partition("/")
    repository, _, tag = name.partition(":")
    return InRegistry(f"{scheme}{separator}{host}", repository, tag or "latest")


def over_the_base(image: InRegistry, base: InRegistry) -> dict[str, list[Layer]]:
    """The layers that a node which has the base still has to download, for each architecture."""
    below = base.layers()
    return {arch: [layer for layer in layers if layer not in below[arch]] for arch, layers in image.layers().items()}


def contents(image: InRegistry, layer: Layer) -> Iterator[tuple[str, int, int]]:
    """Name, bytes and compressed bytes of each package in a layer."""
    size: Counter[str] = Counter()
    packed: dict[str, Any] = {}
    compressed: Counter[str] = Counter()
    with tarfile.open(fileobj=io.BytesIO(image.get("blobs", layer.digest))) as archive:
        for member in archive:
            if not member.isfile():
                continue
            name = _package(member.name)
            stream = packed.setdefault(name, zlib.compressobj(6))
            data = archive.extractfile(member).read()  # type: ignore[union-attr]  # it is a file
            size[name] += len(data)
            compressed[name] += len(stream.compress(data))
    for name, stream in packed.items():
        compressed[name] += len(stream.flush())
    for name, count in size.most_common():
        yield name, count, compressed[name]


def _package(path: str) -> str:
    """The package that a file belongs to: ``numpy.libs`` and ``numpy-2.4.6.dist-info`` are numpy's too."""
    words = path.removeprefix("opt/swarm-agent/").split("/")
    words = words[1:] if len(words) > 1 and words[0] != "bytecode" else words
    name = words[1].split(".")[0] if words[0] == "__pycache__" else words[0]
    return name.split("-")[0].removesuffix(".libs").removesuffix(".py")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.image", description=__doc__.partition("\n")[0])
    parser.add_argument("image", type=parse)
    parser.add_argument("base", type=parse)
    options = parser.parse_args(arguments)
    for arch, layers in over_the_base(options.image, options.base).items():
        below = sum(layer.size for layer in options.base.layers()[arch])
        total = sum(layer.size for layer in layers)
        print(f"{arch}: {total / MEGABYTE:.1f} MB over the base of {below / MEGABYTE:.1f} MB, compressed")
        for layer in layers:
            print(f"  layer {layer.digest[7:19]}  {layer.size / MEGABYTE:6.2f} MB")
            for name, size, packed in contents(options.image, layer):
                print(f"    {name:20} {size / MEGABYTE:6.2f} MB, compressed {packed / MEGABYTE:6.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
