"""All keys of a SAT stack with their types and SAT's defaults.

A component section has `target` and `params`, as in SAT; lists of sections use indices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

from worldsmith.config.declare.ranges import Count, DropoutRate, Factor, LayerCount, NotNegative, Range, Share
from worldsmith.dialects.translation import read_key_rules

REQUIRED: Any = object()
"""No default: the files must contain the key."""
MODEL, DATA, ARGS, DS = "model.", "data.", "args.", "deepspeed."
NETWORK = f"{MODEL}network_config.params."
MODULES = f"{NETWORK}modules."
LORA = f"{MODULES}lora_config."
OPTIMIZER = f"{DS}optimizer.params."
DENOISER = f"{MODEL}denoiser_config."
LOSS = f"{MODEL}loss_fn_config."
SAMPLER = f"{MODEL}sampler_config."
TEXT = f"{MODEL}conditioner_config.params.emb_models[0]."
VAE = f"{MODEL}first_stage_config."
SHIFTS = tuple(
    f"{place}discretization_config.params.shift_scale"
    for place in (f"{DENOISER}params.", f"{LOSS}params.sigma_sampler_config.params.", f"{SAMPLER}params.")
)
"""Keys of the three copies of the noise schedule's shift."""
_KEYS_WITHOUT_EFFECT = [key for rule in read_key_rules("sat", "model", "training") for key in rule.keys]
_ANY = (Any, None)
Text = str | None
Names = list[str]


@dataclass(frozen=True, slots=True)
class Key:
    """Type and default of one key of a SAT config."""

    hint: Any
    """Type of the key with its limits."""
    default: Any

    @property
    def plain(self) -> Any:
        """Type of the key's value, without the limits in its `Annotated` hint."""
        holder = type("Holder", (), {"__annotations__": {"value": self.hint}})
        return get_type_hints(holder)["value"]


def _section_keys(prefix: str, **keys: tuple[Any, Any]) -> dict[str, Key]:
    """Returns the keys of the section `prefix` by dotted name.

    Typed keys (`keys`: name -> (type, default)) are followed by keys that only `key_rules.toml` lists.
    """
    typed = {f"{prefix}{name}": Key(*key) for name, key in keys.items()}
    others = [key for key in _KEYS_WITHOUT_EFFECT if key.rpartition(".")[0] == prefix.rstrip(".")]
    return {**typed, **{key: Key(*_ANY) for key in others if key not in typed}}


def _component_keys(prefix: str, target: Any = REQUIRED, /, **params: tuple[Any, Any]) -> dict[str, Key]:
    """Returns the keys of a component's section: `target` and the keys below `params`.

    Args:
        prefix: Dotted path of the section, ending in a dot.
        target: Default of `target`, the name of the component's class.
        params: Type and default of each key below `params`.
    """
    return {
        f"{prefix}target": Key(str if target is REQUIRED else Text, target),
        **_section_keys(f"{prefix}params.", **params),
    }


def _noise_schedule_keys(prefix: str) -> dict[str, Key]:
    """Returns the keys of the noise schedule in the section `prefix` (a dotted path that ends in a dot)."""
    return _component_keys(
        f"{prefix}discretization_config.",
        shift_scale=(Annotated[float, Range(gt=0)], 1.0),
        keep_start=(bool, False),
        post_shift=(bool, False),
        linear_start=(float, 0.00085),
        linear_end=(float, 0.012),
        num_timesteps=(int, 1000),
    )


def _vae_part_keys(name: str) -> dict[str, Key]:
    """Returns the keys of the VAE's encoder or decoder; `name`: "encoder_config" or "decoder_config"."""
    return _component_keys(
        f"{VAE}params.{name}.",
        double_z=(bool, True),
        z_channels=(int, 16),
        resolution=(int, 256),
        in_channels=(int, 3),
        out_ch=(int, 3),
        ch=(int, 128),
        ch_mult=(list[int], [1, 2, 2, 4]),
        attn_resolutions=(list[int], []),
        num_res_blocks=(int, 3),
        dropout=(float, 0.0),
        gather_norm=(bool, False),
        temporal_compress_times=(int, 4),
    )


