"""What this machine is good at. This module is free of TensorFlow."""

import functools
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def fast_precision(cpu_info: Path = CPU_INFO) -> str:
    """Return the Keras dtype policy in which this machine's CPU trains fastest.

    "mixed_bfloat16" with instructions for products of bfloat16 matrices (AMX), "float32" without. Without them bfloat16
    took 1.7 times as long here, although the CPU has other bfloat16 instructions (`benchmarks/training_speed.py`).
    """
    try:
        flags = cpu_info.read_text().split()
    except OSError:  # no Linux
        return "float32"
    return "mixed_bfloat16" if "amx_bf16" in flags else "float32"
