"""A step of ours against the training formula that is documented for Wan: loss and gradients, for each kind of network.

The judge is made of the parts of diffusers' pipelines: only the random numbers are ours.
"""

from __future__ import annotations

from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import pytest
import tiny_wan
import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from diffusers.models.transformers.transformer_wan import WanTransformerBlock
from peft import LoraConfig
from PIL import Image
from tiny_wan import CLIP_I2V, I2V, T2V, TI2V
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPVisionModel, UMT5EncoderModel

from worldsmith.distributed.world import World
from worldsmith.families.wan import architecture
from worldsmith.families.wan.model import WanGenerator
from worldsmith.families.wan.network import FrameTimestepBlock
from worldsmith.families.wan.task import WanTask
from worldsmith.models.parameter_names import native_parameters
from worldsmith.objectives.noise_schedule import sample_noise
from worldsmith.training.parallel import build_model
from worldsmith.training.step import StepInputs, forward_backward

SEED, DRAWS = 7, 3
MATMULS = {"mm", "addmm", "bmm", "baddbmm"}
NO_TRAFFIC = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "device"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_wan.make_world(tmp_path_factory.mktemp("wan"), clips=9)


def make_task(config: Any) -> WanTask:
    model = build_model(config.model.config, World())
    model.init_weights(SEED)
    return WanTask(model=model, objective=config.objective, data=config.dataloader_train, world=World())


def clips_of(config: Any, world: Path) -> list[Any]:
    """Three clips of one shape, the second of them without its caption."""
    config.dataloader_train.latent_cache, config.dataloader_train.dataset.cfg_dropout_rate = "", 0.0
    found = [s for s in make_task(config).loader().first_samples() if s.num_frames == 9][:3]
    found[1].caption, found[1].text_ids = "", [1]
    return found


def pipeline_of(folder: Path, recipe: str, network: Any) -> Any:
    parts = {
        "tokenizer": AutoTokenizer.from_pretrained(folder / "tokenizer"),
        "text_encoder": UMT5EncoderModel.from_pretrained(folder / "text_encoder"),
        "vae": AutoencoderKLWan.from_pretrained(folder / "vae"),
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "transformer": network,
    }
    if recipe == CLIP_I2V:
        parts["image_encoder"] = CLIPVisionModel.from_pretrained(folder / "image_encoder")
        parts["image_processor"] = CLIPImageProcessorPil.from_pretrained(folder / "image_processor")
    return (WanPipeline if recipe == T2V else WanImageToVideoPipeline)(**parts, expand_timesteps=recipe == TI2V)


def step_of_diffusers(world: Path, recipe: str, config: Any, clips: list[Any]) -> dict[str, Any]:
    task = make_task(config)
    network = WanTransformer3DModel(**asdict(config.model.config.network))
    network.load_state_dict({name: p.detach() for name, p in task.model.network.named_parameters()}, strict=True)
    pipeline = pipeline_of(world / recipe, recipe, network)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in tiny_wan.STATISTICS.values())
    length, losses = config.model.config.text_encoder.max_length, []
    for clip in clips:
        pixels = clip.video[None].float() / 127.5 - 1
        with torch.no_grad():
            x0 = (pipeline.vae.encode(pixels).latent_dist.mode() - mean) / std
        text = WanPipeline._get_t5_prompt_embeds(pipeline, clip.caption, max_sequence_length=length)
        noise = sample_noise(x0.shape[1:], seed=DRAWS, position=clip.position)[None]
        sigma = task.objective.sigma(clip, seed=DRAWS)
        noisy, timestep = (1 - sigma) * x0 + sigma * noise, torch.tensor([1000 * sigma])
        active = torch.ones_like(x0)
        if recipe == TI2V:
            active[:, :, : clip.condition_frames] = 0
            noisy = (1 - active) * x0 + active * noisy
            timestep = (active[0][0][:, ::2, ::2] * timestep).flatten()[None]
        image_states = None
        if recipe == CLIP_I2V:
            frame = Image.fromarray(clip.video[:, 0].permute(1, 2, 0).numpy())
            with torch.no_grad():
                image_states = pipeline.encode_image(frame, "cpu")
        if recipe in (I2V, CLIP_I2V):
            _, beside = pipeline.prepare_latents(pixels[:, :, 0], 1, 4, *pixels.shape[3:], 9, torch.float32)
            noisy = torch.cat([noisy, beside], dim=1)
        answer = network(noisy, timestep, text, image_states).sample
        losses.append((active * (answer - (noise - x0)) ** 2).sum() / active.sum())
    loss = torch.stack(losses).mean()
    loss.backward()
    return {"loss": float(loss.detach()), "gradients": {name: p.grad for name, p in network.named_parameters()}}


