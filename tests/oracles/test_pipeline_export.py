"""An exported folder in diffusers' `Cosmos3OmniPipeline`: same noise, same prompt, same schedule, same latents."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Cosmos3OmniPipeline
from sampling import beginning

from worldsmith.assets import asset_path
from worldsmith.checkpoint.formats.export_folder import ExportSource
from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.families.cosmos3.model import Cosmos3Defaults, Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.families.cosmos3.weights.formats import export_pipeline
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.sampling.generate_videos import generate, generate_latents
from worldsmith.sampling.requests import GenerationRequest, conditional_text, unconditional_text
from worldsmith.sampling.sample_files import read_condition
from worldsmith.sampling.write_media import write_mp4

STEPS, GUIDANCE, SHIFT = 7, 3.0, 5.0
DEFAULTS = Cosmos3Defaults(height=64, width=96, num_frames=9, fps=8.0, shift=SHIFT, steps=STEPS, guidance=GUIDANCE)
REQUEST = GenerationRequest(
    prompt="A red square moves to the left.", height=64, width=96, num_frames=9, fps=8.0, seed=3
)


def make_generator(*, edge_style: bool = False, defaults: Cosmos3Defaults = DEFAULTS) -> Cosmos3Generator:
    """Random weights of ordinary size in every parameter, norms and biases included, and the shipped VAE."""
    network = NetworkConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, mrope_section=[6, 5, 5],
    )  # fmt: skip
    if edge_style:
        network.hidden_act, network.rms_norm_eps, network.rope_theta = "relu2", 1e-5, 1e8
        network.qk_norm_for_text, network.use_und_k_norm_for_gen = False, True
    config = Cosmos3Generator.Config(
        precision="float32",
        network=network,
        tokenizer=WanVAE.Config(vae_path=str(asset_path("tiny_vae")), precision="float32"),
        text_tokenizer=TextTokenizer.Config(path=str(asset_path("tiny_tokenizer"))),
    )
    generator = Cosmos3Generator(config, seed=0, defaults=defaults)
    stream = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in generator.network.parameters():
            parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=stream)
            if parameter.ndim == 1:
                parameter.add_(0.7)
    return generator


def pipeline_latents(pipeline: Any, request: GenerationRequest, start: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """The pipeline's final latents from the given start, prompts taken as they are."""
    pipeline.set_progress_bar_config(disable=True)
    result = pipeline(
        **{"prompt": request.prompt, "negative_prompt": "", **arguments},
        height=request.height,
        width=request.width,
        num_frames=request.num_frames,
        fps=request.fps,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        latents=start[None],
        output_type="latent",
        add_duration_template=False,
        add_resolution_template=False,
    )
    return result.video[0]


