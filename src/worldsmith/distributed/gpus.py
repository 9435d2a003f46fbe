"""GPUs for which runs are planned and measured, with the values of the manufacturers' data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from worldsmith.config.errors import UserError
from worldsmith.config.tree.suggest import nearest

GIB = 2**30
NVLINK_3, NVLINK_4, NVLINK_5 = 300e9, 450e9, 900e9
PCIE_4, PCIE_5 = 32e9, 64e9
"""Bandwidths of NVLink and PCIe generations in bytes per second, in one direction."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPU model in a typical server, with its peak rates from data sheets; 0 means unknown."""

    name: str
    memory: int
    """Memory in bytes that a process can use, as the driver reports it; it is less than the nominal size."""
    peak_flops: float = 0.0
    """Dense bfloat16 matmul FLOP/s with float32 accumulation."""
    bandwidth: float = 0.0
    """Memory bandwidth in bytes per second."""
    link: float = 0.0
    """Bandwidth to another GPU in the same machine, in bytes per second, one way."""
    host_link: float = 0.0
    """Bandwidth to host RAM (PCIe x16), in bytes per second, one way."""
    network: float = 0.0
    """Assumed network bandwidth between machines per GPU, one way, in bytes per second (not from data sheets)."""
    driver_names: tuple[str, ...] = ()
    """Parts of the device name that the driver reports for this GPU."""
    per_machine: int = 8
    """Number of GPUs per machine."""
    reached: float = 0.8
    """Fraction of `peak_flops` that a large matmul reaches before power limits it: 0.8 was measured on an H200."""


def _gpu(
    name: str, gib: float, tera: float, bandwidth: float, link: float, host_link: float, gigabits: int, *known_as: str
) -> Gpu:
    """Builds a `Gpu` from the usual units of data sheets.

    Args:
        name: Name of the GPU in plans.
        gib: Memory in GiB.
        tera: Peak rate in TFLOP/s.
        bandwidth: Memory bandwidth in TB/s.
        link: Bandwidth to another GPU in the machine, in bytes per second.
        host_link: Bandwidth to host RAM, in bytes per second.
        gigabits: Network bandwidth per GPU in Gbit/s.
        known_as: Substrings by which the device name that the driver reports is recognized.
    """
    reached = 0.88 if name.startswith("a100") else 0.8
    network = gigabits * 1e9 / 8
    return Gpu(name, int(gib * GIB), tera * 1e12, bandwidth * 1e12, link, host_link, network, known_as, reached=reached)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("b200", 178.3, 2250, 8.0, NVLINK_5, PCIE_5, 400, "B200"),
        _gpu("h200", 139.7, 989, 4.8, NVLINK_4, PCIE_5, 400, "H200"),
        _gpu("h100-80", 79.1, 989, 3.35, NVLINK_4, PCIE_5, 400, "H100", "H800"),
        _gpu("h100-94", 93.1, 835, 3.9, PCIE_5, PCIE_5, 200, "H100 NVL"),
        _gpu("h100-pcie", 79.1, 756, 2.0, PCIE_5, PCIE_5, 200, "H100 PCIe"),
        _gpu("a100-80", 79.1, 312, 2.0, NVLINK_3, PCIE_4, 200, "A100", "A800"),
        _gpu("a100-40", 39.4, 312, 1.555, NVLINK_3, PCIE_4, 200, "A100-SXM4-40GB", "A100-PCIE-40GB"),
        _gpu("l40s", 44.4, 362, 0.864, PCIE_4, PCIE_4, 100, "L40S"),
        _gpu("l4", 22.0, 121, 0.3, PCIE_4, PCIE_4, 100, "L4"),
        _gpu("a10", 22.0, 125, 0.6, PCIE_4, PCIE_4, 100, "A10G", "A10"),
        _gpu("rtx-pro-6000", 94.9, 503, 1.792, PCIE_5, PCIE_5, 100, "RTX PRO 6000"),
        _gpu("rtx-6000-ada", 47.4, 364, 0.96, PCIE_4, PCIE_4, 100, "RTX 6000 Ada"),
        _gpu("rtx-a6000", 47.4, 155, 0.768, PCIE_4, PCIE_4, 100, "RTX A6000"),
        _gpu("rtx-5090", 31.3, 209, 1.792, PCIE_5, PCIE_5, 100, "RTX 5090"),
        _gpu("rtx-4090", 23.5, 165, 1.008, PCIE_4, PCIE_4, 100, "RTX 4090"),
        _gpu("rtx-3090", 23.5, 71, 0.936, PCIE_4, PCIE_4, 100, "RTX 3090"),
    )
}
"""GPUs by name; within a series, larger and newer GPUs come first."""
ALSO = {"h100": "h100-80", "h100-sxm": "h100-80", "h100-nvl": "h100-94", "a100": "a100-80"}
ALSO |= {"rtx-4090-24": "rtx-4090", "rtx-5090-32": "rtx-5090", "rtx-3090-24": "rtx-3090", "rtx-6000": "rtx-6000-ada"}
"""Other names of the GPUs, and their names in `GPUS`."""


def find_gpu(word: str) -> Gpu:
    """Returns the GPU that a user has specified by its name or its memory size.

    Args:
        word: Name, such as `h100`, or memory size, such as `24GB` or `22.5GiB`. Case, spaces and hyphens do not matter.

    Returns:
        The GPU from `GPUS`; for a memory size, a GPU whose other values are unknown (0).

    Raises:
        UserError: If `word` is neither a known name nor a memory size; the message suggests similar names.
    """
    plain = re.sub(r"[\s_]+", "-", word.strip().lower())
    size = re.fullmatch(r"(\d+(?:\.\d+)?)-?(gib|gb|g)", plain)
    if size is not None:
        memory = int(float(size[1]) * (GIB if size[2] == "gib" else 10**9))
        if memory > 0:
            return Gpu(word.strip(), memory)
    names = {name.replace("-", ""): name for name in [*GPUS, *ALSO]}
    name = names.get(plain.replace("-", ""), "")
    if name:
        return GPUS[ALSO.get(name, name)]
    close = nearest(plain, [*GPUS, *ALSO])
    advice = f"did you mean {' or '.join(close)}? " if close else ""
    raise UserError(
        f"unknown GPU '{word}': {advice}Known GPUs: {', '.join(GPUS)}; or use only a memory size, such as 24GB "
        "or 22.5GiB"
    )


def gpu_of_device(device: str) -> Gpu | None:
    """Returns the GPU for a device name of the driver, such as "NVIDIA H100 80GB HBM3"; None if it is unknown."""
    parts = [(part, gpu) for gpu in GPUS.values() for part in gpu.driver_names]
    found = [(len(part), gpu) for part, gpu in parts if re.search(rf"\b{part}\b", device)]
    return max(found, key=lambda match: match[0])[1] if found else None


def word_of_device(device: str) -> str:
    """Returns the argument of `find_gpu` for a CUDA device: the GPU name, such as "h100-80", else the memory size.

    Args:
        device: PyTorch device, such as "cuda:0".
    """
    import torch

    about = torch.cuda.get_device_properties(device)
    known = gpu_of_device(about.name)
    return f"{about.total_memory / GIB:.1f}GiB" if known is None else known.name


def holding(memory: int) -> list[Gpu]:
    """Returns the GPUs of `GPUS` that have at least `memory` bytes of memory, the one with the least memory first."""
    return sorted((gpu for gpu in GPUS.values() if gpu.memory >= memory), key=lambda gpu: gpu.memory)
