"""Is a training step over one packed sequence faster than the same samples one by one through diffusers?

Forward and backward (float32) over 16 short clips of 20 to 60 latent tokens with about 40 text tokens each, on a
network of hidden size 256 and 6 layers: ours with all clips in one sequence, `diffusers.Cosmos3OmniTransformer` with
one clip per call, since it takes one sample. The two sides take turns. Both must give the same gradients (1e-5 of the
largest value of each tensor); the program fails otherwise. Goal: at least 1.5 times the samples per second.

    python benchmarks/packed_training_step.py [--samples 16] [--rounds 7] [--threads 1] [--quick]
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from diffusers import Cosmos3OmniTransformer
from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import (
    get_3d_mrope_ids_text_tokens,
    get_3d_mrope_ids_vae_tokens,
)
from side_by_side import medians, relative_difference
from torch import Tensor

from worldsmith.families.cosmos3.network.architecture import tiny
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.families.cosmos3.weights.diffusers_keys import native_to_diffusers, transformer_config
from worldsmith.models.video_model import SampleLayout

EOS, VISION_START = 0, 1
GOAL = 1.5
TOLERANCE = 1e-5


def make_layouts(count: int) -> list[SampleLayout]:
    """Clips of 5 to 15 latent frames of 4 × 4 (20 to 60 tokens), 30 to 50 text tokens, first frame given or not."""
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    return [
        SampleLayout(
            [2 + draw(0, 90) for _ in range(draw(30, 50))], (draw(5, 15), 4, 4), fps=24.0, condition_frames=i % 2
        )
        for i in range(count)
    ]


def diffusers_velocity(model: Cosmos3OmniTransformer, layout: SampleLayout, latent: Tensor, timestep: Tensor) -> Tensor:
    """The velocity of one clip [C, t, h, w], with positions from the functions of diffusers' own pipeline."""
    ids = [*layout.text_ids, EOS, VISION_START]
    frames, rows, columns = layout.latent_shape[0], layout.latent_shape[1] // 2, layout.latent_shape[2] // 2
    text_positions, explain_message = get_3d_mrope_ids_text_tokens(len(ids), 0, use_float_positions=True)
    positions, _ = get_3d_mrope_ids_vae_tokens(frames, rows, columns, explain_message + 15000, fps=layout.fps)
    noisy, per_frame, count = torch.arange(layout.condition_frames, frames), rows * columns, frames * rows * columns
    return model(
        input_ids=torch.tensor(ids),
        text_indexes=torch.arange(len(ids)),
        position_ids=torch.cat([text_positions, positions.float()], dim=1),
        und_len=len(ids),
        sequence_length=len(ids) + count,
        vision_tokens=[latent[None]],
        vision_token_shapes=[(frames, rows, columns)],
        vision_sequence_indexes=torch.arange(len(ids), len(ids) + count),
        vision_mse_loss_indexes=torch.arange(len(ids) + layout.condition_frames * per_frame, len(ids) + count),
        vision_timesteps=timestep.expand(len(noisy) * per_frame),
        vision_noisy_frame_indexes=[noisy],
    ).sample[0][0]


def loss(velocity: Tensor, target: Tensor, layout: SampleLayout) -> Tensor:
    """Mean squared error over the noisy frames."""
    return (velocity - target)[:, layout.condition_frames :].square().mean()


def gradients(network: torch.nn.Module) -> dict[str, Tensor]:
    """Of all parameters; zero where the loss does not reach, such as the last text layer's MLP."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in network.named_parameters()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16, help="clips in a pack")
    parser.add_argument("--rounds", type=int, default=7, help="turns that are timed")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--quick", action="store_true", help="2 layers and one turn: checks the program, not the claim")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = tiny(vocab_size=96)
    if arguments.quick:
        config.num_hidden_layers, arguments.rounds = 2, 1

    torch.manual_seed(0)
    network = Cosmos3Network(config)
    with torch.no_grad():
        for parameter in network.parameters():  # random norms too: a wrong one would show in the gradients
            parameter.normal_(0, parameter.shape[-1] ** -0.5).add_(float(parameter.ndim == 1))
    reference = Cosmos3OmniTransformer(**transformer_config(config))
    reference.load_state_dict({native_to_diffusers(name): value for name, value in network.state_dict().items()})
    layouts = make_layouts(arguments.samples)
    latents = [torch.randn(config.latent_channel, *layout.latent_shape) for layout in layouts]
    targets = [torch.randn_like(latent) for latent in latents]
    timesteps = torch.rand(len(layouts)) * 1000

    def packed() -> None:
        network.zero_grad()
        pack = pack_samples(layouts, config, eos_id=EOS, vision_start_id=VISION_START)
        velocities = network(pack, latents, timesteps)
        sum(map(loss, velocities, targets, layouts)).div(len(layouts)).backward()

    def one_by_one() -> None:
        reference.zero_grad()
        for layout, latent, target, timestep in zip(layouts, latents, targets, timesteps, strict=True):
            velocity = diffusers_velocity(reference, layout, latent, timestep)
            loss(velocity, target, layout).div(len(layouts)).backward()

    packed()
    one_by_one()
    ours = {native_to_diffusers(name): gradient for name, gradient in gradients(network).items()}
    difference = relative_difference(ours, gradients(reference))
    seconds = medians({"packed": packed, "one by one": one_by_one}, rounds=arguments.rounds)
    ratio = seconds["one by one"] / seconds["packed"]
    tokens = sum(len(layout.text_ids) + 2 + math.prod(layout.latent_shape) // 4 for layout in layouts)
    print(f"{len(layouts)} clips, {tokens} tokens, {config.num_hidden_layers} layers, {arguments.threads} threads")
    for name, taken in seconds.items():
        print(
            f"{name:>10}: {1e3 * taken:7.1f} ms, {len(layouts) / taken:6.1f} samples/s (median of {arguments.rounds})"
        )
    print(f"ratio {ratio:.2f} (goal: at least {GOAL})")
    print(f"largest difference of a gradient, relative to its tensor's largest value: {difference:.1e}")
    if difference > TOLERANCE:
        print(f"the gradients differ by more than {TOLERANCE:.0e}")
        return 1
    return 0 if ratio >= GOAL or arguments.quick else 1


if __name__ == "__main__":
    sys.exit(main())