@pytest.fixture(scope="module", params=["qwen", "edge"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    generator = make_generator(edge_style=request.param == "edge")
    folder = tmp_path_factory.mktemp("export") / request.param
    assert export_pipeline(generator, folder, dtype="float32")
    return generator, Cosmos3OmniPipeline.from_pretrained(folder), folder


def test_text_to_video_latents_equal_the_pipeline(exported) -> None:
    """T2V with guidance: max abs difference of the final latents below 2e-5."""
    generator, pipeline, _ = exported
    ours = generate_latents(generator, [REQUEST])[0]
    theirs = pipeline_latents(pipeline, REQUEST, beginning(generator, REQUEST).state)
    assert ours.shape == (48, 3, 4, 6)
    assert (ours - theirs).abs().max() < 2e-5
    other = generate_latents(generator, [replace(REQUEST, prompt="A blue triangle.")])[0]
    assert (ours - other).abs().max() > 1e-2  # the comparison would see a wrong prompt


def test_image_to_video_latents_equal_the_pipeline(exported) -> None:
    """I2V: the pipeline encodes the picture itself, resized and cropped, and ends on the same latents."""
    generator, pipeline, _ = exported
    image = torch.randint(0, 256, (3, 90, 169), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    request = replace(REQUEST, condition=image[:, None], condition_frames=1)
    start = beginning(generator, request).state
    ours = generate_latents(generator, [request])[0]
    theirs = pipeline_latents(pipeline, request, start, image=image)
    assert (ours - theirs).abs().max() < 2e-5
    encoded = pipeline.prepare_latents(
        image=image, num_frames=9, height=64, width=96, device="cpu", dtype=torch.float32,
        generator=torch.Generator().manual_seed(0),
    )[0]  # fmt: skip
    assert (start[:, 0] - encoded[0, :, 0]).abs().max() < 2e-5
    assert (ours[:, 0] - encoded[0, :, 0]).abs().max() < 2e-5
    assert (ours - generate_latents(generator, [REQUEST])[0])[:, 1:].abs().max() > 1e-2


def test_video_to_video_latents_equal_the_pipeline(exported) -> None:
    """V2V: two clean latent frames from the clip's first five frames."""
    generator, pipeline, _ = exported
    clip = torch.randint(0, 256, (3, 9, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    request = replace(REQUEST, condition=clip, condition_frames=2)
    ours = generate_latents(generator, [request])[0]
    frames = list(clip.permute(1, 2, 3, 0).numpy() / 255.0)
    theirs = pipeline_latents(pipeline, request, beginning(generator, request).state, video=frames)
    assert (ours - theirs).abs().max() < 2e-5


def test_the_end_of_a_video_as_the_condition_equals_the_pipeline(exported, tmp_path: Path) -> None:
    """condition_video_keep "last": the last five frames of a longer clip, read from its file."""
    generator, pipeline, _ = exported
    clip = torch.randint(0, 256, (3, 12, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    write_mp4(tmp_path / "clip.mp4", clip, 8)
    whole = read_condition(str(tmp_path / "clip.mp4"), 12)
    request = replace(REQUEST, condition=read_condition(str(tmp_path / "clip.mp4"), 5, last=True), condition_frames=2)
    ours = generate_latents(generator, [request])[0]
    arguments = {"video": list(whole.permute(1, 2, 3, 0).numpy() / 255.0), "condition_video_keep": "last"}
    theirs = pipeline_latents(pipeline, request, beginning(generator, request).state, **arguments)
    assert (ours - theirs).abs().max() < 2e-5


def test_a_single_image_equals_the_pipeline(exported) -> None:
    """T2I: one frame, one latent frame."""
    generator, pipeline, _ = exported
    request = replace(REQUEST, num_frames=1)
    ours = generate_latents(generator, [request])[0]
    theirs = pipeline_latents(pipeline, request, beginning(generator, request).state)
    assert ours.shape == (48, 1, 4, 6)
    assert (ours - theirs).abs().max() < 2e-5
    assert generate(generator, [request])[0].shape == (3, 1, 64, 96)


def test_modes_packed_together_equal_the_pipeline_one_by_one(exported) -> None:
    """T2V, I2V, V2V and T2I of other sizes and rates, in one pack and cut into several: to 1e-4 each."""
    generator, pipeline, _ = exported
    clip = torch.randint(0, 256, (3, 9, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    image = clip[:, 0]
    frames = list(clip.permute(1, 2, 3, 0).numpy() / 255.0)
    requests = [
        REQUEST,
        replace(REQUEST, prompt="A blue circle.", seed=4, condition=image[:, None], condition_frames=1),
        replace(REQUEST, seed=5, num_frames=17, fps=24.0, condition=clip, condition_frames=2),
        replace(REQUEST, seed=6, num_frames=1, width=64),
    ]
    given: list[dict[str, Any]] = [{}, {"image": image}, {"video": frames}, {}]
    theirs = [
        pipeline_latents(pipeline, request, beginning(generator, request).state, **arguments)
        for request, arguments in zip(requests, given, strict=True)
    ]
    for max_tokens in (None, 150):
        ours = generate_latents(generator, requests, max_tokens=max_tokens)
        for one, other in zip(ours, theirs, strict=True):
            assert (one - other).abs().max() < 1e-4


@pytest.mark.parametrize("num_frames", [9, 1])
@pytest.mark.parametrize("negative", ["", "blurry.", '{"quality": "blurry"}'])
def test_denied_metadata_of_the_negative_prompt_are_the_pipelines(negative: str, num_frames: int) -> None:
    """negative_metadata "inverse" has the token ids of the pipeline's own templates; "same" those of a prompt."""
    generator = make_generator(defaults=replace(DEFAULTS, append_duration_fps=True, append_resolution=True))
    from worldsmith.families.cosmos3.weights.formats import build_pipeline, exported_weights

    pipeline = build_pipeline(generator, exported_weights(generator, "float32"), "float32")
    tail = [generator.text_tokenizer.eos_id, generator.text_tokenizer.vision_start_id]
    size = {"num_frames": num_frames, "height": 64, "width": 96, "fps": 8.0}
    request = replace(REQUEST, num_frames=num_frames, negative_prompt=negative)
    for mode, ids in (
        ("inverse", pipeline.tokenize_prompt("x", negative, **size)[1]),
        ("same", pipeline.tokenize_prompt(negative, **size)[0]),
    ):
        text = unconditional_text(replace(request, negative_metadata=mode), generator.defaults)
        assert [*generator.tokenize(text), *tail] == ids
    assert unconditional_text(replace(request, negative_metadata="none"), generator.defaults) == negative
    with pytest.raises(ValueError, match="the captions in training had no such sentences"):
        unconditional_text(replace(request, negative_metadata="same"), DEFAULTS)


def test_without_guidance_and_with_a_negative_prompt(exported) -> None:
    """A negative prompt takes the place of the empty caption; guidance 1 needs no second branch."""
    generator, pipeline, _ = exported
    request = replace(REQUEST, negative_prompt="blurry")
    ours = generate_latents(generator, [request])[0]
    theirs = pipeline_latents(pipeline, request, beginning(generator, request).state, negative_prompt="blurry")
    assert (ours - theirs).abs().max() < 2e-5
    assert (ours - generate_latents(generator, [REQUEST])[0]).abs().max() > 1e-2


def test_metadata_sentences_are_the_pipelines_templates() -> None:
    """A plain prompt with both sentences has the token ids of the pipeline's own templates, also for one image."""
    defaults = replace(DEFAULTS, append_duration_fps=True, append_resolution=True)
    generator = make_generator(defaults=defaults)
    from worldsmith.families.cosmos3.weights.formats import build_pipeline, exported_weights

    pipeline = build_pipeline(generator, exported_weights(generator, "float32"), "float32")
    tokenizer = generator.text_tokenizer
    for num_frames in (9, 1):
        ids, _ = pipeline.tokenize_prompt(REQUEST.prompt, num_frames=num_frames, height=64, width=96, fps=8.0)
        text = conditional_text(replace(REQUEST, num_frames=num_frames), defaults)
        assert ids == [*generator.tokenize(text), tokenizer.eos_id, tokenizer.vision_start_id]


def test_bfloat16_export_loads_and_makes_a_video(tmp_path: Path) -> None:
    """bf16 folder: half the size, weights within bf16 rounding, time embedder still float32, and a video comes out."""
    generator = make_generator()
    export_pipeline(generator, tmp_path / "bf16", dtype="bfloat16")
    pipeline = Cosmos3OmniPipeline.from_pretrained(tmp_path / "bf16", torch_dtype=torch.bfloat16)
    assert pipeline.transformer.dtype == torch.bfloat16
    assert pipeline.transformer.time_embedder.linear_1.weight.dtype == torch.float32
    pipeline.set_progress_bar_config(disable=True)
    video = pipeline("A red square.", height=64, width=64, num_frames=5, num_inference_steps=2, output_type="pt").video
    assert torch.isfinite(torch.as_tensor(video).float()).all()
    reloaded = load_model(tmp_path / "bf16")
    for (name, ours), back in zip(generator.network.named_parameters(), reloaded.network.parameters()):
        rounded = ours if name.startswith("time_embedder") else ours.bfloat16().float()
        assert torch.equal(back, rounded), name


def test_an_export_is_a_model_of_ours_again(exported) -> None:
    """load_model on the folder gives the same videos, bit for bit, and keeps what training saw."""
    generator, _, folder = exported
    reloaded = load_model(folder)
    assert reloaded.defaults == generator.defaults
    assert torch.equal(generate(reloaded, [REQUEST])[0], generate(generator, [REQUEST])[0])
    with pytest.raises(ValueError, match="contains only the raw weights"):
        load_model(folder, weights="ema")


def test_a_pipeline_of_another_maker_loads(exported, tmp_path: Path) -> None:
    """Without our manifest the network is read from transformer/config.json, and the published defaults are assumed."""
    generator, _, folder = exported
    shutil.copytree(folder, tmp_path / "plain")
    (tmp_path / "plain" / "worldsmith.json").unlink()
    model = find_model(tmp_path / "plain")
    assert model.config.network == generator.config.network
    small = model.config.network.hidden_act == "relu2"
    size = (480, 832, 121) if small else (720, 1280, 189)
    assert (model.defaults.height, model.defaults.width, model.defaults.num_frames) == size
    assert (model.defaults.shift, model.defaults.image_shift, model.defaults.fps) == (10.0, 3.0, 24.0)
    assert model.defaults.append_duration_fps
    assert model.defaults.append_resolution
    assert model.defaults.structured_metadata
    reloaded = model.load(full_precision=True)
    for ours, back in zip(generator.network.parameters(), reloaded.network.parameters()):
        assert torch.equal(ours, back)


def test_shards_with_an_index_load_alike(tmp_path: Path) -> None:
    """Weights in several files: the pipeline and we read the same tensors from them."""
    generator = make_generator()
    export_pipeline(generator, tmp_path / "sharded", dtype="float32", max_shard_size="400KB")
    files = sorted(p.name for p in (tmp_path / "sharded" / "transformer").iterdir())
    assert sum(name.endswith(".safetensors") for name in files) > 1
    assert "diffusion_pytorch_model.safetensors.index.json" in files
    reloaded = load_model(tmp_path / "sharded")
    for ours, back in zip(generator.network.parameters(), reloaded.network.parameters()):
        assert torch.equal(ours, back)
    Cosmos3OmniPipeline.from_pretrained(tmp_path / "sharded")


def test_exporting_again_is_free_and_replacing_needs_force(tmp_path: Path) -> None:
    """The same export again does nothing; other weights or a damaged folder need force; other files are not touched."""
    generator = make_generator()
    out = tmp_path / "export"
    source = ExportSource(run="demo/a/b", iteration=7, weights="ema")
    assert export_pipeline(generator, out, source=source, dtype="float32")
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    assert not export_pipeline(generator, out, source=source, dtype="float32")
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    manifest = json.loads((out / "worldsmith.json").read_text())
    assert (manifest["source"]["iteration"], manifest["source"]["weights"], manifest["dtype"]) == (7, "ema", "float32")
    code = (out / "README.md").read_text().split("```python\n")[1].split("```")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        exec(code, names := {})  # the card's own lines, as they stand
    assert names["pipeline"].transformer.dtype == torch.float32

    with torch.no_grad():
        next(generator.network.parameters()).add_(1)
    with pytest.raises(FileExistsError, match="another export"):
        export_pipeline(generator, out, source=source, dtype="float32")
    assert export_pipeline(generator, out, source=source, dtype="float32", force=True)
    (out / "vae" / "config.json").unlink()
    with pytest.raises(FileExistsError, match="missing or changed files"):
        export_pipeline(generator, out, source=source, dtype="float32")
    assert export_pipeline(generator, out, source=source, dtype="float32", force=True)
    assert (out / "vae" / "config.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["export"]

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="is not an export"):
        export_pipeline(generator, tmp_path / "mine", dtype="float32", force=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_attention_that_diffusers_lacks_is_not_exported(tmp_path: Path) -> None:
    """A model whose latents see no later frame would give other videos in the pipeline."""
    generator = make_generator()
    config = generator.config
    config.joint_attn_implementation, config.video_temporal_causal = "three_way", True
    with pytest.raises(
        ValueError,
        match=r"only has dense attention.*latents attend only to the same and earlier frames.*--format native",
    ):
        export_pipeline(config.build(device="cpu", seed=0, defaults=DEFAULTS), tmp_path / "out")
    assert not (tmp_path / "out").exists()
