"""SAT's YAML stacks: merging, words over files, names that are looked up, and what becomes of every key."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sat_files import FILLED, write_stack

from worldsmith.config.command_line.typed_flags import TypedFlag
from worldsmith.config.declare.configurable import find
from worldsmith.config.errors import ConfigError
from worldsmith.config.tree.paths import parse_path
from worldsmith.dialects.sat.keys import KEYS, SHIFTS, TEXT
from worldsmith.dialects.sat.recognize import is_sat_stack, split_arguments
from worldsmith.dialects.sat.run import RULES, translate_sat
from worldsmith.dialects.sat.targets import TARGETS
from worldsmith.dialects.translation import SpecTranslation, format_report

LR = "deepspeed.optimizer.params.lr"
NET = "model.network_config.params."


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(*words: str, name: str = "2b", lora: bool = True, more: tuple[str, ...] = ()) -> SpecTranslation:
    """The translation of a model's file and sft.yaml with words, all paths filled in."""
    return translate_sat(write_stack(name, *more, lora=lora), [*FILLED, *words])


def ours(translation: SpecTranslation, path: str) -> Any:
    return find(translation.data, parse_path(path))


def outcomes(translation: SpecTranslation, key: str) -> list[str]:
    return [line.outcome for line in translation.lines if line.key == key]


def mistakes(translation: SpecTranslation) -> dict[str, str]:
    return {problem.path: problem.hint or "" for problem in translation.problems}


def test_every_key_has_one_row() -> None:
    rules = Counter(key for rule in RULES for key in rule.keys)
    assert rules == Counter(KEYS.keys())
    assert {f"{component}target" for component in TARGETS} <= KEYS.keys()


COMPOSITIONS = [
    # file, adapters, layers, heads, channels in, positions, scale, shift, rank, patch in time, refused
    ("2b", True, 30, 30, 16, "sine", 1.15258426, 3.0, 128, None, set()),
    ("2b", False, 30, 30, 16, "sine", 1.15258426, 3.0, None, None, set()),
    ("5b", True, 42, 48, 16, "rotary", 0.7, 1.0, 128, None, set()),
    ("5b", False, 42, 48, 16, "rotary", 0.7, 1.0, None, None, set()),
    ("5b_i2v", True, 42, 48, 32, "learned", 0.7, 1.0, 256, None, set()),
    ("5b_i2v", False, 42, 48, 32, "learned", 0.7, 1.0, None, None, set()),
    ("1.5_5b", False, 42, 48, 16, "rotary", 0.7, 1.0, None, 2, set()),
    ("1.5_5b_i2v", False, 42, 48, 32, "rotary", 0.7, 1.0, None, 2, set()),
]
TRAINED = {("2b", True): 58_982_400, ("5b", True): 132_120_576, ("5b_i2v", True): 264_241_152}


@pytest.mark.parametrize("row", COMPOSITIONS, ids=lambda row: f"{row[0]}{'_lora' if row[1] else ''}")
def test_the_published_stacks_give_their_table(row: tuple[Any, ...]) -> None:
    name, lora, layers, heads, channels, positions, scale, shift, rank, patch, refused = row
    t = read(name=name, lora=lora)
    network = ours(t, "model.config.network")
    assert (network["num_layers"], network["num_attention_heads"], network["attention_head_dim"]) == (layers, heads, 64)
    assert (network["in_channels"], network["out_channels"], network.get("patch_size_t")) == (channels, 16, patch)
    assert network["use_rotary_positional_embeddings"] is (positions != "sine")
    assert network.get("use_learned_positional_embeddings", False) is (positions == "learned")
    assert network.get("spatial_interpolation_scale") == (1.875 if positions == "sine" else None)
    assert (ours(t, "model.config.tokenizer.scaling_factor"), ours(t, "objective.shift_scale")) == (scale, shift)
    assert (ours(t, "model.config.lora_enabled"), ours(t, "model.config.lora_rank")) == (lora, rank)
    assert ours(t, "model.config.lora_alpha") == (1 if lora else None)
    assert mistakes(t).keys() == refused
    image = {"noise": True, "dropout": 0.05, "repeat": False} if channels == 32 else None
    assert ours(t, "model.config").get("image") == image
    assert any("SAT never fine-tuned" in text for text in t.get_warnings()) is bool(patch)
    if lora:
        assert f": {TRAINED[name, lora]} trained parameters" in format_report(t)
        assert any("1e-05; usual values are 5e-05 to 0.002 with adapters" in text for text in t.get_warnings())
        assert any(f"have the scale 1/{rank}" in text for text in t.get_warnings())
    assert any("trained in float16" in text for text in t.get_warnings()) is (name == "2b")
    assert any("49 frames, but the model was trained with 81" in text for text in t.get_warnings()) is bool(patch)


