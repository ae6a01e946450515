"""Which machine, interpreter and libraries the figures are from: printed before every benchmark.

python -m bench.machine
"""

import os
import platform
import sys
from pathlib import Path

import numpy as np
import threadpoolctl

# OpenBLAS asks these which kernel to use, so a figure taken with them set is of another machine.
BLAS_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def describe() -> str:
    """Name processor, cores, load, Python, numpy and its BLAS, on a few lines."""
    kernels = [
        f"{b['internal_api']} {b['version']} {b.get('architecture', '')}, {b['num_threads']} threads"
        for b in threadpoolctl.threadpool_info()
    ]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        f"machine  {processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        f"python   {platform.python_version()}, numpy {np.__version__} ({'; '.join(kernels) or 'no BLAS found'})",
        f"load     {load} over 1, 5 and 15 minutes",
    ]
    lines += [f"note     {name}={os.environ[name]} is set" for name in BLAS_VARIABLES if name in os.environ]
    return "\n".join(lines)


def processor() -> str:
    """Name the processor as /proc/cpuinfo does, or as Python can."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.stdout.write(describe() + "\n")
