"""Rules of the section `model`: sizes, position embeddings, noise schedule, text, VAE, adapters, image conditioning."""

from __future__ import annotations

from worldsmith.dialects.sat.keys import DENOISER, LORA, LOSS, MODEL, MODULES, NETWORK, SAMPLER, SHIFTS, TEXT, VAE
from worldsmith.dialects.sat.targets import DDIM, DPM, PLAIN, ROPE, SINCOS, TARGETS
from worldsmith.dialects.translation import KeyRule, SpecTranslation, computed, format_value, read_key_rules

NET, OURS_TEXT = "model.config.network.", "model.config.text_encoder."
OURS_IMAGE = "model.config.image."
POSITIONS = f"{MODULES}pos_embed_config."
CHECKPOINTED = f"{NETWORK}transformer_args.checkpoint_activations"
FROZEN, LORA_TRAIN = f"{MODEL}not_trainable_prefixes", f"{MODEL}lora_train"
SOLVERS = {DPM: "dpm", DDIM: "ddim"}
PAIRS = {(1.15258426, 3.0), (0.7, 1.0)}
"""(latent scaling factor, noise schedule shift) of the released models."""
OURS_SAMPLING, GUIDER = "model.config.sampling.", f"{SAMPLER}params.guider_config."
ELSEWHERE = (POSITIONS, LORA, f"{DENOISER}params.weighting_config.", SAMPLER, GUIDER, "data.")
"""Prefixes of the components whose key `target` is translated together with the other keys of the component."""
PARTS = tuple(component for component in TARGETS if component not in ELSEWHERE)


@computed(*(f"{component}target" for component in PARTS))
def components(t: SpecTranslation) -> None:
    """Reports in `t` the class names (`target` keys) that the SAT config sets, each with its replacement in Worldsmith.

    Class names that are not supported became problems when the files were read.
    """
    for component in PARTS:
        if t.is_stated(f"{component}target"):
            what = TARGETS[component][t.get(f"{component}target")]
            t.report(f"{component}target", "kept", f"{what}, selected by the class name; no code is imported")


