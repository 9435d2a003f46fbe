"""Adapters against PEFT on diffusers' `Cosmos3OmniTransformer`: the same velocities, the same merged weights, the same
training steps."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from diffusers import Cosmos3OmniTransformer
from peft import PeftModel
from safetensors import safe_open

from worldsmith.checkpoint.formats import peft_adapter
from worldsmith.families.cosmos3.model import Cosmos3Defaults, Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.families.cosmos3.weights.diffusers_keys import native_to_diffusers, transformer_config
from worldsmith.families.cosmos3.weights.formats import ADAPTER_LAYOUT
from worldsmith.models.lora import adapter_state, merge_adapters
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.video_model import SampleLayout
from worldsmith.training.optimizer import AdamW

export_adapter = partial(peft_adapter.export_adapter, ADAPTER_LAYOUT, defaults=Cosmos3Defaults())
load_adapter = partial(peft_adapter.load_adapter, ADAPTER_LAYOUT)
read_adapter = partial(peft_adapter.read_adapter, ADAPTER_LAYOUT)

EOS, VISION_START, VOCAB = 94, 95, 96
QWEN = NetworkConfig(
    vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, mrope_section=[4, 2, 2], latent_channel=8,
)  # fmt: skip
EDGE = replace(
    QWEN, hidden_act="relu2", qk_norm_for_text=False, use_und_k_norm_for_gen=True, rms_norm_eps=1e-5, rope_theta=1e8
)
CONFIGS = [pytest.param(QWEN, id="qwen"), pytest.param(EDGE, id="edge")]
RECIPE = "q_proj_moe_gen,k_proj_moe_gen,v_proj_moe_gen,o_proj_moe_gen"
ALL_KINDS = f"{RECIPE},self_attn.k_proj,v_proj,mlp_moe_gen.up_proj,down_proj,vae2llm,llm2vae"
LAYOUT = SampleLayout([5, 6, 7], (3, 4, 4), fps=16.0, condition_frames=1)


def adapted_generator(
    config: NetworkConfig, targets: str = RECIPE, *, trained: bool = True, dropout: float = 0.0, rank: int = 4
) -> Cosmos3Generator:
    """Random weights everywhere, and adapters that move every output visibly when `trained`."""
    lora = {"lora_enabled": True, "lora_rank": rank, "lora_alpha": 6, "lora_dropout": dropout}
    model = Cosmos3Generator.Config(network=config, **lora, lora_target_modules=targets, precision="float32")
    generator = Cosmos3Generator(model, seed=5)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in native_parameters(generator.network).items():
            if "lora_" not in name:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=random)
                parameter.add_(0.7 * (parameter.ndim == 1))
            elif trained and "lora_B" in name:
                parameter.normal_(0, 0.3, generator=random)
    return generator


def export(generator: Cosmos3Generator, folder: Path, base_model: str = "") -> None:
    lora = {"alpha": generator.config.lora_alpha, "dropout": generator.config.lora_dropout}
    assert export_adapter(adapter_state(generator.network), folder, **lora, base_model=base_model)


def base_transformer(network: Cosmos3Network) -> Cosmos3OmniTransformer:
    """diffusers' transformer with the base weights, without the adapters."""
    transformer = Cosmos3OmniTransformer(**transformer_config(network.config))
    state = {
        native_to_diffusers(name): p.detach().clone()
        for name, p in native_parameters(network).items()
        if "lora_" not in name
    }
    transformer.load_state_dict(state, strict=True)
    return transformer


