"""SAT's published YAML files, written from what their tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Doc = dict[str, Any]
DIFFUSION = "sgm.modules.diffusionmodules"
SIZES = {
    "2b": (30, 1920, 30, 16, 1.15258426, 3.0),
    "5b": (42, 3072, 48, 16, 0.7, 1.0),
    "5b_i2v": (42, 3072, 48, 32, 0.7, 1.0),
    "1.5_5b": (42, 3072, 48, 16, 0.7, None),
    "1.5_5b_i2v": (42, 3072, 48, 32, 0.7, None),
}
IMAGE = {"noised_image_input": True, "noised_image_all_concat": False, "noised_image_dropout": 0.05}
RANKS = {"2b": 128, "5b": 128, "5b_i2v": 256}


def component(target: str, **params: Any) -> Doc:
    return {"target": target, "params": params} if params else {"target": target}


def model_file(name: str, lora: bool) -> Doc:
    layers, width, heads, channels, scale, shift = SIZES[name]
    newer, image = name.startswith("1.5"), name.endswith("i2v")
    table = component(f"{DIFFUSION}.discretizer.ZeroSNRDDPMDiscretization", **({"shift_scale": shift} if shift else {}))
    length = 224 if newer else 226
    if name == "2b":
        scales = {"height_interpolation": 1.875, "width_interpolation": 1.875}
        positions = component("dit_video_concat.Basic3DPositionEmbeddingMixin", text_length=length, **scales)
    else:
        learned = {"learnable_pos_embed": True} if image and not newer else {}
        positions = component(
            "dit_video_concat.Rotary3DPositionEmbeddingMixin", hidden_size_head=64, text_length=length, **learned
        )
    modules = {
        "pos_embed_config": positions,
        "patch_embed_config": component("dit_video_concat.ImagePatchEmbeddingMixin", text_hidden_size=4096),
        "adaln_layer_config": component("dit_video_concat.AdaLNMixin", qk_ln=True),
        "final_layer_config": component("dit_video_concat.FinalLayerMixin"),
    }
    if lora:
        modules["lora_config"] = component("sat.model.finetune.lora2.LoraMixin", r=RANKS[name])
    codec = {
        **{"double_z": True, "z_channels": 16, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128},
        **{"ch_mult": [1, 2, 2, 4], "attn_resolutions": [], "num_res_blocks": 3, "dropout": 0.0, "gather_norm": True},
    }
    sizes = {
        **{"num_layers": layers, "hidden_size": width, "num_attention_heads": heads, "in_channels": channels},
        **{"out_channels": 16, "patch_size": [2, 2, 2] if newer else 2, "num_frames": 81 if newer else 49},
        **{"latent_height": 300 if newer else 60, "latent_width": 300 if newer else 90, "time_compressed_rate": 4},
        **{"time_embed_dim": 512, "adm_in_channels": 256, "elementwise_affine": True},
        **({"ofs_embed_dim": 512} if newer and image else {}),
    }
    base = {
        **{"checkpoint_activations": True, "vocab_size": 1, "max_sequence_length": 64, "layernorm_order": "pre"},
        **{"skip_init": False, "model_parallel_size": 1, "is_decoder": False},
    }
    text = component(
        "sgm.modules.encoders.modules.FrozenT5Embedder", model_dir="t5-v1_1-xxl", max_length=length, freeze=True
    )
    model = {
        **{"scale_factor": scale, "disable_first_stage_autocast": True, "log_keys": ["txt"]},
        **({"latent_input": True} if name == "1.5_5b" else {}),
        **(
            {"noised_image_input": True, "noised_image_all_concat": False, "noised_image_dropout": 0.05}
            if image
            else {}
        ),
        **({"augmentation_dropout": 0.15} if newer and image else {}),
        **({"not_trainable_prefixes": ["all"]} if lora else {}),
        "network_config": component(
            "dit_video_concat.DiffusionTransformer", **sizes, transformer_args=base, modules=modules
        ),
        "denoiser_config": component(
            f"{DIFFUSION}.denoiser.DiscreteDenoiser",
            num_idx=1000,
            quantize_c_noise=False,
            weighting_config=component(f"{DIFFUSION}.denoiser_weighting.EpsWeighting"),
            scaling_config=component(f"{DIFFUSION}.denoiser_scaling.VideoScaling"),
            discretization_config=table,
        ),
        "conditioner_config": component(
            "sgm.modules.GeneralConditioner",
            emb_models=[{"is_trainable": False, "input_key": "txt", "ucg_rate": 0.1, **text}],
        ),
        "first_stage_config": component(
            "vae_modules.autoencoder.VideoAutoencoderInferenceWrapper",
            cp_size=1,
            ckpt_path="3d-vae.pt",
            ignore_keys=["loss"],
            loss_config=component("torch.nn.Identity"),
            regularizer_config=component("vae_modules.regularizers.DiagonalGaussianRegularizer"),
            encoder_config=component("vae_modules.cp_enc_dec.ContextParallelEncoder3D", **codec),
            decoder_config=component("vae_modules.cp_enc_dec.ContextParallelDecoder3D", **codec),
        ),
        "loss_fn_config": component(
            f"{DIFFUSION}.loss.VideoDiffusionLoss",
            offset_noise_level=0,
            sigma_sampler_config=component(
                f"{DIFFUSION}.sigma_sampling.DiscreteSampling",
                uniform_sampling=True,
                num_idx=1000,
                **({"group_num": 40} if newer else {}),
                discretization_config=table,
            ),
        ),
        "sampler_config": component(
            f"{DIFFUSION}.sampling.VPSDEDPMPP2MSampler",
            num_steps=50,
            verbose=True,
            discretization_config=table,
            guider_config=component(f"{DIFFUSION}.guiders.DynamicCFG", scale=6, exp=5, num_steps=50),
        ),
    }
    return {"model": model}


def run_file() -> str:
    """sft.yaml as text: how numbers are spelled counts."""
    return """
