"""The abilities of this machine. This module is free of TensorFlow."""

import functools
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def fast_precision(cpu_info: Path = CPU_INFO) -> str:
    """Return the Keras dtype policy in which this machine's CPU trains fastest.

    "mixed_bfloat16" with instructions for products of bfloat16 matrices (AMX), and on AMD's CPUs with AVX512_BF16; else
    "float32". By `benchmarks/training_speed.py` float32 took 1.5 times as long as bfloat16 on an AMD CPU with
    AVX512_BF16, and 0.6 times as long on an Intel CPU with AVX512_BF16 and without AMX.
    """
    try:
        words = cpu_info.read_text().split()
    except OSError:  # no Linux
        return "float32"
    fast = "amx_bf16" in words or ("AuthenticAMD" in words and "avx512_bf16" in words)
    return "mixed_bfloat16" if fast else "float32"
