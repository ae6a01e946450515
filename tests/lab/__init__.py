"""Real Docker engines on machines of their own, inside this one: see docs/lab.md.

with Lab({"nodes": ["server-1", {"name": "pi-[01-02]", "hardware": "rpi4-4g"}]}) as lab:
    lab.nodes["server-1"].docker("swarm", "init", "--advertise-addr", lab.nodes["server-1"].address)
"""

from tests.lab.lab import Lab, attach
from tests.lab.node import LabNode
from tests.lab.packages import LabError
from tests.lab.spec import NodeSpec, Spec

__all__ = ["Lab", "LabError", "LabNode", "NodeSpec", "Spec", "attach"]
