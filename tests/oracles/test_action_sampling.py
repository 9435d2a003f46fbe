"""Sampling with robot actions against diffusers' `Cosmos3OmniPipeline`: same noise, same latents, same actions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import Cosmos3OmniPipeline, Cosmos3OmniTransformer
from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import CosmosActionCondition
from PIL import Image
from sampling import beginning
from torch import Tensor
from torch.nn import functional as F

from worldsmith.assets import asset_path
from worldsmith.checkpoint.formats.export_folder import ExportSource
from worldsmith.cli.main import main
from worldsmith.data.clips.video_sample import RobotActions
from worldsmith.families.cosmos3.model import Cosmos3Defaults, Cosmos3Generator, seeded_noise
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.families.cosmos3.weights.diffusers_keys import native_to_diffusers
from worldsmith.families.cosmos3.weights.formats import export_pipeline
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.sampling import write_media
from worldsmith.sampling.generate_videos import GeneratedActions, generate_actions, generate_latents
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.sampling.sample_files import read_condition
from worldsmith.sampling.write_media import write_mp4

STEPS, SHIFT, FPS, ROWS = 6, 5.0, 10.0, 8
UMI, WIDTH = 6, 10
"""Embodiment domain "umi", with actions of 10 channels."""
HEIGHT, CONTENT_WIDTH = 64, 96
CANVAS = 192, 320
"""Height and width of the frames on their canvas at tier 256; the content is the upper left part of it."""
MODES = {"forward_dynamics": (1, ROWS), "inverse_dynamics": (3, 0), "policy": (1, 0)}
"""Number of clean latent frames and of clean rows."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cosmos3Generator, Any, Path]:
    network = NetworkConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, mrope_section=[6, 5, 5], action_gen=True, max_action_dim=12,
        num_embodiment_domains=9,
    )  # fmt: skip
    config = Cosmos3Generator.Config(
        precision="float32", network=network,
        tokenizer=WanVAE.Config(vae_path=str(asset_path("tiny_vae")), precision="float32"),
        text_tokenizer=TextTokenizer.Config(path=str(asset_path("tiny_tokenizer"))),
    )  # fmt: skip
    generator = Cosmos3Generator(config, seed=0, defaults=Cosmos3Defaults(shift=SHIFT, steps=STEPS, guidance=1.0))
    stream = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in generator.network.named_parameters():
            heads = name.split(".")[0] in ("action2llm", "llm2action")
            parameter.normal_(0, 0.15 if heads else parameter.shape[-1] ** -0.5, generator=stream)
            if parameter.ndim == 1:
                parameter.add_(0.7)
    folder = tmp_path_factory.mktemp("export") / "pipeline"
    assert export_pipeline(generator, folder, dtype="float32")
    pipeline = Cosmos3OmniPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return generator, pipeline, folder


def clip(seed: int = 1) -> Tensor:
    """Nine random frames, uint8 [3, T, H, W]."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, ROWS + 1, HEIGHT, CONTENT_WIDTH), dtype=torch.uint8, generator=stream)


def canvas(video: Tensor) -> Tensor:
    """The frames on their canvas; a pad that is larger than the content repeats the last pixels."""
    pads = 0, CANVAS[1] - CONTENT_WIDTH, 0, CANVAS[0] - HEIGHT
    return F.pad(video.transpose(0, 1).float(), pads, mode="replicate").transpose(0, 1).to(torch.uint8)


def make_request(pipeline: Any, mode: str, *, prompt: str = "push the block", **fields: Any) -> GenerationRequest:
    frames, clean_rows = MODES[mode]
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(4))
    text = pipeline._build_action_json_prompt(
        prompt, view_point="wrist_view", num_frames=ROWS + 1, fps=FPS, height=CANVAS[0], width=CANVAS[1]
    )
    given = clip() if mode == "inverse_dynamics" else clip()[:, :1]
    return GenerationRequest(
        prompt=text, negative_prompt="", height=HEIGHT, width=CONTENT_WIDTH, num_frames=ROWS + 1, fps=FPS, seed=3,
        condition=canvas(given), condition_frames=frames,
        actions=RobotActions(rows, clean_rows, offset=1, domain=UMI, fps=FPS), **fields,
    )  # fmt: skip


def start_of(generator: Cosmos3Generator, request: GenerationRequest) -> tuple[Tensor, Tensor]:
    """The noise with what is given: latents, and rows padded to the channels of the network."""
    state = beginning(generator, request).state
    latents, rows = state[: 48 * 3 * 4 * 6].view(48, 3, 4, 6), state[48 * 3 * 4 * 6 :].view(ROWS, WIDTH)
    return latents.clone(), F.pad(rows, (0, 2))


def pipeline_result(
    generator: Cosmos3Generator, pipeline: Any, request: GenerationRequest, mode: str, guidance: float,
    prompt: str = "push the block", frames: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What the pipeline makes of the same noise; it encodes and crops the frames itself."""
    latents, rows = start_of(generator, request)
    frames = list((clip() if frames is None else frames).permute(1, 2, 3, 0).numpy() / 255.0)
    action = CosmosActionCondition(
        mode=mode, chunk_size=ROWS, domain_name="umi", resolution_tier=256, view_point="wrist_view",
        raw_actions=request.actions.rows if mode == "forward_dynamics" else None, video=frames,
    )  # fmt: skip
    found = pipeline(
        prompt=prompt, negative_prompt="", fps=FPS, num_inference_steps=STEPS, guidance_scale=guidance, action=action,
        latents=latents[None], action_latents=rows, output_type="latent",
    )  # fmt: skip
    return found.video[0], None if found.action is None else found.action[0]


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_equals_the_pipeline(exported, mode: str, guidance: float) -> None:
    generator, pipeline, _ = exported
    request = make_request(pipeline, mode)
    ours = generate_actions(generator, [request], guidance=guidance)[0]
    latents, rows = pipeline_result(generator, pipeline, request, mode, guidance)
    assert (ours.latents - latents).abs().max() < 1e-4
    clean_frames, clean_rows = MODES[mode]
    start_latents, _ = start_of(generator, request)
    assert torch.equal(ours.latents[:, :clean_frames], start_latents[:, :clean_frames])
    assert torch.equal(ours.rows[:clean_rows], request.actions.rows[:clean_rows])
    if rows is not None:
        assert rows.abs().mean() > 0.1
        assert (ours.rows - rows).abs().max() < 1e-4
    else:
        assert clean_rows == ROWS


