"""The rectified-flow component: shifts, draws, and a step's loss over packs, accumulation and ranks."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from worldsmith.objectives.rectified_flow import RectifiedFlow


@dataclass
class Clip:
    position: int
    latent_shape: tuple[int, int, int] = (5, 4, 4)
    num_frames: int = 17
    condition_frames: int = 0
    resolution: str = "256"


class ChannelMixer(nn.Module):
    """A small network with the generator's call: one linear map over channels, with the timestep as a bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.Linear(8, 8)

    def forward(self, pack, latents, timesteps):
        return [self.mix((x + t / 1000).movedim(0, -1)).movedim(-1, 0) for x, t in zip(latents, timesteps)]


def latents_of(clips: list[Clip]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(8, *clip.latent_shape, generator=generator) for clip in clips]


def image(position: int, **fields) -> Clip:
    return Clip(position, latent_shape=(1, 4, 4), num_frames=1, **fields)


def flow(**fields) -> RectifiedFlow:
    return RectifiedFlow.Config(**fields).build()


@pytest.mark.parametrize(("tier", "shift"), [("256", 3), ("480", 5), ("704", 10), ("720", 10), ("128", 2), ("64", 1)])
def test_the_default_shift_is_looked_up_by_tier(tier, shift):
    assert flow().shift_of(Clip(0, resolution=tier)) == shift


def test_a_tier_that_is_not_in_the_table_is_an_error_that_names_both():
    with pytest.raises(ValueError, match=r'"720": 10.*768'):
        flow().shift_of(Clip(4, resolution="768"))


def test_one_number_holds_for_all_tiers_and_images_may_have_their_own():
    component = flow(shift=5, shift_image={"256": 2})
    assert component.shift_of(Clip(0, resolution="768")) == 5
    assert component.shift_of(image(0)) == 2


def test_a_dynamic_shift_grows_with_the_root_of_the_unpatchified_latent_size():
    component = flow(shift={"dynamic_shift_base_num_tokens_video": 20, "256": 3})
    assert component.shift_of(Clip(0, latent_shape=(5, 4, 4))) == 2.0
    assert component.shift_of(image(0)) == 3


def test_images_and_videos_have_their_own_distributions():
    """With the same stream, an image's level is that of the image distribution: one component equals the other's."""
    component = flow(video_distribution="uniform", image_distribution="logitnormal", shift=1)
    both_uniform = flow(video_distribution="uniform", image_distribution="uniform", shift=1)
    assert component.sigma(Clip(3), seed=0) == both_uniform.sigma(Clip(3), seed=0)
    assert component.sigma(image(3), seed=0) != both_uniform.sigma(image(3), seed=0)


def drawn(component: RectifiedFlow, clips: list[Clip], latents: list[torch.Tensor], seed: int = 0):
    return component.draw(clips, [x0.shape for x0 in latents], seed=seed)


def test_draws_depend_on_seed_and_position_alone():
    """The same samples drawn one by one, in another order and in other company have the same noise, bit for bit."""
    clips = [Clip(4), Clip(9, condition_frames=1), image(2)]
    latents = latents_of(clips)
    together = drawn(flow(), clips, latents, seed=7)
    for clip, x0, sigma, noise in zip(clips, latents, together.sigmas, together.noise):
        alone = drawn(flow(), [clip], [x0], seed=7)
        assert alone.sigmas == [sigma]
        assert torch.equal(alone.noise[0], noise)
        assert noise.shape == x0.shape
    assert drawn(flow(), clips, latents, seed=8).sigmas[0] != together.sigmas[0]


@pytest.mark.parametrize("by_active", [False, True])
def test_losses_of_a_pack_equal_an_unpacked_transcription(by_active):
    """x_t, the timestep 1000·σ, the target and the masked mean, written out for one sample at a time."""
    clips = [Clip(0), Clip(1, condition_frames=2), image(2), Clip(3, latent_shape=(2, 2, 6))]
    latents, network, component = latents_of(clips), ChannelMixer(), flow(normalize_loss_by_active=by_active)
    draws = drawn(component, clips, latents)
    losses = component.losses(network(None, *component.inputs(latents, draws)), latents, draws)
    for clip, x0, level, noise, loss in zip(clips, latents, draws.sigmas, draws.noise, losses):
        sigma = torch.full(clip.latent_shape, level)
        sigma[: clip.condition_frames] = 0
        x_t = sigma * noise + (1 - sigma) * x0
        (velocity,) = network(None, [x_t], torch.tensor([1000 * level]))
        error = ((velocity - (noise - x0)) ** 2)[:, clip.condition_frames :]
        expected = error.mean() if by_active else error.sum() / x0.numel()
        assert torch.allclose(loss, expected, rtol=1e-5)


def gradients_of_split_step(component: RectifiedFlow, packs: list[list[list[Clip]]]):
    """Gradients, summed over micro-batches and averaged over ranks, and logged mean of `packs[rank][micro_batch]`."""
    world_size = len(packs)
    weight = sum(component.weigh(pack) for rank in packs for pack in rank)
    average, sums = None, [0.0, 0.0]
    for rank in packs:
        network = ChannelMixer()
        for pack in rank:
            latents = [full_latents(clip) for clip in pack]
            draws = drawn(component, pack, latents)
            loss = component.add_up(losses_of(component, network, pack, latents), draws, tokens=0)
            (loss.sum * (world_size / weight)).backward()
            sums = [total + float(own) for total, own in zip(sums, loss.metrics["loss"])]
        own = torch.cat([p.grad.flatten() for p in network.parameters()]) / world_size
        average = own if average is None else average + own
    return average, float(sums[0] / sums[1])


