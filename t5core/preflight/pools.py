"""The devices of each node pool, and of this machine."""

from __future__ import annotations

import os
import pathlib

from t5core.preflight.record import Devices

GIB = 1 << 30

# Source of the memory of a TPU chip: Cloud TPU's system architecture pages, v5e 16 GiB and v6e 32 GiB of HBM. Which
# GPU a pool has, its nodes know; on the CPU pool a device is the pod, with what `tasks.profiles` asks for.
POOLS = {
    "cpu": Devices(name="pool cpu", count=1, memory_bytes=16 * GIB),
    "gpu_1": Devices(name="pool gpu_1", count=1, memory_bytes=None),
    "tpu_v5e_8": Devices(name="pool tpu_v5e_8", count=8, memory_bytes=16 * GIB),
    "tpu_v6e_8": Devices(name="pool tpu_v6e_8", count=8, memory_bytes=32 * GIB),
}


def this_machine() -> Devices:
    """Returns the devices of this machine, those that a local run trains on."""
    import jax

    devices = jax.devices()
    kind = f"this machine's {devices[0].platform}"
    if devices[0].platform == "cpu":
        return Devices(name=kind, count=len(devices), memory_bytes=_machine_memory() // jax.local_device_count())
    limits = devices[0].memory_stats() or {}
    return Devices(name=kind, count=len(devices), memory_bytes=limits.get("bytes_limit"))


def _machine_memory() -> int:
    """Returns the memory that this process may use: the machine's, or the container's where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.exists() else "max"
    return min(total, int(text)) if text.isdecimal() else total
