"""The generator component: cheap to describe, deterministic to build, and frank about what it cannot do."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from worldsmith.assets import asset_path
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.video_model import SampleLayout
from worldsmith.models.video_vae.wan import WanVAE


@pytest.fixture
def config() -> Cosmos3Generator.Config:
    network = NetworkConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, mrope_section=[6, 5, 5],
    )  # fmt: skip
    return Cosmos3Generator.Config(
        precision="float32",
        network=network,
        tokenizer=WanVAE.Config(vae_path=str(asset_path("tiny_vae")), precision="float32"),
        text_tokenizer=TextTokenizer.Config(path=str(asset_path("tiny_tokenizer"))),
    )


def test_config_needs_no_torch() -> None:
    """Importing the module and making a Config loads neither torch nor transformers nor diffusers."""
    code = (
        "import sys; from worldsmith.families.cosmos3.model import Cosmos3Generator;"
        "Cosmos3Generator.Config().check();"
        "print([m for m in ('torch', 'transformers', 'diffusers', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_config_is_a_value(config: Cosmos3Generator.Config) -> None:
    """A deep copy is equal and independent."""
    other = copy.deepcopy(config)
    assert other == config
    other.network.hidden_size = 128
    assert other != config
    assert config.network.hidden_size == 64


def test_flex_and_selective_recomputation_exclude_each_other(config: Cosmos3Generator.Config) -> None:
    config.joint_attn_implementation, config.activation_checkpointing.mode = "flex", "selective"
    with pytest.raises(ValueError, match=r"this mode cannot save; use mode = 'full' or 'none', or 'two_way'"):
        config.check()


def test_a_timesteps_gradient_is_summed_in_float32(config: Cosmos3Generator.Config) -> None:
    """In bfloat16, too: all tokens of a clip share a row, and CUDA adds to it token by token in the tensor's type."""

    class Sums(TorchDispatchMode):
        types: ClassVar[set[torch.dtype]] = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "index_add" in str(func):
                self.types.add(args[0].dtype)
            return func(*args, **(kwargs or {}))

    generator = Cosmos3Generator(config, seed=0)
    network = generator.network.bfloat16()
    pack = generator.pack([SampleLayout([5], (2, 2, 2), 8.0), SampleLayout([5], (1, 2, 2), 8.0)])
    share = network.geometry(pack).gen_share
    latents = [torch.randn(network.config.latent_channel, *layout.latent_shape) for layout in pack.layouts]
    tokens = network.embed_latents(pack, latents, torch.tensor([500.0, 20.0]), share)
    assert tokens.dtype == torch.bfloat16
    with Sums() as sums:
        tokens.sum().backward()
    assert sums.types == {torch.float32}


def test_guidance_cannot_be_shared_in_training(config: Cosmos3Generator.Config) -> None:
    config.parallelism.cfg_parallel_shard_degree = 2
    with pytest.raises(ValueError, match=r"cfg_parallel_shard_degree = 2: only sampling has"):
        config.check()


def test_weights_follow_the_seed_and_nothing_else(config: Cosmos3Generator.Config) -> None:
    """Same seed, same bits, whatever the global generator does; and building does not draw from it."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Cosmos3Generator(config, seed=5).network.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = Cosmos3Generator(config, seed=5).network.state_dict()
    other = Cosmos3Generator(config, seed=6).network.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["vae2llm.weight"], other["vae2llm.weight"])
    assert all(tensor.dtype == torch.float32 and torch.isfinite(tensor).all() for tensor in first.values())


def test_vae_and_tokenizer_are_loaded_when_used(config: Cosmos3Generator.Config) -> None:
    """A missing VAE folder does not disturb what needs no VAE."""
    config.tokenizer.vae_path = "/nowhere"
    generator = Cosmos3Generator(config, seed=0)
    assert generator.tokenize("a red square")
    with pytest.raises(FileNotFoundError):
        _ = generator.vae


def test_pack_and_velocity_have_the_samples_shapes(config: Cosmos3Generator.Config) -> None:
    """Text ids plus EOS plus vision-start plus 2x2 latent patches; one velocity per sample."""
    generator = Cosmos3Generator(config, seed=0)
    ids = generator.tokenize("a red square")
    pack = generator.pack([SampleLayout(ids, (3, 4, 4), 8.0), SampleLayout(ids, (2, 4, 6), 8.0, 1)])
    assert pack.num_tokens == 2 * (len(ids) + 2) + 3 * 4 + 2 * 6
    latents = [torch.randn(48, 3, 4, 4), torch.randn(48, 2, 4, 6)]
    velocities = generator.network(pack, latents, torch.tensor([500.0, 10.0]))
    assert [v.shape for v in velocities] == [x.shape for x in latents]


def test_encode_and_decode_are_the_vaes(config: Cosmos3Generator.Config) -> None:
    """uint8 video to latents of the documented shape and back; the fingerprint is the VAE's."""
    generator = Cosmos3Generator(config, seed=0)
    video = torch.randint(0, 256, (3, 9, 64, 48), dtype=torch.uint8)
    latents = generator.encode(video)
    assert latents.shape == (48, 3, 4, 3)
    assert latents.dtype == torch.float32
    assert generator.decode(latents).shape == video.shape
    assert generator.latent_fingerprint == generator.vae.fingerprint


def test_a_tokenizer_that_is_too_large_is_refused(config: Cosmos3Generator.Config) -> None:
    """Ids outside the embedding table are found before anything runs."""
    config.network.vocab_size = 100
    with pytest.raises(ValueError, match="vocab_size is 100"):
        Cosmos3Generator(config, seed=0).tokenize("a red square")