def test_latents_that_no_data_set_holds_are_encoded_clips() -> None:
    """SAT would take a data set's pixels for latents."""
    t = read("model.latent_input=true")
    assert outcomes(t, "model.latent_input") == ["approximated"]
    assert any("videos are encoded and cached" in text for text in t.get_warnings())
    assert outcomes(read(), "model.latent_input") == ["kept"]


def test_what_all_published_stacks_have_in_common() -> None:
    t = read()
    expected = {
        "trainer.max_iter": 1000,
        "trainer.grad_accum_iter": 1,
        "trainer.logging_iter": 20,
        "trainer.validation_iter": 100,
        "trainer.run_validation": True,
        "trainer.seed": 1234,
        "trainer.callbacks.grad_clip.clip_norm": 0.1,
        "dataloader_train.max_samples_per_batch": 2,
        "dataloader_train.num_workers": 8,
        "dataloader_train.dataset.num_video_frames": 49,
        "dataloader_train.dataset.resolution": "720x480",
        "dataloader_train.dataset.temporal_interval_mode": "sat",
        "dataloader_train.dataset.target_fps": 8.0,
        "dataloader_train.dataset.skip_frames": 3,
        "dataloader_train.dataset.cfg_dropout_rate": 0.1,
        "dataloader_train.dataset.path": "disney",
        "optimizer.lr": 1e-5,
        "optimizer.betas": [0.9, 0.95],
        "optimizer.eps": 1e-8,
        "optimizer.weight_decay": 1e-4,
        "optimizer.decay_vectors": False,
        "checkpoint.save_iter": 500,
        "checkpoint.load_path": "zai-org/CogVideoX-2b",
        "model.config.precision": "bfloat16",
        "model.config.ema.enabled": True,
        "model.config.ema.max_decay": 0.9999,
        "model.config.activation_checkpointing.mode": "full",
        "model.config.text_encoder.dropped_captions": "zeros",
        "model.config.text_encoder.path": "google/t5-v1_1-xxl",
    }
    assert {path: ours(t, path) for path in expected} == expected
    assert t.get("args.split") == "1,0,0"


def test_the_learning_rate_is_that_of_sat_in_every_step() -> None:
    from worldsmith.training.scheduler import LambdaLinear, multiplier

    found = dict(ours(read(), "scheduler"))
    assert found.pop("type") == "LambdaLinear"
    config = LambdaLinear.Config(**found)
    config.check()
    factors = {step: multiplier(config, step - 1) for step in range(1, 1001)}
    assert all(factors[step] == pytest.approx(0.05) for step in range(1, 101))
    assert all(factors[step] == pytest.approx((1000 - (step - 10)) / 1000) for step in range(101, 1001))
    assert [factors[step] for step in (101, 200, 500, 1000)] == pytest.approx([0.909, 0.81, 0.51, 0.01])


