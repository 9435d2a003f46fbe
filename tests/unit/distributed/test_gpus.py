"""GPUs are found by the words that people and drivers have for them."""

from __future__ import annotations

import pytest

from worldsmith.config.errors import UserError
from worldsmith.distributed.gpus import GIB, GPUS, find_gpu, gpu_of_device, holding

DRIVERS = {
    "NVIDIA H100 80GB HBM3": "h100-80",
    "NVIDIA H800": "h100-80",
    "NVIDIA H100 NVL": "h100-94",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "NVIDIA A100-SXM4-80GB": "a100-80",
    "NVIDIA A100 80GB PCIe": "a100-80",
    "NVIDIA A100-SXM4-40GB": "a100-40",
    "NVIDIA A10G": "a10",
    "NVIDIA A10": "a10",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
}


@pytest.mark.parametrize(("device", "name"), DRIVERS.items(), ids=lambda text: text.replace(" ", "_"))
def test_the_driver_s_name(device: str, name: str) -> None:
    gpu = gpu_of_device(device)
    assert gpu is not None
    assert gpu.name == name


def test_a_device_that_is_not_known() -> None:
    assert gpu_of_device("Tesla V100-SXM2-16GB") is None
    assert gpu_of_device("NVIDIA L40") is None


@pytest.mark.parametrize("word", ["h100", "H100-80", "h100_sxm", "H100 80"])
def test_words_for_a_gpu(word: str) -> None:
    assert find_gpu(word) is GPUS["h100-80"]


@pytest.mark.parametrize(
    ("word", "memory"), [("24GB", 24 * 10**9), ("24 gb", 24 * 10**9), ("22.5GiB", int(22.5 * GIB))]
)
def test_a_size_is_a_gpu_without_rates(word: str, memory: int) -> None:
    gpu = find_gpu(word)
    assert (gpu.memory, gpu.peak_flops, gpu.bandwidth, gpu.link) == (memory, 0, 0, 0)


def test_a_wrong_word_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown GPU 'h10-80': did you mean h100-80.*Known GPUs: b200, .*24GB"):
        find_gpu("h10-80")
    with pytest.raises(UserError, match="unknown GPU '0GB'"):
        find_gpu("0GB")


def test_the_table_is_whole() -> None:
    for name, gpu in GPUS.items():
        assert gpu.name == name
        assert min(gpu.memory, gpu.peak_flops, gpu.bandwidth, gpu.link, gpu.network, gpu.per_machine) > 0
        assert gpu.link > gpu.network


def test_the_smallest_that_hold_so_much() -> None:
    assert [gpu.name for gpu in holding(90 * GIB)] == ["h100-94", "rtx-pro-6000", "h200", "b200"]
    assert holding(1000 * GIB) == []
