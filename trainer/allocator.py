"""glibc's allocator, set up for training on a CPU.

A step allocates and frees the same hundreds of megabytes again and again. By default glibc returns large blocks to the
kernel at once and asks for them anew, and each new page is a fault that zeroes 4 KiB.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
KEEP_BYTES = 2**31 - 1


def tune_allocator(device: str) -> bool:
    """Makes this process keep freed memory for itself. Returns whether it did: only on Linux with glibc, on a CPU.

    Call it before the first tensors are made.
    """
    if device != "cpu" or sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, KEEP_BYTES), (M_TOP_PAD, 64 * 2**20))
    done = [mallopt(name, value) for name, value in settings]
    return all(done)