args:
  checkpoint_activations: True
  model_parallel_size: 1
  experiment_name: lora-disney
  mode: finetune
  load: "{your_CogVideoX-2b-sat_path}/transformer"
  no_load_rng: True
  train_iters: 1000
  eval_iters: 1
  eval_interval: 100
  eval_batch_size: 1
  save: ckpts_5b_lora
  save_interval: 500
  log_interval: 20
  train_data: [ "disney" ]
  valid_data: [ "disney" ]
  split: 1,0,0
  num_workers: 8
  force_train: True
  only_log_video_latents: True
data:
  target: data_video.SFTDataset
  params:
    video_size: [ 480, 720 ]
    fps: 8
    max_num_frames: 49
    skip_frms_num: 3.
deepspeed:
  train_micro_batch_size_per_gpu: 2
  gradient_accumulation_steps: 1
  steps_per_print: 50
  gradient_clipping: 0.1
  zero_optimization:
    stage: 2
    cpu_offload: false
    contiguous_gradients: false
    overlap_comm: true
    reduce_scatter: true
    reduce_bucket_size: 1000000000
    allgather_bucket_size: 1000000000
    load_from_fp32_weights: false
  zero_allow_untested_optimizer: true
  bf16:
    enabled: True
  fp16:
    enabled: False
  loss_scale: 0
  loss_scale_window: 400
  hysteresis: 2
  min_loss_scale: 1
  optimizer:
    type: sat.ops.FusedEmaAdam
    params:
      lr: 0.00001
      betas: [ 0.9, 0.95 ]
      eps: 1e-8
      weight_decay: 1e-4
  activation_checkpointing:
    partition_activations: false
    contiguous_memory_optimization: false
  wall_clock_breakdown: false
"""


FILLED = (
    "args.load=zai-org/CogVideoX-2b",
    "model.first_stage_config.params.ckpt_path=zai-org/CogVideoX-2b",
    "model.conditioner_config.params.emb_models.0.params.model_dir=google/t5-v1_1-xxl",
)
"""Words that fill in the paths, one by the number of a list's item."""


def write_stack(name: str = "2b", *more: str, lora: bool = True) -> list[str]:
    """Writes a model's file, sft.yaml and further texts into the working folder, which also gets the data's folder."""
    Path("disney/videos").mkdir(parents=True, exist_ok=True)
    Path("model.yaml").write_text(yaml.safe_dump(model_file(name, lora)))
    Path("sft.yaml").write_text(run_file())
    for index, text in enumerate(more):
        Path(f"{index}.yaml").write_text(text)
    return ["model.yaml", "sft.yaml", *(f"{index}.yaml" for index in range(len(more)))]


INFERENCE = """
args:
  latent_channels: 16
  mode: inference
  load: "{your CogVideoX SAT folder}/transformer"
  batch_size: 1
  input_type: txt
  input_file: prompts.txt
  sampling_image_size: [768, 1360]
  sampling_num_frames: 22
  sampling_fps: 16
  bf16: True
  output_dir: outputs
  force_inference: True
"""


def write_sampling_stack(name: str = "1.5_5b", *, lora: bool = False) -> list[str]:
    """Writes a model's file, inference.yaml and a file of prompts into the working folder."""
    Path("model.yaml").write_text(yaml.safe_dump(model_file(name, lora)))
    Path("inference.yaml").write_text(INFERENCE)
    Path("prompts.txt").write_text("a clip.\nanother clip.\n")
    return ["model.yaml", "inference.yaml"]