def test_the_encoded_frames_are_those_of_the_pipeline(exported) -> None:
    generator, pipeline, _ = exported
    latents, _ = start_of(generator, make_request(pipeline, "inverse_dynamics"))
    action = CosmosActionCondition(
        mode="inverse_dynamics", chunk_size=ROWS, domain_name="umi", resolution_tier=256,
        video=list(clip().permute(1, 2, 3, 0).numpy() / 255.0),
    )  # fmt: skip
    theirs = pipeline.prepare_latents(action=action, device="cpu", dtype=torch.float32)[0][0]
    assert theirs.shape == (48, 3, 4, 6)
    assert (latents - theirs).abs().max() < 1e-3
    assert (latents[:, 0] - theirs[:, 0]).abs().max() < 2e-5


def test_modes_packed_together_equal_themselves_alone(exported) -> None:
    generator, pipeline, _ = exported
    requests = [make_request(pipeline, mode) for mode in MODES]
    together = generate_actions(generator, requests, guidance=3.0)
    for request, found in zip(requests, together, strict=True):
        alone = generate_actions(generator, [request], guidance=3.0, max_tokens=1)[0]
        assert (found.latents - alone.latents).abs().max() < 1e-4
        assert (found.rows - alone.rows).abs().max() < 1e-4


def test_a_state_row_is_kept(exported) -> None:
    generator, pipeline, _ = exported
    request = make_request(pipeline, "policy")
    rows = torch.full((ROWS + 1, WIDTH), 0.5)
    with_state = replace(request, actions=RobotActions(rows, 1, offset=0, domain=UMI, fps=FPS))
    found = generate_actions(generator, [with_state])[0]
    assert torch.equal(found.rows[0], rows[0])
    other = replace(with_state, actions=replace(with_state.actions, rows=rows + 1))
    again = generate_actions(generator, [other])[0]
    assert (found.rows[1:] - again.rows[1:]).abs().max() > 1e-3, "only the state differs, since the rest is noise"
    ignored = rows.clone()
    ignored[1:] = 9.0
    same = generate_actions(generator, [replace(with_state, actions=replace(with_state.actions, rows=ignored))])[0]
    assert torch.equal(same.rows, found.rows)