REFUSED = [
    (
        ["model.network_config.params.transformer_args.model_parallel_size=2"],
        f"{NET}transformer_args.model_parallel_size",
    ),
    (["args.model_parallel_size=2"], "args.model_parallel_size"),
    (["model.first_stage_config.params.cp_size=2"], "model.first_stage_config.params.cp_size"),
    ([f"{NET}transformer_args.layernorm_order=sandwich"], f"{NET}transformer_args.layernorm_order"),
    ([f"{NET}num_classes=10"], f"{NET}num_classes"),
    ([f"{NET}use_SwiGLU=true"], f"{NET}use_SwiGLU"),
    ([f"{NET}use_RMSNorm=true"], f"{NET}use_RMSNorm"),
    ([f"{NET}modules.lora_config.params.qlora=true"], f"{NET}modules.lora_config.params.qlora"),
    (["model.lr_scale=0.5"], "model.lr_scale"),
    (["model.use_pd=true"], "model.use_pd"),
    (["deepspeed.fp16.enabled=true", "deepspeed.bf16.enabled=true"], "deepspeed.fp16.enabled"),
    (["args.train_iters=null", "args.epochs=3"], "args.epochs"),
    ([f"{SHIFTS[1]}=1.0"], SHIFTS[0]),
    ([f"{NET}modules.pos_embed_config.params.text_length=224"], f"{NET}modules.pos_embed_config.params.text_length"),
    ([f"~{NET}modules.lora_config"], "model.not_trainable_prefixes"),
    (["model.loss_fn_config.params.type=lpips"], "model.loss_fn_config.params.type"),
    (["model.loss_fn_config.params.fixed_frames=1"], "model.loss_fn_config.params.fixed_frames"),
    ([f"{NET}num_attention_heads=31"], f"{NET}hidden_size"),
    ([f"{NET}in_channels=32"], f"{NET}in_channels"),
    (["data.params.video_size=[480,704]"], "data.params.video_size"),
    (["data.params.max_num_frames=48"], "data.params.max_num_frames"),
    (["model.sampler_config.params.num_steps=30"], "model.sampler_config.params.guider_config.params.num_steps"),
    (
        ["model.sampler_config.params.guider_config.params.exp=5.5"],
        "model.sampler_config.params.guider_config.params.exp",
    ),
    (["deepspeed.train_batch_size=7"], "deepspeed.train_batch_size"),
    (["deepspeed.zero_optimization.cpu_offload=true"], "deepspeed.zero_optimization.cpu_offload"),
    (["deepspeed.optimizer.type=Lion"], "deepspeed.optimizer.type"),
    (["args.mode=pretrain"], "args.mode"),
    (["args.train_data=[disney,more]"], "args.train_data"),
    (["args.train_data=[nowhere]"], "args.train_data"),
    (["args.load=nowhere/at/all"], "args.load"),
]


@pytest.mark.parametrize(("size", "key"), [("0", "patch_size"), ("[0,2,2]", "patch_size[0]")])
def test_a_patch_has_at_least_one_cell_also_with_learned_positions(size: str, key: str) -> None:
    t = read(f"{NET}patch_size={size}", f"{NET}modules.pos_embed_config.params.learnable_pos_embed=true")
    assert f"{NET}{key}" in mistakes(t)


