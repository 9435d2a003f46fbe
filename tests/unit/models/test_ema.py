"""The power-function average of parameters."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from worldsmith.models.ema import MAX_RATE, PowerEMA, sigma_rel_to_gamma


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def ema_of(network: nn.Module, **fields) -> PowerEMA:
    return PowerEMA.Config(**fields).build(network=network)


def move(network: nn.Module, step: int) -> None:
    """A stand-in for an optimizer step: new values for everything that is trained."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for p in network.parameters():
            if p.requires_grad:
                p.copy_(torch.randn(p.shape, generator=generator))


@pytest.mark.parametrize(("rate", "gamma"), [(0.1, 6.937204), (0.05, 16.972199), (0.2, 1.826214)])
def test_the_exponent_has_its_published_values(rate, gamma):
    assert sigma_rel_to_gamma(rate) == pytest.approx(gamma, abs=5e-7)


@pytest.mark.parametrize(
    ("iteration", "beta"),
    [
        *((0, 0.0), (1, 0.004080), (2, 0.040025), (10, 0.469308), (100, 0.924060)),
        *((499, 0.984235), (500, 0.984267), (1000, 0.992098), (10000, 0.999207)),
    ],
)
def test_the_decay_has_its_published_values(iteration, beta):
    assert ema_of(small_network()).get_decay(iteration) == pytest.approx(beta, abs=1e-6)


@pytest.mark.parametrize(
    ("update", "decay"), [(1, 0.1818), (9, 0.5263), (90, 0.91), (900, 0.9901), (89_990, 0.9999), (10**6, 0.9999)]
)
def test_the_decay_that_grows_to_a_limit_has_its_published_values(update, decay):
    assert ema_of(small_network(), max_decay=0.9999).get_decay(update - 1) == pytest.approx(decay, abs=5e-5)