def test_latents_of_a_request_with_actions_are_those_of_its_sample(exported) -> None:
    generator, pipeline, _ = exported
    request = make_request(pipeline, "policy")
    found = generate_actions(generator, [request])[0]
    assert isinstance(found, GeneratedActions)
    assert torch.equal(generate_latents(generator, [request])[0], found.latents)
    assert generator.decode(found.latents).shape == (3, ROWS + 1, HEIGHT, CONTENT_WIDTH)
    assert not torch.equal(seeded_noise(3, (4,)), seeded_noise(3, (4,), stream=(20,)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"condition": clip()[:, :1, :32], "condition_frames": 1}, "must be as large or larger"),
        ({"condition": canvas(clip()), "condition_frames": 3, "clean": ROWS}, "leave no frame to generate"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(exported, changes: dict[str, Any], words: str) -> None:
    generator, pipeline, _ = exported
    request = make_request(pipeline, "policy")
    actions = replace(request.actions, clean_rows=changes.pop("clean", 0))
    with pytest.raises(ValueError, match=words):
        generate_actions(generator, [replace(request, actions=actions, **changes)])


def test_a_request_without_actions_is_refused(exported) -> None:
    generator, pipeline, _ = exported
    plain = replace(make_request(pipeline, "policy"), actions=None)
    with pytest.raises(ValueError, match="without robot actions"):
        generate_actions(generator, [plain])


def test_the_exported_transformer_keeps_the_action_heads(exported) -> None:
    generator, _, folder = exported
    transformer = Cosmos3OmniTransformer.from_pretrained(folder / "transformer")
    assert transformer.config.action_gen
    assert transformer.config.action_dim == 12
    assert transformer.config.num_embodiment_domains == 9
    stored = transformer.state_dict()
    names = [name for name in generator.network.state_dict() if "action" in name]
    assert len(names) == 5
    for name in names:
        assert torch.equal(stored[native_to_diffusers(name)], generator.network.state_dict()[name])


LOW, HIGH = np.linspace(-2, -1, WIDTH), np.linspace(1, 3, WIDTH)
"""Range of the channels in physical units, which the tested run normalizes to [-1, 1]."""


def robot_data() -> dict[str, Any]:
    """What a run on robot episodes stores of its robot; the text of `values` states no idle rows, as the pipeline's."""
    robot = {
        "embodiment": "umi", "cameras": ["image"], "viewpoint": "wrist_view", "actions": ["values action"],
        "normalization": "quantile", "statistics": "statistics.json",
    }  # fmt: skip
    modes = {"wam": 1.0, "forward_dynamics": 1.0, "inverse_dynamics": 1.0}
    return {
        "dataset": {"robot": robot, "resolution": "256", "steps": ROWS, "modes": modes, "prompt": "json"},
        "fps": FPS,
        "columns": {"action": WIDTH},
        "views": [["image"]],
        "sizes": {"image": [CONTENT_WIDTH, HEIGHT]},
        "statistics": {"q01": LOW.tolist(), "q99": HIGH.tolist()},
    }


@pytest.mark.parametrize("has_robot", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_command_equals_the_pipeline_in_each_mode(exported, has_robot: bool, tmp_path: Path, monkeypatch) -> None:
    """`worldsmith generate`: actions in physical units and frames; without a robot, the units are the network's."""
    generator, pipeline, folder = exported
    if has_robot:
        folder = tmp_path / "model"
        export_pipeline(generator, folder, dtype="float32", source=ExportSource(robots={"": robot_data()}))
    Image.fromarray(clip()[:, 0].permute(1, 2, 0).numpy()).save(tmp_path / "frame.png")
    write_mp4(tmp_path / "clip.mp4", clip(), FPS)
    scale, offset = ((HIGH - LOW) / 2, (HIGH + LOW) / 2) if has_robot else (1.0, 0.0)
    given = make_request(pipeline, "forward_dynamics").actions.rows
    settings = {} if has_robot else {
        "domain_name": "umi", "resolution": 256, "action_chunk_size": ROWS, "fps": FPS, "view_point": "wrist_view",
    }  # fmt: skip
    names = {"forward_dynamics": "forward_dynamics", "inverse_dynamics": "inverse_dynamics", "policy": "wam"}
    samples = [
        {"name": mode, "model_mode": own, "prompt": "push the block", "seed": 3, "vision_path": "frame.png", **settings}
        for mode, own in names.items()
    ]
    samples[0]["actions"] = (given.double().numpy() * scale + offset).tolist()
    samples[1]["vision_path"] = "clip.mp4"
    (tmp_path / "samples.json").write_text(json.dumps(samples))
    written: dict[str, Tensor] = {}
    monkeypatch.setattr(write_media, "write_mp4", lambda path, video, fps: write_whole(path, video, fps, written))
    out = tmp_path / "out"
    assert main(["generate", str(folder), "-i", str(tmp_path / "samples.json"), "-o", str(out)]) == 0
    for mode in MODES:
        frames = read_condition(str(tmp_path / "clip.mp4"), ROWS + 1) if mode == "inverse_dynamics" else clip()[:, :1]
        request = replace(make_request(pipeline, mode), condition=canvas(frames))
        latents, rows = pipeline_result(generator, pipeline, request, mode, 1.0, frames=frames)
        found = json.loads((out / mode / "actions.json").read_text())
        expected = given if rows is None else rows
        assert np.abs(np.array(found["actions"]) - (expected.numpy() * scale + offset)).max() < 3e-4, mode
        assert (written[mode].int() - generator.decode(latents).int()).abs().max() <= 1, mode
        assert found["fps"] == FPS


def write_whole(path: Path, video: Tensor, fps: float, written: dict[str, Tensor]) -> None:
    """Writes an MP4 file, and keeps its frames, which the file stores with a loss."""
    written[path.parent.name] = video
    write_mp4(path, video, fps)