def losses_of(component: RectifiedFlow, network: nn.Module, clips: list[Clip], latents: list[torch.Tensor]):
    """Each clip's loss after one pass of the network over all of them."""
    draws = drawn(component, clips, latents)
    return component.losses(network(None, *component.inputs(latents, draws)), latents, draws)


def full_latents(clip: Clip) -> torch.Tensor:
    return torch.randn(8, *clip.latent_shape, generator=torch.Generator().manual_seed(100 + clip.position))


def uneven_packs() -> list[list[list[Clip]]]:
    clips = [Clip(i, condition_frames=i % 3) for i in range(8)] + [image(i) for i in range(8, 12)]
    sizes = [[1, 4, 2], [2, 1, 2]]
    clips = iter(clips)
    return [[[next(clips) for _ in range(size)] for size in rank] for rank in sizes]


def test_two_ranks_and_three_micro_batches_give_the_gradient_of_one_big_batch():
    """Uneven packs, images among them: gradient and logged loss are those of the mean over all samples."""
    packs = uneven_packs()
    everything = [clip for rank in packs for pack in rank for clip in pack]
    component, network = flow(), ChannelMixer()
    latents = [full_latents(clip) for clip in everything]
    losses = losses_of(component, network, everything, latents)
    losses.mean().backward()
    whole = torch.cat([p.grad.flatten() for p in network.parameters()])
    split, logged = gradients_of_split_step(component, packs)
    assert torch.allclose(split, whole, rtol=1e-5, atol=1e-7)
    assert logged == pytest.approx(losses.mean().item(), rel=1e-6)
    pack_means, _ = gradients_of_split_step(flow(sample_level_loss_averaging=False), packs)
    assert not torch.allclose(pack_means, whole, rtol=1e-2)


def test_without_sample_averaging_the_step_is_the_mean_of_pack_means():
    packs = uneven_packs()
    component, network = flow(sample_level_loss_averaging=False, loss_scale=10.0), ChannelMixer()
    means = []
    for pack in (pack for rank in packs for pack in rank):
        latents = [full_latents(clip) for clip in pack]
        means.append(losses_of(component, network, pack, latents).mean())
    (10 * torch.stack(means).mean()).backward()
    whole = torch.cat([p.grad.flatten() for p in network.parameters()])
    assert torch.allclose(gradients_of_split_step(component, packs)[0], whole, rtol=1e-5, atol=1e-6)


def test_the_image_scale_is_a_factor_of_the_images_in_the_one_mean():
    """Equal scales change nothing: an image then weighs as much as a video."""
    packs = uneven_packs()
    component, network = flow(loss_scale=2.0, image_loss_scale=0.5), ChannelMixer()
    losses = []
    for clip in (clip for rank in packs for pack in rank for clip in pack):
        latents = [full_latents(clip)]
        scale = 0.5 if clip.num_frames == 1 else 2.0
        losses.append(scale * losses_of(component, network, [clip], latents)[0])
    torch.stack(losses).mean().backward()
    whole = torch.cat([p.grad.flatten() for p in network.parameters()])
    assert torch.allclose(gradients_of_split_step(component, packs)[0], whole, rtol=1e-5, atol=1e-6)
    neutral, default = flow(loss_scale=1.0, image_loss_scale=1.0), flow(loss_scale=1.0)
    assert torch.equal(gradients_of_split_step(neutral, packs)[0], gradients_of_split_step(default, packs)[0])


def test_the_weight_of_a_sample_is_rounded_once():
    """Scale, ranks and number of samples reach the gradient as one float32, as if they were multiplied exactly."""
    clips = [Clip(0), image(1)]
    component = flow(loss_scale=10.0, image_loss_scale=0.3)
    for ranks, weight in ((ranks, weight) for ranks in (1, 2, 3, 8, 24) for weight in range(2, 400)):
        losses = torch.ones(2, requires_grad=True)
        draws = component.levels(clips, [0.5] * 2, [torch.zeros(())] * 2)
        (component.add_up(losses, draws, tokens=0).sum * (ranks / weight)).backward()
        assert torch.equal(losses.grad, torch.tensor([10.0 * ranks / weight, 0.3 * ranks / weight]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shift": {}}, "shift = {}: an empty table"),
        ({"shift": 0}, "shift must be above 0, found 0"),
        ({"shift": {"256": -3}}, r"shift\.256 must be above 0"),
        ({"shift_image": {"256p": 3}}, r"the key '256p' is neither a resolution bucket"),
        ({"loss_scale": 0.0}, "loss_scale must be finite and above 0"),
        ({"image_loss_scale": -1.0}, "image_loss_scale must be finite and above 0"),
    ],
)
def test_values_that_cannot_work_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        RectifiedFlow.Config(**fields).check()


def test_the_config_copies_and_compares_by_value():
    config = RectifiedFlow.Config(shift={"256": 3}, shift_image=2)
    twin = copy.deepcopy(config)
    assert twin == config
    twin.shift["256"] = 4
    assert twin != config


def test_losses_by_noise_are_those_of_each_tenth():
    sigmas = [0.0, 0.0999, 0.1, 0.55, 1.0]
    draws = flow().levels([Clip(place) for place in range(5)], sigmas, [torch.zeros(())] * 5)
    losses = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    figures = flow().add_up(losses, draws, tokens=0).metrics
    found = {name: (float(total), count) for name, (total, count) in figures.items() if count and "[" in name}
    assert found == {
        "loss_by_noise[0.0]": (3.0, 2),
        "loss_by_noise[0.1]": (4.0, 1),
        "loss_by_noise[0.5]": (8.0, 1),
        "loss_by_noise[0.9]": (16.0, 1),
    }
    assert len(figures) == 11