@pytest.mark.parametrize(("words", "key"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_be_had_is_a_mistake_with_the_way_out(words: list[str], key: str) -> None:
    t = read(*words)
    assert mistakes(t).keys() == {key}
    assert mistakes(t)[key]
    assert outcomes(t, key) == ["refused"]


@pytest.mark.parametrize(
    ("outcome", "keys"),
    [
        ("unneeded", "overlap_comm contiguous_gradients reduce_scatter reduce_bucket_size load_from_fp32_weights"),
        ("unneeded", "stage3_max_live_parameters sub_group_size allgather_partitions round_robin_gradients"),
        ("approximated", "stage"),
    ],
)
def test_settings_of_zero_are_in_the_report(outcome: str, keys: str) -> None:
    base = "deepspeed.zero_optimization."
    stated = [f"{base}{key}={2 if key == 'stage' else 'true'}" for key in keys.split()]
    t = read(*stated)
    assert {key: outcomes(t, f"{base}{key}") for key in keys.split()} == {key: [outcome] for key in keys.split()}
    assert not t.problems


def test_every_stated_key_is_told_once() -> None:
    for name, lora in (("2b", True), ("1.5_5b_i2v", False)):
        t = read("args.distributed_backend=nccl", "args.local_rank=0", name=name, lora=lora)
        told = Counter(line.key for line in t.lines if line.stated)
        assert told == Counter(key for key in KEYS if t.is_stated(key))
    dead = {line.key for line in t.lines if line.outcome == "dead"}
    roots = {f"deepspeed.{name}" for name in ("loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale")}
    assert dead == roots | {"model.augmentation_dropout", "model.denoiser_config.params.weighting_config.target"}


def test_adapters_at_the_place_of_the_readme_are_told() -> None:
    t = read("model.lora_config={target: sat.model.finetune.lora2.LoraMixin, params: {r: 128}}", lora=False)
    assert outcomes(t, "model.lora_config") == ["dead"]
    assert any(f"only at {NET}modules.lora_config;" in text for text in t.get_warnings())


def test_zero_of_every_stage_has_its_degrees() -> None:
    base = "deepspeed.zero_optimization.stage"
    degrees = "model.config.parallelism.data_parallel_"
    none = read(f"{base}=0")
    assert (ours(none, f"{degrees}shard_degree"), ours(none, f"{degrees}replicate_degree")) == (1, -1)
    assert outcomes(none, base) == outcomes(read(f"{base}=3"), base) == ["renamed"]
    whole = read("deepspeed.train_batch_size=16")
    assert ours(whole, f"{degrees}shard_degree") == 8


def test_the_command_line_wins() -> None:
    t = read("args.train_iters=500", f"{LR}=1e-3", more=("args: {train_iters: 700}\n",))
    assert (ours(t, "trainer.max_iter"), ours(t, "optimizer.lr")) == (500, 1e-3)
    assert ours(read(more=("args: {train_iters: 700}\n",)), "trainer.max_iter") == 700


def test_a_twin_of_a_deepspeed_key_has_no_effect() -> None:
    t = read("args.lr=1e-3", "args.batch_size=4")
    assert outcomes(t, "args.lr") == outcomes(t, "args.batch_size") == ["dead"]
    assert (ours(t, "optimizer.lr"), ours(t, "dataloader_train.max_samples_per_batch")) == (1e-5, 2)


def test_references_to_other_keys_are_followed() -> None:
    t = read(more=("args: {save_interval: '${args.train_iters}'}\n",))
    assert ours(t, "checkpoint.save_iter") == 1000
    assert mistakes(read(more=("args: {seed: '${args.nowhere}'}\n",))).keys() == {"args.seed"}


@pytest.mark.parametrize(
    ("text", "path", "advice"),
    [
        ("args: {resume: auto}", "args.resume", "args accepts"),
        ("args: {train_iter: 5}", "args.train_iter", "did you mean 'args.train_iters'?"),
        ("arg: {train_iters: 5}", "arg", "did you mean 'args'?"),
        ("model: {scale_facter: 1}", "model.scale_facter", "did you mean 'model.scale_factor'?"),
        ("deepspeed: {optimizer: {params: {beta: 1}}}", "deepspeed.optimizer.params.beta", "betas'?"),
        ("data: {target: data_video.SFTDatset}", "data.target", "did you mean 'data_video.SFTDataset'?"),
        ("data: {target: os.system}", "data.target", "expected data_video.SFTDataset"),
        ("args: {train_iters: many}", "args.train_iters", ""),
        ("args: {seed: 0}", "args.seed", ""),
        ("args: {train_data: {a: 1}}", "args.train_data", ""),
        ("model: {conditioner_config: {params: {emb_models: {a: 1}}}}", TEXT.removesuffix("[0]."), ""),
        ("args: {load: '{folder}/transformer'}", "args.load", "args.load=PATH"),
    ],
)
def test_a_slip_is_a_mistake_with_what_was_meant(text: str, path: str, advice: str) -> None:
    t = translate_sat(write_stack("2b", text + "\n"))
    found = mistakes(t)
    assert advice in found[path]
    place = next(problem.place for problem in t.problems if problem.path == path)
    assert place is not None
    assert (place.file, place.line) == ("0.yaml", 1)


def test_a_component_without_its_name_or_size_is_a_mistake() -> None:
    adapters, loss = f"{NET}modules.lora_config", "model.first_stage_config.params.loss_config.target"
    assert mistakes(read(f"{adapters}.target=null", f"{loss}=null")).keys() == {f"{adapters}.target", loss}
    assert mistakes(read(f"~{NET}num_layers")).keys() == {f"{NET}num_layers"}
    assert mistakes(read("deepspeed=null")).keys() == {"deepspeed"}


INERT = {
    "deepspeed": "steps_per_print wall_clock_breakdown zero_allow_untested_optimizer"
    " activation_checkpointing.partition_activations activation_checkpointing.contiguous_memory_optimization"
    " activation_checkpointing.cpu_checkpointing fp16.hysteresis fp16.min_loss_scale",
    NET.rstrip("."): "adm_in_channels transformer_args.vocab_size transformer_args.max_sequence_length"
    " transformer_args.skip_init transformer_args.is_decoder",
    "model": "disable_first_stage_autocast log_keys denoiser_config.params.quantize_c_noise"
    " sampler_config.params.verbose first_stage_config.params.ignore_keys"
    " first_stage_config.params.encoder_config.params.resolution"
    " first_stage_config.params.decoder_config.params.gather_norm",
    "args": "log_image distributed_backend local_rank device block_size no_load_rng",
}


def test_keys_without_a_meaning_here_are_told_and_change_nothing() -> None:
    keys = [f"{section}.{key}" for section, names in INERT.items() for key in names.split()]
    stated = [f"{key}={'[loss]' if key.endswith('keys') else 1 if 'resolution' in key else 'true'}" for key in keys]
    t = read(*stated)
    assert {key: outcomes(t, key) for key in keys} == {key: ["unneeded"] for key in keys}
    assert (t.data, t.problems) == (read().data, [])


PASSES = [((), 15), (("deepspeed.gradient_accumulation_steps=3",), 5), (("deepspeed.train_batch_size=8",), 3)]


@pytest.mark.parametrize(("words", "steps"), PASSES)
def test_passes_over_the_data_become_steps(words: tuple[str, ...], steps: int) -> None:
    """Three passes over ten clips, two on each process."""
    Path("disney").mkdir(exist_ok=True)
    records = [{"uuid": f"{n}", "vision_path": f"{n}.mp4", "t2w_windows": [{}] * n} for n in (1, 4, 5)]
    Path("disney/video_dataset_file.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    t = read("args.train_iters=null", "args.epochs=3", *words)
    assert (ours(t, "trainer.max_iter"), t.problems) == (steps, [])
    (told,) = [line for line in t.get_warnings() if "10 clips" in line]
    assert ("on one process" in told) is ("deepspeed.train_batch_size=8" not in words)
    assert mistakes(read("args.epochs=3")).keys() == {"args.epochs"}, "train_iters says it too"


def test_the_loss_is_that_of_the_stack() -> None:
    loss = "model.loss_fn_config.params."
    t = read(f"{loss}type=l1", f"{loss}min_snr_value=5")
    assert [ours(t, f"objective.{name}") for name in ("loss_type", "max_weight")] == ["l1", 5.0]
    assert [ours(read(), f"objective.{name}") for name in ("loss_type", "max_weight")] == ["l2", None]


HALF = ["deepspeed.bf16.enabled=false", "deepspeed.fp16.enabled=true"]


def test_float16_takes_the_scale_that_deepspeed_would_have() -> None:
    """By its own defaults where nothing is said; what has no equivalent is told."""
    fp16 = "deepspeed.fp16."
    t = read(*HALF)
    assert (ours(t, "model.config.precision"), t.problems) == ("float16", [])
    assert ours(t, "trainer.loss_scale") == {"init_scale": 65536.0, "growth_interval": 1000}
    assert {key: outcomes(t, fp16 + key) for key in ("enabled", "hysteresis", "min_loss_scale")} == {
        "enabled": ["renamed"], "hysteresis": ["approximated"], "min_loss_scale": ["approximated"],
    }  # fmt: skip
    t = read(*HALF, f"{fp16}initial_scale_power=8", f"{fp16}loss_scale_window=400")
    assert ours(t, "trainer.loss_scale") == {"init_scale": 256.0, "growth_interval": 400}
    t = read(*HALF, f"{fp16}loss_scale=128")
    assert ours(t, "trainer.loss_scale") == {"init_scale": 128.0, "growth_interval": None}
    assert outcomes(t, f"{fp16}initial_scale_power") == ["unneeded"]
    assert ours(read(), "trainer.loss_scale") is None


def test_a_number_format_that_a_model_was_not_made_with_is_warned_of() -> None:
    told = "was trained in"
    assert not [line for line in read(*HALF).get_warnings() if told in line]
    assert [line for line in read().get_warnings() if f"CogVideoX-2B {told} float16" in line]
    assert [line for line in read(*HALF, name="5b").get_warnings() if f"CogVideoX-5B {told} bfloat16" in line]
    assert not [line for line in read(name="5b").get_warnings() if told in line]


def test_a_folder_for_sat_is_imported_first() -> None:
    Path("disney/labels").mkdir(parents=True)
    assert mistakes(read()) == {"args.train_data": "worldsmith dataset import disney -o DIR, and args.train_data=[DIR]"}


def test_placeholders_and_missing_files_are_found_before_anything_is_built() -> None:
    found = mistakes(translate_sat(write_stack()))
    encoder = "model.conditioner_config.params.emb_models[0].params.model_dir"
    assert found.keys() == {"args.load", "model.first_stage_config.params.ckpt_path", encoder}


def test_weights_of_sat_are_read_where_they_are() -> None:
    Path("transformer").mkdir()
    Path("transformer/latest").write_text("1000")
    Path("3d-vae.pt").touch()
    t = read("args.load=transformer", "model.first_stage_config.params.ckpt_path=3d-vae.pt")
    assert ours(t, "checkpoint.load_path") == "transformer"
    assert ours(t, "model.config.tokenizer.vae_path") == "3d-vae.pt"
    assert ours(t, "model.config.tokenizer.scaling_factor") == 1.15258426
    assert mistakes(t) == {}


def test_a_word_for_an_item_that_a_list_has_not_is_a_mistake() -> None:
    path = "model.conditioner_config.params.emb_models[1].ucg_rate"
    assert mistakes(read("model.conditioner_config.params.emb_models.1.ucg_rate=0")).keys() == {path}


def test_a_stack_is_known_by_its_keys() -> None:
    files = write_stack("2b", "recipe: moving_shapes\n")
    assert all(map(is_sat_stack, (files[:2], files[:1], files[1:2])))
    assert not any(map(is_sat_stack, (["0.yaml"], ["nowhere.yaml"], ["a.toml"])))


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", None])
def test_a_file_that_cannot_be_read_is_named(text: str | None) -> None:
    files = write_stack("2b", *([] if text is None else [text]))
    broken = "0.yaml" if text else "nowhere.yaml"
    assert is_sat_stack([*files[:2], broken])
    with pytest.raises(ConfigError, match=broken):
        translate_sat([*files[:2], broken])


def test_words_and_flags_after_the_files_are_sat_s() -> None:
    files = write_stack()
    flags = [TypedFlag("seed", ("7", "args.train_iters=500")), TypedFlag("wandb"), TypedFlag("optimizer.lr", ("1e-3",))]
    found = split_arguments([*files, "args.save_interval=5"], flags)
    words = ["args.save_interval=5", "args.train_iters=500", "args.seed=7", "args.wandb=true"]
    assert found == (files, words, [TypedFlag("optimizer.lr", ("1e-3",))])
    assert split_arguments(["ours.yaml"], flags) == (["ours.yaml"], [], flags)


def test_a_model_is_sampled_as_the_stack_says() -> None:
    guider, base = "model.sampler_config.params.guider_config.", "sgm.modules.diffusionmodules."
    shipped = read()
    assert ours(shipped, "model.config.sampling") == {
        "scheduler": "dpm", "steps": 50, "guidance": 6.0, "dynamic_guidance": "by_timestep", "guidance_exponent": 5
    }  # fmt: skip
    t = read(f"model.sampler_config.target={base}sampling.VideoDDIMSampler", f"{guider}target={base}guiders.VanillaCFG",
             f"{guider}params.scale=4", "model.sampler_config.params.num_steps=30")  # fmt: skip
    assert ours(t, "model.config.sampling") == {
        "scheduler": "ddim", "steps": 30, "guidance": 4.0, "dynamic_guidance": "off"
    }  # fmt: skip
    assert outcomes(t, f"{guider}params.exp") == ["unneeded"]
    assert not t.problems


def test_parts_of_a_stack_may_be_in_an_object_store() -> None:
    words = {
        "model.first_stage_config.params.ckpt_path": "model.config.tokenizer.vae_path",
        "model.conditioner_config.params.emb_models.0.params.model_dir": "model.config.text_encoder.path",
    }
    t = read(*(f"{key}=s3://bucket/part" for key in words))
    assert t.problems == []
    assert {ours(t, path) for path in words.values()} == {"s3://bucket/part"}
