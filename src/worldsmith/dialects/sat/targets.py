"""Maps each `target` of a SAT stack to components here. The names are looked up, never imported."""

from __future__ import annotations

from worldsmith.config.tree.suggest import did_you_mean
from worldsmith.dialects.sat.keys import DATA, DENOISER, LORA, LOSS, MODEL, MODULES, SAMPLER, TEXT, VAE

_DIFFUSION = "sgm.modules.diffusionmodules."
_TABLE = {f"{_DIFFUSION}discretizer.ZeroSNRDDPMDiscretization": "the noise schedule"}
SINCOS = "dit_video_concat.Basic3DPositionEmbeddingMixin"
ROPE = "dit_video_concat.Rotary3DPositionEmbeddingMixin"
DPM = f"{_DIFFUSION}sampling.VPSDEDPMPP2MSampler"
DDIM = f"{_DIFFUSION}sampling.VideoDDIMSampler"
DYNAMIC, PLAIN = f"{_DIFFUSION}guiders.DynamicCFG", f"{_DIFFUSION}guiders.VanillaCFG"
FOLDER, SHARDS = "data_video.SFTDataset", "data_video.VideoDataset"
TARGETS: dict[str, dict[str, str]] = {
    f"{MODEL}network_config.": {"dit_video_concat.DiffusionTransformer": "the transformer"},
    f"{MODULES}pos_embed_config.": {SINCOS: "a sinusoidal position table", ROPE: "rotary positions"},
    f"{MODULES}patch_embed_config.": {"dit_video_concat.ImagePatchEmbeddingMixin": "part of the transformer"},
    f"{MODULES}adaln_layer_config.": {"dit_video_concat.AdaLNMixin": "part of the transformer"},
    f"{MODULES}final_layer_config.": {"dit_video_concat.FinalLayerMixin": "part of the transformer"},
    LORA: {"sat.model.finetune.lora2.LoraMixin": "adapters"},
    DENOISER: {f"{_DIFFUSION}denoiser.DiscreteDenoiser": "part of the objective"},
    f"{DENOISER}params.weighting_config.": {f"{_DIFFUSION}denoiser_weighting.EpsWeighting": "not used by SAT"},
    f"{DENOISER}params.scaling_config.": {f"{_DIFFUSION}denoiser_scaling.VideoScaling": "v-prediction"},
    f"{DENOISER}params.discretization_config.": _TABLE,
    LOSS: {f"{_DIFFUSION}loss.VideoDiffusionLoss": "the objective"},
    f"{LOSS}params.sigma_sampler_config.": {f"{_DIFFUSION}sigma_sampling.DiscreteSampling": "sampling of noise levels"},
    f"{LOSS}params.sigma_sampler_config.params.discretization_config.": _TABLE,
    SAMPLER: {DPM: "the sampler dpm", DDIM: "the sampler ddim"},
    f"{SAMPLER}params.discretization_config.": _TABLE,
    f"{SAMPLER}params.guider_config.": {DYNAMIC: "guidance by timestep", PLAIN: "constant guidance"},
    f"{MODEL}conditioner_config.": {"sgm.modules.GeneralConditioner": "the conditioner"},
    TEXT: {"sgm.modules.encoders.modules.FrozenT5Embedder": "the text encoder, T5 without a mask"},
    VAE: {"vae_modules.autoencoder.VideoAutoencoderInferenceWrapper": "the VAE"},
    f"{VAE}params.loss_config.": {"torch.nn.Identity": "nothing"},
    f"{VAE}params.regularizer_config.": {
        "vae_modules.regularizers.DiagonalGaussianRegularizer": "a sample of the VAE's posterior"
    },
    f"{VAE}params.encoder_config.": {"vae_modules.cp_enc_dec.ContextParallelEncoder3D": "part of the VAE"},
    f"{VAE}params.decoder_config.": {"vae_modules.cp_enc_dec.ContextParallelDecoder3D": "part of the VAE"},
    DATA: {FOLDER: "a folder with videos/ and labels/", SHARDS: "shards of a webdataset"},
}
"""Component -> supported class names and descriptions of their replacements in Worldsmith."""
ELSEWHERE = {
    f"{_DIFFUSION}{name}": why
    for name, why in {
        "guiders.IdentityGuider": "samples are generated with guidance here; scale 1 has the same effect",
        "sampling.VPODEDPMPP2MSampler": "use VPSDEDPMPP2MSampler or VideoDDIMSampler",
        "sampling.VideoDDPMSampler": "use VPSDEDPMPP2MSampler or VideoDDIMSampler",
        "loss.StandardDiffusionLoss": "CogVideoX is trained with VideoDiffusionLoss",
        "denoiser_scaling.VScaling": "CogVideoX is trained with VideoScaling",
        "denoiser_scaling.EpsScaling": "CogVideoX is trained with VideoScaling",
        "discretizer.LegacyDDPMDiscretization": "CogVideoX has ZeroSNRDDPMDiscretization",
        "discretizer.EDMDiscretization": "CogVideoX has ZeroSNRDDPMDiscretization",
    }.items()
}
"""Known class names of SAT that are not supported, with the reason or an alternative."""


def explain(component: str, target: str) -> tuple[str, str]:
    """Returns (problem, suggestion) for a `target` of a SAT config that is not supported.

    Args:
        component: Dotted path of the component, a key of `TARGETS`.
        target: Class name that the config states for the component.
    """
    allowed = TARGETS[component]
    if target in ELSEWHERE:
        return f"{target} is not available here", ELSEWHERE[target]
    places = [place for place, names in TARGETS.items() if target in names]
    if places:
        return f"{target} belongs at {places[0]}target", f"expected {' or '.join(allowed)}"
    known = sorted({name for names in TARGETS.values() for name in names})
    advice = did_you_mean(target, [*allowed, *known]) or f"expected {' or '.join(allowed)}"
    return f"unknown '{target}'; names are looked up in a table, no code is imported", advice