@computed(f"{NETWORK}hidden_size", f"{NETWORK}num_attention_heads", f"{POSITIONS}params.hidden_size_head")
def heads(t: SpecTranslation) -> None:
    """Sets the head size and the number of attention heads in `t` from SAT's hidden size and number of heads.

    Adds a problem if the hidden size is not the number of heads times the head size.
    """
    width, number = t.get(f"{NETWORK}hidden_size"), t.get(f"{NETWORK}num_attention_heads")
    size = f"{POSITIONS}params.hidden_size_head"
    if width % number:
        t.refuse(f"{NETWORK}hidden_size", f"{width} channels cannot be divided among {number} heads", "use a multiple")
        return
    if t.get(size) not in (None, width // number):
        t.refuse(
            size, f"{t.get(size)} x {number} heads does not equal hidden_size = {width}", f"{size}={width // number}"
        )
        return
    t.assign(f"{NETWORK}hidden_size", f"{NET}attention_head_dim", width // number, ", for each of the heads")
    t.move(f"{NETWORK}num_attention_heads", f"{NET}num_attention_heads", "renamed")
    t.report(size, "unneeded", "computed from the sizes")


@computed(f"{NETWORK}in_channels", f"{NETWORK}out_channels", f"{VAE}params.encoder_config.params.z_channels")
def channels(t: SpecTranslation) -> None:
    """Sets the input and output channels of the network in `t`; adds a problem for numbers that do not fit the VAE."""
    entering, leaving = t.get(f"{NETWORK}in_channels"), t.get(f"{NETWORK}out_channels")
    latent, image = t.get(f"{VAE}params.encoder_config.params.z_channels"), t.get(f"{MODEL}noised_image_input")
    if leaving != latent:
        t.refuse(f"{NETWORK}out_channels", f"the VAE has {latent} channels, found {leaving}", "write the same number")
    if entering != latent * (1 + image):
        why = f"{latent * (1 + image)} are required with noised_image_input = {str(image).lower()}, found {entering}"
        t.refuse(f"{NETWORK}in_channels", why, f"{NETWORK}in_channels={latent * (1 + image)}")
    else:
        t.move(f"{NETWORK}in_channels", f"{NET}in_channels", "renamed")
    if leaving == latent:
        t.move(f"{NETWORK}out_channels", f"{NET}out_channels", "renamed")
    t.report(f"{VAE}params.encoder_config.params.z_channels", "unneeded", "as in the VAE folder")


@computed(f"{NETWORK}patch_size")
def patches(t: SpecTranslation) -> None:
    """Sets the patch size in `t` from a number, or from [frames, n, n] of CogVideoX 1.5."""
    key, size = f"{NETWORK}patch_size", t.get(f"{NETWORK}patch_size")
    if isinstance(size, int):
        t.move(key, f"{NET}patch_size", "renamed")
    elif len(size) == 3 and size[1] == size[2]:
        t.put(f"{NET}patch_size", size[1], source=key)
        t.put(f"{NET}patch_size_t", size[0], source=key)
        t.put(f"{NET}patch_bias", False, source=key)
        text = f"{NET}patch_size = {size[1]}, patch_size_t = {size[0]}, as in CogVideoX 1.5"
        t.report(key, "renamed", f"{text}; SAT never fine-tuned such a model", warn=True)
    else:
        t.refuse(key, f"expected a number, or [frames, n, n], found {format_value(size)}", f"{key}=2")


@computed(
    f"{POSITIONS}target",
    *(f"{POSITIONS}params.{name}_interpolation" for name in ("height", "width", "time")),
    f"{POSITIONS}params.learnable_pos_embed",
    *(f"{NETWORK}{name}_interpolation" for name in ("height", "width", "time")),
)
def positions(t: SpecTranslation) -> None:
    """Sets the type of position embeddings and their interpolation scales in `t`."""
    kind, learned = t.get(f"{POSITIONS}target"), f"{POSITIONS}params.learnable_pos_embed"
    text = ": rotary position embeddings" if kind == ROPE else ": a sinusoidal position table"
    t.assign(f"{POSITIONS}target", f"{NET}use_rotary_positional_embeddings", kind == ROPE, text)
    if t.get(learned):
        what = "which is not trained next to adapters" if t.get(LORA.rstrip(".")) else "trained like other weights"
        t.assign(learned, f"{NET}use_learned_positional_embeddings", True, f": a position table, {what}")
    else:
        t.report(learned, "unneeded", "there is no such table")
    scales = {}
    for name in ("height", "width", "time"):
        outer, inner = f"{NETWORK}{name}_interpolation", f"{POSITIONS}params.{name}_interpolation"
        scales[name] = t.get(inner) if t.is_stated(inner) else t.get(outer)
        for key in (outer, inner):
            if kind == ROPE:
                t.report(key, "unneeded", "rotary position embeddings have no scale")
            else:
                t.report(
                    key,
                    "renamed",
                    f"{NET}{'temporal' if name == 'time' else 'spatial'}_interpolation_scale = {scales[name]:g}",
                )
    if kind == SINCOS and scales["height"] != scales["width"]:
        why = f"height and width need the same scale, found {scales['height']:g} and {scales['width']:g}"
        t.refuse(f"{POSITIONS}params.height_interpolation", why, "write the same number in both")
    elif kind == SINCOS:
        t.put(f"{NET}spatial_interpolation_scale", scales["height"], source=f"{POSITIONS}params.height_interpolation")
        t.put(f"{NET}temporal_interpolation_scale", scales["time"], source=f"{POSITIONS}params.time_interpolation")


@computed(*SHIFTS)
def noise_schedule(t: SpecTranslation) -> None:
    """Sets the shift of the noise schedule in `t`; adds a problem if the three keys that state it differ."""
    found = [t.get(key) for key in SHIFTS]
    if len(set(found)) > 1:
        why = f"the three keys for the shift of the noise schedule differ: {', '.join(f'{value:g}' for value in found)}"
        t.refuse(SHIFTS[0], why, " ".join(f"{key}={found[1]:g}" for key in SHIFTS))
        return
    t.put("objective.shift_scale", found[0], source=SHIFTS[0])
    text = (
        f"objective.shift_scale = {found[0]:g}; shift_scale has this value in all three of "
        "denoiser_config, loss_fn_config and sampler_config"
    )
    for key in SHIFTS:
        t.report(key, "renamed", text)
    scale = t.get(f"{MODEL}scale_factor")
    if (scale, found[0]) not in PAIRS:
        text = (
            f"scale_factor {scale:g} and shift_scale {found[0]:g} do not belong to a released model (1.15258426, "
            "3; 0.7, 1)"
        )
        t.report(SHIFTS[0], "approximated", text, warn=True)


@computed(f"{POSITIONS}params.text_length", f"{TEXT}params.max_length")
def text_length(t: SpecTranslation) -> None:
    """Sets the number of text tokens in `t`; adds a problem if network and text encoder state different numbers."""
    keys = f"{POSITIONS}params.text_length", f"{TEXT}params.max_length"
    first, second = map(t.get, keys)
    if first != second:
        t.refuse(
            keys[0], f"the network expects {first} text tokens, but the encoder produces {second}", f"{keys[1]}={first}"
        )
        return
    t.move(keys[0], f"{NET}max_text_seq_length", "renamed")
    t.move(keys[1], f"{OURS_TEXT}max_length", "renamed")


@computed(LORA_TRAIN, FROZEN, *(f"{LORA}{name}" for name in ("target", "params.r", "params.lora_alpha")))
def trained_parameters(t: SpecTranslation) -> None:
    """Sets in `t` whether LoRA adapters or all weights of the transformer are trained.

    Adds a problem if nothing would be trained, or if parts of the transformer are frozen by name.
    """
    adapted, frozen = t.get(LORA.rstrip(".")), t.get(FROZEN)
    if adapted:
        put_adapters(t)
        if t.get(LORA_TRAIN):
            t.report(LORA_TRAIN, "approximated", "adapters are trained; in SAT, all of them would have learning rate 0")
    elif t.get(LORA_TRAIN) or "all" in frozen:
        key = LORA_TRAIN if t.get(LORA_TRAIN) else FROZEN
        why = "no parameter would be trained: all weights are frozen, and there is no lora_config"
        t.refuse(key, why, f"add {LORA.rstrip('.')}, or {FROZEN}=[first_stage_model,conditioner] {LORA_TRAIN}=false")
        return
    else:
        t.put("model.config.lora_enabled", False, source=FROZEN)
    if not t.get(LORA_TRAIN):
        t.report(LORA_TRAIN, "unneeded", "lora_config decides whether there are adapters")
    others = [prefix for prefix in frozen if prefix not in ("all", "first_stage_model", "conditioner")]
    if others:
        t.refuse(FROZEN, f"parts of the transformer cannot be frozen by name: {', '.join(others)}", f"{FROZEN}=[all]")
    elif adapted and "all" not in frozen:
        t.report(
            FROZEN,
            "approximated",
            "next to adapters all weights are frozen here; in SAT, the transformer was also trained",
        )
    else:
        kept = "adapters only" if adapted else "all weights of the transformer; VAE and text encoder are frozen"
        t.report(FROZEN, "renamed", f"model.config.lora_enabled = {str(bool(adapted)).lower()}: {kept}")


def put_adapters(t: SpecTranslation) -> None:
    """Sets rank, scale and target modules of the LoRA adapters in `t`."""
    rank, alpha = t.get(f"{LORA}params.r"), t.get(f"{LORA}params.lora_alpha")
    t.report(f"{LORA}target", "renamed", "model.config.lora_enabled = true")
    t.put("model.config.lora_enabled", True, source=f"{LORA}target")
    t.put("model.config.ema.trainable_only", True, source=f"{LORA}target")
    t.put("model.config.lora_target_modules", "to_q,to_k,to_v,to_out.0", source=f"{LORA}target")
    count = 8 * rank * t.get(f"{NETWORK}hidden_size") * t.get(f"{NETWORK}num_layers")
    t.assign(f"{LORA}params.r", "model.config.lora_rank", rank, f": {count} trained parameters")
    if alpha <= 0:
        t.refuse(f"{LORA}params.lora_alpha", f"expected a number above 0, found {alpha:g}", "write 1")
        return
    alpha = int(alpha) if alpha == round(alpha) else alpha
    t.put("model.config.lora_alpha", alpha, source=f"{LORA}params.lora_alpha")
    text = f"model.config.lora_alpha = {alpha:g}: adapters have the scale {alpha:g}/{rank}"
    weak = "; with such a scale they learn little unless the learning rate is high" if alpha * 2 < rank else ""
    t.report(f"{LORA}params.lora_alpha", "kept", text + weak, warn=bool(weak))


@computed(f"{TEXT}ucg_rate")
def dropped_captions(t: SpecTranslation) -> None:
    """Sets the caption dropout rate in `t`; dropped captions have zero embeddings."""
    t.move(f"{TEXT}ucg_rate", "dataloader_train.dataset.cfg_dropout_rate", "renamed")
    t.put(f"{OURS_TEXT}dropped_captions", "zeros", source=f"{TEXT}ucg_rate")


@computed(f"{MODEL}noised_image_input", f"{MODEL}noised_image_dropout", f"{MODEL}noised_image_all_concat")
def image_conditioning(t: SpecTranslation) -> None:
    """Sets the conditioning on the first frame in `t` from SAT's three `noised_image_…` keys, if it is enabled."""
    key, dropout, repeat = (f"{MODEL}noised_image_{name}" for name in ("input", "dropout", "all_concat"))
    if not t.get(key):
        t.report(key, "kept", "there is no image conditioning")
        for name in (dropout, repeat):
            t.report(name, "unneeded", "training uses no image")
        return
    text = ": the first frame of each clip, with noise on its pixels, encoded separately"
    scaled = isinstance(t.get(f"{NETWORK}patch_size"), list)
    if scaled:
        text += "; its latents have the scale of diffusers' pipeline, whereas SAT trains with scale_factor and samples"
        text += f" without it: {OURS_IMAGE}latent_scale sets another"
    t.assign(key, f"{OURS_IMAGE}noise", True, text, outcome="approximated" if scaled else "renamed", warn=scaled)
    t.put(f"{OURS_IMAGE}dropout", t.get(dropout), source=dropout)
    text = f"{OURS_IMAGE}dropout = {t.get(dropout):g}, decided per sample; in SAT, once for the batch of a process"
    t.report(dropout, "approximated", text)
    t.move(repeat, f"{OURS_IMAGE}repeat", "renamed")


@computed(f"{LOSS}params.type")
def loss_type(t: SpecTranslation) -> None:
    """Sets the loss type in `t`; adds a problem for "lpips"."""
    if t.get(f"{LOSS}params.type") == "lpips":
        t.refuse(f"{LOSS}params.type", "frames are not decoded for comparison", "write l2 or l1")
    else:
        t.move(f"{LOSS}params.type", "objective.loss_type", "renamed")


@computed(f"{MODEL}latent_input")
def latent_input(t: SpecTranslation) -> None:
    """Reports in `t` that videos are always encoded by the VAE; warns if the training config uses pixels as latents."""
    key = f"{MODEL}latent_input"
    if not t.get(key):
        t.report(key, "kept", "videos are encoded")
    elif t.get("data.target"):
        text = (
            "videos are encoded and cached; SAT uses the output of the dataset class in data.target (pixels) as "
            "latents without encoding it, although its channels do not match the network"
        )
        t.report(key, "approximated", text, warn=True)
    else:
        t.report(key, "unneeded", "it only affects the videos during training")


@computed(
    f"{LOSS}params.sigma_sampler_config.params.uniform_sampling", f"{LOSS}params.sigma_sampler_config.params.group_num"
)
def timestep_strata(t: SpecTranslation) -> None:
    """Sets the number of timestep strata in `t` to the number of process groups of SAT's uniform timestep sampling.

    Without uniform sampling or a number of groups it sets nothing, and only reports the keys.
    """
    base = f"{LOSS}params.sigma_sampler_config.params."
    if t.get(f"{base}uniform_sampling"):
        text = (
            "timesteps are sampled uniformly; in SAT, with more than 8 processes, each group has its own part "
            "of the schedule"
        )
        groups = t.get(f"{base}group_num")
        if groups:
            t.put("objective.timestep_strata", groups, source=f"{base}group_num")
            text = (
                f"objective.timestep_strata = {groups}: consecutive samples get timesteps from different parts of "
                "the schedule"
            )
        t.report(f"{base}uniform_sampling", "approximated", text)
        t.report(f"{base}group_num", "approximated" if groups else "unneeded", text)
    else:
        t.report(f"{base}uniform_sampling", "kept", "timesteps are sampled from the complete schedule")
        t.report(f"{base}group_num", "unneeded", "there are no groups")


@computed(
    f"{SAMPLER}target",
    f"{SAMPLER}params.num_steps",
    f"{GUIDER}target",
    *(f"{GUIDER}params.{name}" for name in ("exp", "scale", "num_steps")),
)
def sampling(t: SpecTranslation) -> None:
    """Sets the sampler, number of steps and guidance in `t`, for generated samples and exported pipelines."""
    steps, inner, exponent = f"{SAMPLER}params.num_steps", f"{GUIDER}params.num_steps", f"{GUIDER}params.exp"
    constant = t.get(f"{GUIDER}target") == PLAIN
    t.move(f"{SAMPLER}target", f"{OURS_SAMPLING}scheduler", "renamed", convert=lambda name: SOLVERS[name])
    t.move(steps, f"{OURS_SAMPLING}steps", "renamed", why="evenly along the schedule, rounded as in diffusers")
    t.move(f"{GUIDER}params.scale", f"{OURS_SAMPLING}guidance", "renamed")
    how = "off" if constant else "by_timestep"
    t.put(f"{OURS_SAMPLING}dynamic_guidance", how, source=f"{GUIDER}target")
    t.report(f"{GUIDER}target", "renamed", f"{OURS_SAMPLING}dynamic_guidance = {how}")
    if constant:
        for key in (exponent, inner):
            t.report(key, "unneeded", "the scale does not change")
        return
    if t.get(inner) != t.get(steps):
        why = f"the sampler has {t.get(steps)} steps, but the guidance is set for {t.get(inner)}"
        t.refuse(inner, why, f"{inner}={t.get(steps)}")
    else:
        t.report(inner, "unneeded", "the guidance uses the number of steps of the sampler")
    if t.get(exponent) % 1:
        t.refuse(exponent, f"negative numbers cannot be raised to the power {t.get(exponent)}", f"{exponent}=5")
    else:
        t.move(exponent, f"{OURS_SAMPLING}guidance_exponent", "renamed", convert=int)


RULES: tuple[KeyRule, ...] = (
    *(
        components,
        heads,
        channels,
        patches,
        positions,
        noise_schedule,
        text_length,
        trained_parameters,
        dropped_captions,
        image_conditioning,
    ),
    *(latent_input, timestep_strata, sampling, loss_type),
    *read_key_rules("sat", "model"),
)
"""Rules of the section `model`."""
