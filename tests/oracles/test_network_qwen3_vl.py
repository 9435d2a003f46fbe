"""The understanding tower against transformers' Qwen3-VL text model, which it is made from."""

from __future__ import annotations

import torch
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.network import Cosmos3Network, init_weights
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.models.video_model import SampleLayout


def test_text_states_of_packed_prompts_equal_qwen3_vl_on_each_prompt():
    config = NetworkConfig(
        vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, mrope_section=[4, 2, 2], latent_channel=8,
    )  # fmt: skip
    network = Cosmos3Network(config)
    init_weights(network, 5)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) * 0.3)
    theirs = Qwen3VLTextModel(
        Qwen3VLTextConfig(
            vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, rms_norm_eps=config.rms_norm_eps, attn_implementation="sdpa",
            rope_parameters={"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2],
                             "mrope_interleaved": True},
        )
    )  # fmt: skip
    prefix = "language_model.model."
    state = {name.removeprefix(prefix): value for name, value in network.state_dict().items() if prefix in name}
    theirs.load_state_dict({name: value for name, value in state.items() if "_moe_gen" not in name}, strict=True)

    prompts = [[4, 5, 6], list(range(30)), [7] * 11]
    pack = pack_samples(
        [SampleLayout(ids, (1, 2, 2), fps=24.0) for ids in prompts], config, eos_id=90, vision_start_id=91
    )
    with torch.no_grad():
        ours = network.text_states(pack).split(pack.text_lengths)
        for ids, states in zip(prompts, ours):
            reference = theirs(input_ids=torch.tensor([[*ids, 90, 91]])).last_hidden_state[0]
            assert reference.std() > 0.5
            assert (states - reference).abs().max() <= 1e-5
