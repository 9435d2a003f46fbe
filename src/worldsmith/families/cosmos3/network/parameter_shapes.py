"""Names and shapes of the parameters of `Cosmos3Network`, known from its sizes alone: no tensor is made."""

from __future__ import annotations

from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.models.weights.shapes import Shapes, linear, matrices, norm, repeated

TIMESTEP_CHANNELS = 256
"""Channels of the sinusoid that the timestep embedder reads."""
LAYERS = "language_model.model.layers"


def parameter_shapes(config: NetworkConfig) -> Shapes:
    """Both towers and all heads that the config asks for."""
    hidden, words = config.hidden_size, (config.vocab_size, config.hidden_size)
    action, domains = config.max_action_dim, config.num_embodiment_domains
    model, shapes = "language_model.model", Shapes()
    if config.action_gen:
        shapes |= {"action_modality_embed": (hidden,)}
    if config.sound_gen:
        shapes |= {"sound_modality_embed": (hidden,)}
    shapes |= {f"{model}.embed_tokens.weight": words, **repeated(LAYERS, config.num_hidden_layers, _layer(config))}
    shapes |= norm(f"{model}.norm", hidden) | norm(f"{model}.norm_moe_gen", hidden)
    shapes |= {"language_model.lm_head.weight": words}
    shapes |= linear("vae2llm", config.patch_dim, hidden) | linear("llm2vae", hidden, config.patch_dim)
    shapes |= linear("time_embedder.mlp.0", TIMESTEP_CHANNELS, hidden) | linear("time_embedder.mlp.2", hidden, hidden)
    if config.action_gen:
        for head, outputs in (("action2llm", hidden), ("llm2action", action)):
            shapes |= {f"{head}.fc.weight": (domains, action * hidden), f"{head}.bias.weight": (domains, outputs)}
    if config.sound_gen:
        shapes |= linear("sound2llm", config.sound_dim, hidden) | linear("llm2sound", hidden, config.sound_dim)
    return shapes


def adaptable_layers(shapes: Shapes) -> list[str]:
    """Paths of the linear layers that an adapter can be trained for.

    Left out are the language head, the sound heads and the action heads, which the loss does not reach, and the time
    embedder, which computes in float32 whatever its weights' dtype.
    """
    ends = "vae2llm", "llm2vae"
    return [path for path in matrices(shapes) if path.startswith(f"{LAYERS}.") or path in ends]


def unreached(config: NetworkConfig) -> list[str]:
    """Beginnings of the names of what no velocity depends on: both heads, and the text's way out of the last layer."""
    last = f"{LAYERS}.{config.num_hidden_layers - 1}"
    inside = ("self_attn.q_proj.", "self_attn.o_proj.", "self_attn.q_norm.", "mlp.", "post_attention_layernorm.")
    ends = ("language_model.model.norm.", "language_model.lm_head.", "action", "llm2action", "sound", "llm2sound")
    return [*(f"{last}.{part}" for part in inside), *ends]


def _layer(config: NetworkConfig) -> Shapes:
    """One decoder layer: projections, norms and MLPs of both towers."""
    hidden, head, inside = config.hidden_size, config.head_dim, config.intermediate_size
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes, towers = Shapes(), ("", "_moe_gen")
    for tower in towers:
        for part, width in (("q", queries), ("k", keys), ("v", keys)):
            shapes |= linear(f"self_attn.{part}_proj{tower}", hidden, width, bias=False)
        shapes |= linear(f"self_attn.o_proj{tower}", queries, hidden, bias=False)
    for tower in towers:
        if tower or config.qk_norm_for_text:
            shapes |= norm(f"self_attn.q_norm{tower}", head) | norm(f"self_attn.k_norm{tower}", head)
    if config.use_und_k_norm_for_gen:
        shapes |= norm("self_attn.k_norm_und_for_gen", head)
    for tower in towers:
        for part in ("gate", "up") if config.hidden_act == "silu" else ("up",):
            shapes |= linear(f"mlp{tower}.{part}_proj", hidden, inside, bias=False)
        shapes |= linear(f"mlp{tower}.down_proj", inside, hidden, bias=False)
    for place in ("input", "post_attention"):
        for tower in towers:
            shapes |= norm(f"{place}_layernorm{tower}", hidden)
    return shapes