def sample(seed: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """A noisy latent of `LAYOUT` and its timestep."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(8, *LAYOUT.latent_shape, generator=random), torch.rand(1, generator=random) * 1000


def our_velocity(network: Cosmos3Network, latent: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    pack = pack_samples([LAYOUT], network.config, eos_id=EOS, vision_start_id=VISION_START)
    return network(pack, [latent], timestep)[0]


def diffusers_velocity(transformer, latent: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """`LAYOUT` through diffusers' forward pass."""
    ids = [*LAYOUT.text_ids, EOS, VISION_START]
    (frames, height, width), clean = LAYOUT.latent_shape, LAYOUT.condition_frames
    rows, columns = height // 2, width // 2
    count, noisy = frames * rows * columns, torch.arange(clean, frames)
    return transformer(
        input_ids=torch.tensor(ids),
        text_indexes=torch.arange(len(ids)),
        position_ids=positions(len(ids)),
        und_len=len(ids),
        sequence_length=len(ids) + count,
        vision_tokens=[latent[None]],
        vision_token_shapes=[(frames, rows, columns)],
        vision_sequence_indexes=torch.arange(len(ids), len(ids) + count),
        vision_mse_loss_indexes=torch.arange(len(ids) + clean * rows * columns, len(ids) + count),
        vision_timesteps=timestep.expand(len(noisy) * rows * columns),
        vision_noisy_frame_indexes=[noisy],
    ).sample[0][0]


def positions(text_length: int) -> torch.Tensor:
    """Positions of the text and of `LAYOUT`'s latents, from the pipeline's own functions."""
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import (
        get_3d_mrope_ids_text_tokens,
        get_3d_mrope_ids_vae_tokens,
    )

    text, after = get_3d_mrope_ids_text_tokens(text_length, 0, use_float_positions=True)
    frames, height, width = LAYOUT.latent_shape
    video, _ = get_3d_mrope_ids_vae_tokens(frames, height // 2, width // 2, after + 15000, fps=LAYOUT.fps)
    return torch.cat([text, video.float()], dim=1)


def loads(folder: Path, base: Cosmos3OmniTransformer, how: str):
    """The transformer with the exported adapter, loaded by one of the two libraries."""
    transformer = copy.deepcopy(base)
    if how == "peft":
        return PeftModel.from_pretrained(transformer, folder)
    transformer.load_lora_adapter(folder, prefix="base_model.model", weight_name="adapter_model.safetensors")
    return transformer


@pytest.mark.parametrize("targets", [RECIPE, ALL_KINDS], ids=["recipe", "all_kinds"])
@pytest.mark.parametrize("config", CONFIGS)
def test_exported_adapter_merged_weights_and_our_adapters_give_the_same_velocity(config, targets, tmp_path):
    """PEFT on diffusers == diffusers' own loader == our adapters == our merged network == diffusers with the merged
    weights, and all differ from the base."""
    generator = adapted_generator(config, targets)
    network, base = generator.network, base_transformer(generator.network)
    latent, timestep = sample()
    export(generator, tmp_path / "adapter")
    with torch.no_grad():
        ours = our_velocity(network, latent, timestep)
        plain = diffusers_velocity(base, latent, timestep)
        through = {how: diffusers_velocity(loads(tmp_path / "adapter", base, how), latent, timestep) for how in
                   ("peft", "diffusers")}  # fmt: skip
        merge_adapters(network)
        through["merged"] = our_velocity(network, latent, timestep)
        through["merged in diffusers"] = diffusers_velocity(base_transformer(network), latent, timestep)
    noisy = slice(LAYOUT.condition_frames, None)
    assert (ours - plain)[:, noisy].abs().mean() > 0.1, "the adapters must change the output"
    for how, velocity in through.items():
        assert (velocity - ours)[:, noisy].abs().max() <= 1e-5 * max(1, ours.abs().max()), how


def test_merged_weights_equal_pefts_own_merge(tmp_path):
    generator = adapted_generator(QWEN, ALL_KINDS)
    base = base_transformer(generator.network)
    export(generator, tmp_path / "adapter")
    theirs = loads(tmp_path / "adapter", base, "peft").merge_and_unload().state_dict()
    merge_adapters(generator.network)
    merged = native_parameters(generator.network)
    assert {native_to_diffusers(name) for name in merged} == set(theirs)
    changed = 0
    for name, weight in merged.items():
        assert (weight - theirs[native_to_diffusers(name)]).abs().max() <= 1e-6, name
        changed += not torch.equal(weight, base.state_dict()[native_to_diffusers(name)])
    assert changed == len(merged) - len([n for n in merged if not is_target(n)])


def is_target(name: str) -> bool:
    """Whether `ALL_KINDS` names the layer; written without the package's own matching."""
    path = name.removesuffix(".weight")
    leaf, parent = path.split(".")[-1], path.split(".")[-2] if "." in path else ""
    return name.endswith(".weight") and (
        leaf in (*RECIPE.split(","), "v_proj", "down_proj", "vae2llm", "llm2vae")
        or (parent, leaf) in (("self_attn", "k_proj"), ("mlp_moe_gen", "up_proj"))
    )


def test_tensor_names_and_config_of_the_folder(tmp_path):
    """The names that PEFT gives to an adapter of diffusers' transformer, and the scale where each library looks."""
    generator = adapted_generator(QWEN)
    export(generator, tmp_path / "adapter", "org/base")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 6, "org/base")
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", "pt") as file:
        names, header = set(file.keys()), json.loads(file.metadata()["lora_adapter_metadata"])
        low = file.get_tensor("base_model.model.layers.0.self_attn.add_q_proj.lora_A.weight")
    assert header["base_model.model.lora_alpha"] == 6
    leaves = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
    assert names == {
        f"base_model.model.layers.{layer}.self_attn.{leaf}.lora_{side}.weight"
        for layer in range(2)
        for leaf in leaves
        for side in "AB"
    }
    state = adapter_state(generator.network)
    assert torch.equal(low, state["language_model.model.layers.0.self_attn.q_proj_moe_gen.lora_A.weight"])


def test_rank_stabilized_adapters_are_read_with_their_scale(tmp_path):
    """`use_rslora` of PEFT: alpha / sqrt(r). The same velocity as PEFT's model, and so from our own export of it."""
    generator = adapted_generator(QWEN, rank=8)
    export(generator, tmp_path / "plain")
    base = base_transformer(generator.network)
    theirs = loads(tmp_path / "plain", base, "peft")
    theirs.peft_config["default"].use_rslora = True
    theirs.save_pretrained(tmp_path / "theirs")
    theirs = loads(tmp_path / "theirs", base, "peft")
    layer = theirs.base_model.model.layers[0].self_attn.add_q_proj
    stored = read_adapter(tmp_path / "theirs")
    assert layer.scaling["default"] == pytest.approx(stored.alpha / stored.rank) == pytest.approx(6 / 8**0.5)
    assert export_adapter(stored.weights, tmp_path / "again", alpha=stored.alpha)
    again = loads(tmp_path / "again", base, "peft")
    assert again.base_model.model.layers[0].self_attn.add_q_proj.scaling["default"] == pytest.approx(6 / 8**0.5)


def test_an_adapter_that_peft_has_saved_is_read_back(tmp_path):
    """PEFT → folder → our network: the same velocity as PEFT's model."""
    generator = adapted_generator(EDGE, ALL_KINDS)
    base = base_transformer(generator.network)
    export(generator, tmp_path / "ours")
    theirs = loads(tmp_path / "ours", base, "peft")
    theirs.save_pretrained(tmp_path / "theirs")
    network = Cosmos3Network(EDGE)
    plain = {name: p for name, p in native_parameters(generator.network).items() if "lora_" not in name}
    network.load_state_dict(plain)
    load_adapter(network, tmp_path / "theirs")
    latent, timestep = sample()
    with torch.no_grad():
        assert torch.equal(our_velocity(network, latent, timestep), our_velocity(generator.network, latent, timestep))


@pytest.mark.parametrize(
    ("config", "dropout"), [(QWEN, 0.0), (EDGE, 0.0), (QWEN, 0.2)], ids=["qwen", "edge", "dropout"]
)
def test_five_training_steps_equal_peft_on_diffusers_with_torchs_adamw(config, dropout, tmp_path):
    """The same start, samples, timesteps and noise: the same losses and the same adapters after every step.

    With dropout both draw their masks from the same seed; PEFT reads the rate from the exported adapter_config.json.
    """
    generator = adapted_generator(config, dropout=dropout)
    base = base_transformer(generator.network)
    export(generator, tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    optimizer: AdamW = AdamW.Config(lr=3e-3, betas=[0.9, 0.95], eps=1e-6, fused=False, keys_to_select=["lora_"]).build(
        network=generator.network
    )
    trained = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
    reference = torch.optim.AdamW(trained.values(), lr=3e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0)
    before = {name: tensor.clone() for name, tensor in adapter_state(generator.network).items()}
    assert len(trained) == len(before) == len(optimizer.parameters) == 16
    noisy = slice(LAYOUT.condition_frames, None)
    for step in range(5):
        latent, timestep = sample(seed=step)
        target = torch.randn(latent.shape, generator=torch.Generator().manual_seed(100 + step))
        losses = []
        for run, network, adamw in (
            (our_velocity, generator.network, optimizer.optimizer),
            (diffusers_velocity, theirs, reference),
        ):
            torch.manual_seed(step)
            velocity = run(network, latent, timestep)
            loss = (velocity - target)[:, noisy].square().mean()
            loss.backward()
            adamw.step()
            adamw.zero_grad()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5), step
        for name, tensor in adapter_state(generator.network).items():
            other = trained[peft_parameter(name)]
            assert (tensor - other).abs().max() <= 1e-5, (step, name)
    moved = [name for name, tensor in adapter_state(generator.network).items() if not torch.equal(tensor, before[name])]
    assert len(moved) == 16
    frozen = base_transformer(generator.network).state_dict()
    for name, tensor in base_transformer(adapted_generator(config).network).state_dict().items():
        assert torch.equal(frozen[name], tensor), f"{name} is frozen"


def peft_parameter(name: str) -> str:
    """The parameter of `PeftModel` for a native adapter name; written without the package's own mapping."""
    leaves = {"q_proj_moe_gen": "add_q_proj", "k_proj_moe_gen": "add_k_proj", "v_proj_moe_gen": "add_v_proj",
              "o_proj_moe_gen": "to_add_out"}  # fmt: skip
    layer, _, leaf, side, _ = name.removeprefix("language_model.model.layers.").split(".")
    return f"base_model.model.layers.{layer}.self_attn.{leaves[leaf]}.{side}.default.weight"