@pytest.mark.parametrize("recipe", [T2V, TI2V, pytest.param(I2V, marks=pytest.mark.slow), CLIP_I2V])
def test_loss_and_gradients_are_those_of_the_formula(world: Path, recipe: str) -> None:
    config = tiny_wan.tiny_config(world, recipe)
    clips = clips_of(config, world)
    if recipe == TI2V:
        clips[0].condition_frames, clips[1].condition_frames, clips[2].condition_frames = 1, 0, 1
    judge = step_of_diffusers(world, recipe, config, clips)
    task = make_task(config)
    sigmas = [task.objective.sigma(clip, seed=DRAWS) for clip in clips]
    assert recipe != I2V or min(sigmas) >= 0.9  # the levels of the expert for high noise
    step = forward_backward(StepInputs(0, [clips]), task, seed=DRAWS)
    assert step.loss == pytest.approx(judge["loss"], rel=1e-5)
    own = {name: p.grad for name, p in native_parameters(task.model.network).items()}
    assert own.keys() == judge["gradients"].keys()
    for name, gradient in judge["gradients"].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(own[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("lora", [False, True])
def test_timesteps_of_frames_are_those_of_their_tokens(lora: bool) -> None:
    """Output, gradients of weights and latents; samples with different numbers of clean frames in one batch."""
    config = WanGenerator.Config(
        network=architecture.tiny(), expand_timesteps=True, precision="float32", lora_enabled=lora
    )
    model, judge = WanGenerator(config, seed=SEED), WanTransformer3DModel(**asdict(config.network))
    if lora:
        targets = config.lora_target_modules.split(",")
        judge.add_adapter(LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=targets))
    torch.manual_seed(0)
    for parameter in model.network.parameters():
        parameter.data.normal_(0, 0.2)
    theirs = {strip_peft(name): parameter for name, parameter in judge.named_parameters()}
    own = native_parameters(model.network)
    assert own.keys() == theirs.keys()
    for name, parameter in own.items():
        theirs[name].data.copy_(parameter)
    given, timesteps, text = [1, 0, 2], torch.tensor([700.0, 30.0, 999.0]), torch.randn(3, 16, 32)
    latents = [torch.randn(3, 4, 5, 8, 6).requires_grad_() for _ in range(2)]
    latents[1].data.copy_(latents[0])
    clean = torch.arange(5) < torch.tensor(given)[:, None]
    per_token = torch.where(clean, 0, timesteps[:, None]).repeat_interleave(4 * 3, dim=1)
    upstream = torch.randn_like(latents[0])
    with Moved() as moved:
        found = model.predict(latents[0], timesteps, text, given=given)
        found.backward(upstream)
    assert moved.largest < per_token.numel() * 6 * config.network.inner_dim
    expected = judge(latents[1], per_token, text, return_dict=False)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (expected - judge(latents[1], timesteps, text, return_dict=False)[0]).abs().max() > 0.1
    expected.backward(upstream)
    trained = [name for name, parameter in own.items() if parameter.requires_grad]
    assert trained == [name for name in own if not lora or ".lora_" in name]
    pairs = {name: (own[name].grad, theirs[name].grad) for name in trained}
    for name, (ours, gradient) in {**pairs, "latents": (latents[0].grad, latents[1].grad)}.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(ours, gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()), msg=name)


def strip_peft(name: str) -> str:
    return name.replace(".default.", ".").replace(".base_layer.", ".")


class Moved(TorchDispatchMode):
    """Sums the GiB that operations other than matmuls, attention and views read and write; finds the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.gib, self.largest = 0.0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if "attention" in name or name in MATMULS or function.is_view or name in NO_TRAFFIC:
            return out
        for tensor in tree_leaves((args, kwargs, out)):
            if isinstance(tensor, torch.Tensor):
                stored = prod(size for size, stride in zip(tensor.shape, tensor.stride()) if stride)
                self.gib += stored * tensor.element_size() / 2**30
                self.largest = max(self.largest, stored)
        return out


@pytest.mark.parametrize("lora", [False, True])
def test_a_block_of_the_5b_network_has_no_modulation_of_every_token(lora: bool) -> None:
    """At the size of a clip of 121 frames of 1280 x 704, on tensors without values, forward and backward."""
    frames, tokens, d = 31, 31 * 22 * 40, 3072
    network = architecture.wan22_5b()
    moved = {}
    with FakeTensorMode():
        for kind, rows in ((WanTransformerBlock, tokens), (FrameTimestepBlock, frames)):
            torch.set_default_dtype(torch.bfloat16)
            block = kind(d, network.ffn_dim, network.num_attention_heads, cross_attn_norm=True)
            torch.set_default_dtype(torch.float32)
            block.requires_grad_(not lora)
            shapes = (tokens, d), (512, d), (rows, 6, d)
            x, text, temb = (torch.empty(1, *shape, dtype=torch.bfloat16) for shape in shapes)
            rotary = (torch.empty(1, tokens, 1, 128),) * 2
            x.requires_grad_()
            temb.requires_grad_(not lora)
            with Moved() as moved[kind]:
                block(x, text, temb, rotary).sum().backward()
    before, now = moved[WanTransformerBlock], moved[FrameTimestepBlock]
    print(f"GiB moved by a block: {before.gib:.2f} with a timestep per token, {now.gib:.2f} with a timestep per frame")
    assert before.largest == tokens * 6 * d
    assert now.largest == tokens * network.ffn_dim
    assert now.gib + 5 * 4 * before.largest / 2**30 < before.gib
