"""The rows of the `model` section."""

from __future__ import annotations

from worldsmith.dialects.sat.keys import DENOISER, LORA, LOSS, MODEL, MODULES, NETWORK, SAMPLER, SHIFTS, TEXT, VAE
from worldsmith.dialects.sat.model import (
    NET,
    OURS_VAE,
    channels,
    components,
    dropped_captions,
    heads,
    images,
    latent_input,
    loss_kind,
    noise_table,
    patches,
    positions,
    sampling,
    strata,
    text_length,
    trained,
)
from worldsmith.dialects.translation import Row, approximated, dead, refused, renamed, unneeded

LATER = "only 0 can be had"
_TABLES = tuple(key.removesuffix("shift_scale") for key in SHIFTS)
_CODECS = tuple(f"{VAE}params.{name}_config.params." for name in ("encoder", "decoder"))
_FIXED: dict[str, tuple[object, ...]] = {
    "double_z": (True,),
    "in_channels": (3,),
    "out_ch": (3,),
    "ch": (128,),
    "ch_mult": ([1, 2, 2, 4],),
    "attn_resolutions": ([],),
    "num_res_blocks": (3,),
    "dropout": (0.0, 0),
    "temporal_compress_times": (4,),
}
ROWS: tuple[Row, ...] = (
    *(components, heads, channels, patches, positions, noise_table, text_length, trained, dropped_captions, images),
    *(latent_input, strata, sampling, loss_kind),
    renamed(f"{MODEL}scale_factor", f"{OURS_VAE}scaling_factor"),
    renamed(f"{NETWORK}num_layers", f"{NET}num_layers"),
    renamed(f"{NETWORK}latent_height", f"{NET}sample_height"),
    renamed(f"{NETWORK}latent_width", f"{NET}sample_width"),
    renamed(f"{NETWORK}time_compressed_rate", f"{NET}temporal_compression_ratio"),
    renamed(f"{NETWORK}time_embed_dim", f"{NET}time_embed_dim"),
    renamed(f"{NETWORK}ofs_embed_dim", f"{NET}ofs_embed_dim"),
    renamed(f"{NETWORK}elementwise_affine", f"{NET}norm_elementwise_affine"),
    renamed(f"{NETWORK}transformer_args.layernorm_epsilon", f"{NET}norm_eps"),
    renamed(f"{MODULES}patch_embed_config.params.text_hidden_size", f"{NET}text_embed_dim"),
    renamed(f"{MODEL}compile_model", "model.config.compile.enabled"),
    renamed(f"{LOSS}params.offset_noise_level", "objective.offset_noise"),
    *(
        renamed(f"{_TABLES[0]}{key}", f"objective.{ours}")
        for key, ours in (
            ("linear_start", "beta_start"),
            ("linear_end", "beta_end"),
            ("num_timesteps", "num_timesteps"),
        )
    ),
    *(
        refused(f"{table}{name}", why="the table is that of the denoiser", way_out=f"~{table}{name}", but=(default,))
        for table in _TABLES[1:]
        for name, default in (("linear_start", 0.00085), ("linear_end", 0.012), ("num_timesteps", 1000))
    ),
    *(
        refused(
            f"{table}{name}", why="the shift comes before the table is stretched", way_out="write false", but=(False,)
        )
        for table in _TABLES
        for name in ("keep_start", "post_shift")
    ),
    *(
        refused(f"{MODEL}{name}", why=why, way_out=f"~{MODEL}{name}", but=but)
        for name, why, but in (
            ("input_key", "a sample's video is its mp4", ("mp4",)),
            ("lr_scale", "low-resolution conditioning cannot be had", (None,)),
            ("use_pd", "distillation cannot be had", (False,)),
            ("network_wrapper", "the network has no wrapper", (None,)),
        )
    ),
    *(
        refused(f"{NETWORK}{name}", why=why, way_out=f"~{NETWORK}{name}", but=but)
        for name, why, but in (
            ("num_classes", "labels of classes cannot be had", (None,)),
            ("use_SwiGLU", "blocks have a GELU", (False,)),
            ("use_RMSNorm", "blocks have LayerNorms", (False,)),
        )
    ),
    refused(
        f"{NETWORK}transformer_args.layernorm_order",
        why="blocks have no norms after their parts",
        way_out="write pre",
        but=("pre",),
    ),
    refused(
        f"{NETWORK}transformer_args.model_parallel_size",
        why="one process holds whole layers; above 1 it failed there too",
        way_out="write 1, and more processes",
        but=(1,),
    ),
    *(
        refused(f"{NETWORK}transformer_args.{name}", why=LATER, way_out="write 0", but=(0.0, 0))
        for name in ("hidden_dropout", "attention_dropout", "checkpoint_skip_layers")
    ),
    approximated(
        f"{NETWORK}transformer_args.checkpoint_num_layers", "", "each block is recomputed on its own", but=(1,)
    ),
    refused(
        f"{MODULES}adaln_layer_config.params.qk_ln",
        why="queries and keys are normalised",
        way_out="write true",
        but=(True,),
    ),
    renamed(f"{LORA}params.lora_dropout", "model.config.lora_dropout"),
    refused(
        f"{LORA}params.layer_range",
        why="every block gets an adapter",
        way_out=f"~{LORA}params.layer_range",
        but=(None,),
    ),
    refused(f"{LORA}params.qlora", why="weights below adapters are not quantized", way_out="write false", but=(False,)),
    unneeded(f"{LORA}params.cross_attention", why="there is no cross attention"),
    renamed(f"{LOSS}params.min_snr_value", "objective.max_weight"),
    *(
        refused(f"{where}params.fixed_frames", why="no frames are held", way_out="write 0", but=(0,))
        for where in (LOSS, SAMPLER)
    ),
    *(
        refused(f"{where}num_idx", why="it is the number of rows of the table", way_out="write 1000", but=(1000,))
        for where in (f"{DENOISER}params.", f"{LOSS}params.sigma_sampler_config.params.")
    ),
    refused(
        f"{DENOISER}params.do_append_zero", why="the table ends in noise alone", way_out="write false", but=(False,)
    ),
    refused(f"{DENOISER}params.flip", why="row 0 has the least noise", way_out="write true", but=(True,)),
    refused(f"{SAMPLER}params.sdedit", why="samples start from noise", way_out="write false", but=(False,)),
    refused(f"{TEXT}is_trainable", why="the text encoder is frozen", way_out="write false", but=(False,)),
    refused(f"{TEXT}params.freeze", why="the text encoder is frozen", way_out="write true", but=(True,)),
    refused(f"{TEXT}input_key", why="a sample's caption is its txt", way_out="write txt", but=("txt",)),
    *(
        refused(f"{TEXT}{name}", why="a caption is dropped to zeros", way_out=f"~{TEXT}{name}", but=(None,))
        for name in ("input_keys", "legacy_ucg_value")
    ),
    *(
        refused(
            f"{MODEL}conditioner_config.params.{name}",
            why="there is one text encoder",
            way_out="take it away",
            but=(None, []),
        )
        for name in ("cor_embs", "cor_p")
    ),
    refused(f"{VAE}params.cp_size", why="one process encodes a clip", way_out="write 1", but=(1,)),
    refused(
        f"{VAE}params.regularizer_config.params.sample",
        why="latents are drawn from the posterior",
        way_out="write true",
        but=(True,),
    ),
    *(
        refused(
            f"{codec}{name}",
            why="the VAE's sizes are those of its folder, and of CogVideoX",
            way_out=f"~{codec}{name}",
            but=but,
        )
        for codec in _CODECS
        for name, but in _FIXED.items()
    ),
    refused(f"{_CODECS[1]}z_channels", why="it is that of the encoder", way_out="write 16", but=(16,)),
    unneeded(
        *(f"{codec}{name}" for codec in _CODECS for name in ("resolution", "gather_norm")),
        why="it is about SAT's own split of the VAE",
    ),
    unneeded(f"{VAE}params.ignore_keys", why="weights that a run needs are read, and no others"),
    unneeded(
        f"{MODEL}disable_first_stage_autocast",
        why="the VAE has a precision of its own, model.config.tokenizer.precision",
    ),
    unneeded(f"{MODEL}log_keys", why="a run's page shows what it draws"),
    unneeded(f"{MODEL}en_and_decode_n_samples_a_time", why="clips are encoded one at a time"),
    unneeded(
        *(f"{NETWORK}{name}" for name in ("adm_in_channels", "input_time", "parallel_output")),
        why="it has no effect without classes",
    ),
    unneeded(
        *(
            f"{NETWORK}transformer_args.{name}"
            for name in ("vocab_size", "max_sequence_length", "skip_init", "is_decoder")
        ),
        why="SAT's base class asks for it; no video model reads it",
    ),
    unneeded(f"{DENOISER}params.quantize_c_noise", why="timesteps are whole numbers"),
    unneeded(
        *(f"{LOSS}params.{name}" for name in ("batch2model_keys", "block_scale", "block_size")),
        why="the loss does not read it",
    ),
    unneeded(
        *(f"{SAMPLER}params.{name}" for name in ("verbose", "device")),
        f"{TEXT}params.device",
        f"{TEXT}params.cache_dir",
        why="a run knows its device and its cache",
    ),
    dead(f"{MODEL}augmentation_dropout", "no code ever read it"),
    dead(f"{MODEL}lora_config", f"SAT looks for it at {LORA.rstrip('.')} only; move it there"),
    dead(f"{DENOISER}params.weighting_config.target", "the loss has its own weight, and never asked for this one"),
)