def test_the_average_with_a_limit_is_that_of_diffusers():
    """Whose first update is a copy: it is given the weights from before the first step."""
    from diffusers.training_utils import EMAModel

    network = small_network()
    ema, judge = ema_of(network, max_decay=0.6), EMAModel(network.parameters(), decay=0.6)
    judge.step(network.parameters())
    for step in range(20):
        move(network, step)
        ema.update(step)
        judge.step(network.parameters())
    for ours, theirs in zip(ema.state_dict().values(), judge.shadow_params, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_two_laws_at_once_are_refused():
    with pytest.raises(ValueError, match=r"(?s)rate.*max_decay.*each selects another decay formula"):
        PowerEMA.Config(rate=0.2, max_decay=0.9).check()


def test_the_rate_is_the_relative_width_of_the_averaging_window():
    """What the rate means: the standard deviation of the step weights, over the length of the run."""
    ema = ema_of(small_network(), rate=0.1)
    steps = 5000
    weights = np.zeros(steps)
    for i in range(steps):
        weights *= ema.get_decay(i)
        weights[i] = 1 - ema.get_decay(i)
    t = np.arange(1, steps + 1) / steps
    mean = (weights * t).sum()
    assert weights.sum() == pytest.approx(1)
    assert math.sqrt((weights * (t - mean) ** 2).sum()) == pytest.approx(0.1, rel=2e-3)


def test_updates_follow_the_recursion_and_the_first_one_copies():
    network = small_network()
    ema = ema_of(network)
    expected: dict[str, torch.Tensor] = {}
    for iteration in range(12):
        move(network, iteration)
        beta = 0.0 if iteration < 1 else (1 - 1 / (iteration + 1)) ** (6.937204 + 1)
        for name, p in network.named_parameters():
            old = expected.get(name, torch.zeros_like(p, dtype=torch.float64))
            expected[name] = beta * old + (1 - beta) * p.detach().double()
        ema.update(iteration)
        if iteration == 0:
            assert all(torch.equal(ema.ema_weights[name], p) for name, p in network.named_parameters())
    assert list(ema.state_dict()) == [name for name, _ in network.named_parameters()]
    for name, value in ema.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.allclose(value.double(), expected[name], atol=1e-6)


def test_a_positive_shift_never_blends_values_from_before_a_warm_start():
    """The network gets other weights after the average was made: the first update takes the live ones, whole."""
    network = small_network()
    ema = ema_of(network, iteration_shift=1000)
    move(network, 99)
    assert all(torch.equal(ema.state_dict()[name], p) for name, p in network.named_parameters())
    move(network, 100)
    ema.update(0)
    assert all(torch.equal(ema.ema_weights[name], p) for name, p in network.named_parameters())
    before = ema.ema_weights["0.weight"].clone()
    move(network, 101)
    ema.update(1)
    beta = ema.get_decay(1)
    assert beta == pytest.approx((1 - 1 / 1002) ** (6.937204 + 1), rel=1e-6)
    assert torch.allclose(ema.ema_weights["0.weight"], torch.lerp(network[0].weight, before, beta), atol=1e-6)


def test_frozen_parameters_are_in_the_average_and_stay_equal():
    network = small_network()
    network[0].requires_grad_(False)
    ema = ema_of(network)
    for iteration in range(4):
        move(network, iteration)
        ema.update(iteration)
    assert torch.equal(ema.state_dict()["0.weight"], network[0].weight)
    assert not torch.equal(ema.state_dict()["2.weight"], network[2].weight)


def test_low_precision_parameters_are_averaged_in_float32():
    network = small_network().bfloat16()
    ema = ema_of(network)
    move(network, 0)
    ema.update(0)
    first = network[0].weight.detach().float()
    move(network, 1)
    ema.update(1)
    expected = torch.lerp(network[0].weight.detach().float(), first, ema.get_decay(1))
    assert ema.ema_weights["0.weight"].dtype == torch.float32
    assert torch.allclose(ema.ema_weights["0.weight"], expected, atol=1e-6)


def test_a_saved_average_is_continued_bit_for_bit():
    """Six updates in one go equal three, a save, a load into a new component and three more."""
    network = small_network()
    whole = ema_of(network)
    for iteration in range(6):
        move(network, iteration)
        whole.update(iteration)
    other = small_network()
    first = ema_of(other)
    for iteration in range(3):
        move(other, iteration)
        first.update(iteration)
    saved = {name: value.clone() for name, value in first.state_dict().items()}
    second = ema_of(other)
    second.load_state_dict(saved)
    for iteration in range(3, 6):
        move(other, iteration)
        second.update(iteration)
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in whole.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swapping_evaluates_the_average_and_restores_the_live_weights(dtype):
    network = small_network().to(dtype)
    ema = ema_of(network)
    for iteration in range(3):
        move(network, iteration)
        ema.update(iteration)
    live = copy.deepcopy(network.state_dict())
    average = {name: value.clone() for name, value in ema.state_dict().items()}

    def evaluate_and_fail() -> None:
        with ema.apply_to(network):
            assert all(torch.equal(p, average[name].to(dtype)) for name, p in network.named_parameters())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_and_fail()
    assert all(torch.equal(value, live[name]) for name, value in network.state_dict().items())
    assert all(torch.equal(value, average[name]) for name, value in ema.state_dict().items())


def test_sharded_parameters_are_averaged_shard_by_shard():
    """A network under fully_shard, on one process: the update, the swap and the state dict work on DTensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    plain, sharded = small_network(), small_network()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
        averages = [ema_of(plain), ema_of(sharded)]
        for iteration in range(4):
            for network, ema in zip((plain, sharded), averages):
                with torch.no_grad():
                    for p in network.parameters():
                        p.mul_(0.5 + iteration)
                ema.update(iteration)
        for name, value in averages[0].state_dict().items():
            shard = averages[1].state_dict()[name]
            assert isinstance(shard, DTensor)
            assert torch.equal(shard.full_tensor(), value)
        x = torch.randn(5, 3)
        with averages[0].apply_to(plain), averages[1].apply_to(sharded):
            assert torch.equal(plain(x), sharded(x))
    finally:
        dist.destroy_process_group()


def test_trainable_only_averages_the_trained_part_exactly_as_the_whole_average_does():
    """The same values for the same names; frozen parameters are in no dict and swap to themselves."""
    network = small_network()
    network[0].requires_grad_(False)
    whole, part = ema_of(network), ema_of(network, trainable_only=True)
    for iteration in range(4):
        move(network, iteration)
        whole.update(iteration)
        part.update(iteration)
    trained = {"1.weight", "1.bias", "2.weight", "2.bias"}
    assert set(part.state_dict()) == trained
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in part.state_dict().items())
    live = copy.deepcopy(network.state_dict())
    with part.apply_to(network):
        for name, p in network.named_parameters():
            assert torch.equal(p, whole.state_dict()[name] if name in trained else live[name])
    assert all(torch.equal(value, live[name]) for name, value in network.state_dict().items())
    continued = ema_of(network, trainable_only=True)
    continued.load_state_dict({name: value.clone() for name, value in part.state_dict().items()})
    with pytest.raises(ValueError, match="2 unexpected"):
        continued.load_state_dict(whole.state_dict())


def test_trainable_only_refuses_a_network_without_trained_parameters():
    with pytest.raises(ValueError, match="trainable_only needs trainable parameters"):
        ema_of(small_network().requires_grad_(False), trainable_only=True)


def test_with_adapters_the_names_are_native_and_trainable_only_is_the_adapters():
    from worldsmith.models.lora import inject_adapters

    network = nn.ModuleDict({"q_proj": nn.Linear(4, 4), "out": nn.Linear(4, 2)})
    inject_adapters(network, rank=2, alpha=4, target_modules="q_proj")
    adapters = {"q_proj.lora_A.weight", "q_proj.lora_B.weight"}
    assert set(ema_of(network, trainable_only=True).state_dict()) == adapters
    whole = {"q_proj.weight", "q_proj.bias", "out.weight", "out.bias"}
    assert set(ema_of(network).state_dict()) == adapters | whole


def test_a_shift_below_zero_is_refused():
    """It would make the decay of early steps the power of a negative number."""
    with pytest.raises(ValueError, match="iteration_shift must be at least 0"):
        PowerEMA.Config(iteration_shift=-1).check()


@pytest.mark.parametrize("rate", [0.0, -0.1, MAX_RATE, 0.48, 1.0])
def test_rates_under_which_the_average_would_diverge_are_refused(rate):
    with pytest.raises(ValueError, match=r"above 0 and below 0\.4714.*sqrt\(2\)/3"):
        PowerEMA.Config(rate=rate).check()


def test_the_limit_is_where_the_exponent_passes_minus_one():
    assert sigma_rel_to_gamma(MAX_RATE - 1e-6) > -1
    assert sigma_rel_to_gamma(MAX_RATE + 1e-6) < -1
    PowerEMA.Config(rate=MAX_RATE - 1e-6).check()


def test_names_that_do_not_fit_are_refused():
    ema = ema_of(small_network())
    with pytest.raises(ValueError, match="1 missing"):
        ema.load_state_dict({name: v for name, v in ema.state_dict().items() if name != "0.bias"})
    with pytest.raises(ValueError, match="parameter names"), ema.apply_to(nn.Linear(3, 4)):
        pass


def test_a_disabled_average_is_not_built():
    with pytest.raises(ValueError, match="enabled is false"):
        ema_of(small_network(), enabled=False)