_MODEL_KEYS = {
    **_section_keys(
        MODEL,
        scale_factor=(float, 1.0),
        disable_first_stage_autocast=(bool, False),
        latent_input=(bool, False),
        input_key=(str, "mp4"),
        log_keys=(Names | None, None),
        not_trainable_prefixes=(Names, ["first_stage_model", "conditioner"]),
        lora_train=(bool, False),
        noised_image_input=(bool, False),
        noised_image_dropout=(Share, 0.0),
        noised_image_all_concat=(bool, False),
        augmentation_dropout=_ANY,
        lr_scale=(float | None, None),
        en_and_decode_n_samples_a_time=(int | None, None),
        compile_model=(bool, False),
        network_wrapper=(Text, None),
        use_pd=(bool, False),
        lora_config=_ANY,
    ),
    **_component_keys(
        f"{MODEL}network_config.",
        num_layers=(LayerCount, REQUIRED),
        hidden_size=(Count, REQUIRED),
        num_attention_heads=(Count, REQUIRED),
        in_channels=(Count, REQUIRED),
        out_channels=(Count, REQUIRED),
        patch_size=(Count | list[Count], 2),
        num_frames=(Count, REQUIRED),
        time_compressed_rate=(Count, 4),
        latent_height=(Count, REQUIRED),
        latent_width=(Count, REQUIRED),
        time_embed_dim=(int | None, None),
        ofs_embed_dim=(int | None, None),
        adm_in_channels=_ANY,
        elementwise_affine=(bool, True),
        num_classes=_ANY,
        use_SwiGLU=(bool, False),
        use_RMSNorm=(bool, False),
        input_time=(Literal["adaln"], "adaln"),
        parallel_output=(bool, True),
        height_interpolation=(float, 1.0),
        width_interpolation=(float, 1.0),
        time_interpolation=(float, 1.0),
    ),
    **_section_keys(
        f"{NETWORK}transformer_args.",
        checkpoint_activations=(bool, False),
        checkpoint_num_layers=(int, 1),
        checkpoint_skip_layers=(int, 0),
        vocab_size=_ANY,
        max_sequence_length=_ANY,
        layernorm_order=(str, "pre"),
        skip_init=(bool, False),
        model_parallel_size=(Count, 1),
        is_decoder=_ANY,
        hidden_dropout=(float, 0.0),
        attention_dropout=(float, 0.0),
        layernorm_epsilon=(float, 1e-5),
    ),
    **_component_keys(
        f"{MODULES}pos_embed_config.",
        text_length=(Count, REQUIRED),
        height_interpolation=(float, 1.0),
        width_interpolation=(float, 1.0),
        time_interpolation=(float, 1.0),
        hidden_size_head=(int | None, None),
        learnable_pos_embed=(bool, False),
    ),
    **_component_keys(f"{MODULES}patch_embed_config.", text_hidden_size=(Count, REQUIRED)),
    **_component_keys(f"{MODULES}adaln_layer_config.", qk_ln=(bool, True)),
    **_component_keys(f"{MODULES}final_layer_config."),
    **_component_keys(
        LORA,
        None,
        r=(Count, REQUIRED),
        lora_alpha=(float, 1),
        lora_dropout=(DropoutRate, 0.0),
        layer_range=(list[int] | None, None),
        qlora=(bool, False),
        cross_attention=(bool, True),
    ),
    **_component_keys(
        DENOISER, num_idx=(int, 1000), quantize_c_noise=_ANY, do_append_zero=(bool, False), flip=(bool, True)
    ),
    **_component_keys(f"{DENOISER}params.weighting_config.", None),
    **_component_keys(f"{DENOISER}params.scaling_config."),
    **_noise_schedule_keys(f"{DENOISER}params."),
    **_component_keys(
        LOSS,
        offset_noise_level=(Factor, 0.0),
        fixed_frames=(int, 0),
        type=(Literal["l2", "l1", "lpips"], "l2"),
        batch2model_keys=_ANY,
        min_snr_value=(Annotated[float, Range(gt=0)] | None, None),
        block_scale=_ANY,
        block_size=_ANY,
    ),
    **_component_keys(
        f"{LOSS}params.sigma_sampler_config.",
        uniform_sampling=(bool, False),
        num_idx=(int, 1000),
        group_num=(int, 0),
    ),
    **_noise_schedule_keys(f"{LOSS}params.sigma_sampler_config.params."),
    **_component_keys(
        SAMPLER,
        num_steps=(Count, 50),
        verbose=_ANY,
        fixed_frames=(int, 0),
        sdedit=(bool, False),
        device=_ANY,
    ),
    **_noise_schedule_keys(f"{SAMPLER}params."),
    **_component_keys(
        f"{SAMPLER}params.guider_config.",
        scale=(float, 6.0),
        exp=(float, 5.0),
        num_steps=(int, 50),
    ),
    **_component_keys(f"{MODEL}conditioner_config.", cor_embs=_ANY, cor_p=_ANY),
    **_section_keys(
        TEXT,
        is_trainable=(bool, False),
        input_key=(str, "txt"),
        input_keys=_ANY,
        ucg_rate=(Share, 0.0),
        legacy_ucg_value=_ANY,
    ),
    **_component_keys(
        TEXT,
        model_dir=(str, "google/t5-v1_1-xxl"),
        max_length=(Count, 77),
        freeze=(bool, True),
        cache_dir=(Text, None),
        device=_ANY,
    ),
    **_component_keys(VAE, cp_size=(Count, 1), ckpt_path=(Text, None), ignore_keys=(Names, [])),
    **_component_keys(f"{VAE}params.loss_config.", None),
    **_component_keys(f"{VAE}params.regularizer_config.", sample=(bool, True)),
    **_vae_part_keys("encoder_config"),
    **_vae_part_keys("decoder_config"),
}
_SIZE = list[Count]
_DATA_KEYS = _component_keys(
    DATA,
    video_size=(_SIZE | None, None),
    image_size=(_SIZE | None, None),
    fps=(Annotated[float, Range(gt=0)], REQUIRED),
    max_num_frames=(int | None, None),
    num_frames=(int | None, None),
    skip_frms_num=(float, 0.0),
    nshards=_ANY,
    seed=(int, 1),
    meta_names=_ANY,
    shuffle_buffer=(int, 1000),
    include_dirs=(Any, None),
    txt_key=(str, "caption"),
)
OVERRIDDEN_ARGS = {
    "zero_stage": (int, 0, "zero_optimization.stage"),
    "lr": (float, 1e-4, "optimizer.params.lr"),
    "weight_decay": (float, 0.01, "optimizer.params.weight_decay"),
    "batch_size": (int, 4, "train_micro_batch_size_per_gpu"),
    "fp16": (bool, False, "fp16.enabled"),
    "bf16": (bool, False, "bf16.enabled"),
    "gradient_accumulation_steps": (int, 1, "gradient_accumulation_steps"),
}
"""Keys of `args` → (type, default, key of `deepspeed` that overrides them)."""
_ARGS_KEYS = {
    **_section_keys(
        ARGS,
        mode=(Literal["finetune", "pretrain", "inference"], "pretrain"),
        experiment_name=(str, "MyModel"),
        load=(Text, None),
        force_train=(bool, False),
        no_load_rng=(bool, False),
        no_save_rng=(bool, False),
        save=(Text, None),
        save_interval=(Count, 5000),
        train_iters=(Count | None, None),
        epochs=(Count | None, None),
        eval_iters=(NotNegative, 100),
        eval_interval=(Count | None, None),
        eval_batch_size=(Count | None, None),
        strict_eval=(bool, False),
        only_log_video_latents=(bool, False),
        log_interval=(Count, 50),
        train_data=(Names, REQUIRED),
        valid_data=(Names | None, None),
        test_data=(Names | None, None),
        train_data_weights=(list[float] | None, None),
        split=(str, "1000,1,1"),
        num_workers=(NotNegative, 1),
        prefetch_factor=(Count, 4),
        checkpoint_activations=(bool, False),
        model_parallel_size=(Count, 1),
        seed=(Count, 1234),
        lr_decay_style=(str, "linear"),
        lr_decay_ratio=(Share, 0.1),
        warmup=(Share, 0.01),
        lr_decay_iters=(Count | None, None),
        wandb=(bool, False),
        wandb_project_name=(str, "default_project"),
        summary_dir=(str, ""),
        resume_dataloader=(bool, False),
        iterable_dataset=(bool, False),
        iterable_dataset_eval=(bool, False),
        batch_from_same_dataset=(bool, False),
        exit_interval=(int | None, None),
        force_pretrain=(bool, False),
        **{name: (hint, default) for name, (hint, default, _) in OVERRIDDEN_ARGS.items()},
    ),
}
LOSS_SCALE = ("initial_scale_power", "loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale")
_DS_KEYS = {
    **_section_keys(
        DS,
        train_micro_batch_size_per_gpu=(Count | Literal["auto"] | None, None),
        train_batch_size=(Count | Literal["auto"] | None, None),
        gradient_accumulation_steps=(Count | Literal["auto"], 1),
        gradient_clipping=(Factor | Literal["auto"], 0.0),
    ),
    **_section_keys(
        f"{DS}zero_optimization.",
        stage=(Literal[0, 1, 2, 3], 0),
        cpu_offload=(bool, False),
        stage3_gather_16bit_weights_on_model_save=(bool, False),
    ),
    **_section_keys(f"{DS}zero_optimization.offload_optimizer.", device=(Text, None)),
    **_section_keys(f"{DS}zero_optimization.offload_param.", device=(Text, None)),
    **_section_keys(f"{DS}bf16.", enabled=(bool, False)),
    **_section_keys(
        f"{DS}fp16.",
        enabled=(bool, False),
        initial_scale_power=(Annotated[int, Range(ge=0, le=64)], 16),
        loss_scale=(Factor, 0.0),
        loss_scale_window=(Count, 1000),
        hysteresis=_ANY,
        min_loss_scale=_ANY,
    ),
    **_section_keys(f"{DS}optimizer.", type=(Text, None)),
    **_section_keys(
        OPTIMIZER,
        lr=(Factor, 1e-4),
        betas=(list[float], [0.9, 0.999]),
        eps=(Factor, 1e-8),
        weight_decay=(Factor, 0.01),
        ema_decay=(Share, 0.9999),
    ),
    **_section_keys(f"{DS}activation_checkpointing."),
}
KEYS: dict[str, Key] = {**_MODEL_KEYS, **_DATA_KEYS, **_ARGS_KEYS, **_DS_KEYS}
OPTIONAL = (LORA, f"{DENOISER}params.weighting_config.", f"{VAE}params.loss_config.")
"""Components that a SAT config may omit."""
