"""From another library's weights through a run to the native export, read back by that library's network."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import tiny_runs
import torch
from native_export import export_native
from safetensors import safe_open
from stored_models import write_tiny_base
from torch import Tensor

from worldsmith.checkpoint.formats.export_folder import ExportSource
from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.cli.main import main
from worldsmith.families.cosmos3.model import Cosmos3Defaults
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.video_model import SampleLayout
from worldsmith.training.trainer import Trainer

LAYOUT = SampleLayout([5, 6, 7, 60], (3, 4, 4), fps=16.0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`qwen`; `full`, a run from it with an average; `lora`, adapters on it, saved alone; `sharded`, an export."""
    folder = tmp_path_factory.mktemp("native")
    world = tiny_runs.make_world(folder / "world", clips=3)
    write_tiny_base(folder / "qwen")
    for name in ("full", "lora"):
        config = tiny_runs.tiny_config(world, steps=2, save_iter=2)
        config.scheduler.warm_up_steps, config.optimizer.lr = [0], 1e-2
        config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(folder / "qwen")
        if name == "lora":
            config.checkpoint.save_weights = "trained"
            model = config.model.config
            model.lora_enabled, model.lora_rank, model.lora_alpha, model.ema.enabled = True, 2, 6, False
        Trainer(config, run_folder=folder / name).train()
    return folder


def read_export(folder: Path) -> dict[str, Tensor]:
    """All tensors of a native export, by the index and safetensors alone."""
    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.exists():
        files = set(json.loads(index.read_text())["weight_map"].values())
    tensors = {}
    for file in files:
        with safe_open(folder / file, framework="pt") as handle:
            tensors |= {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118
    return tensors


def renamed(key: str) -> str:
    """A native name as diffusers has it, by a list of substitutions of its own."""
    key = key.removeprefix("model.net.").replace("language_model.model.", "").replace("language_model.", "")
    key = re.sub(r"^vae2llm", "proj_in", re.sub(r"^llm2vae", "proj_out", key))
    key = key.replace("time_embedder.mlp.0", "time_embedder.linear_1").replace(
        "time_embedder.mlp.2", "time_embedder.linear_2"
    )
    key = re.sub(r"self_attn\.([qkv])_proj_moe_gen", r"self_attn.add_\1_proj", key)
    key = re.sub(r"self_attn\.([qkv])_proj\.", r"self_attn.to_\1.", key)
    key = key.replace("o_proj_moe_gen", "to_add_out").replace("self_attn.o_proj", "self_attn.to_out")
    key = re.sub(r"self_attn\.([qk])_norm_moe_gen", r"self_attn.norm_added_\1", key)
    return re.sub(r"self_attn\.([qk])_norm\.", r"self_attn.norm_\1.", key)


@torch.no_grad()
def velocities(run: Path, tensors: dict[str, Tensor], weights: str = "auto") -> tuple[Tensor, Tensor]:
    """The velocity of one sample: ours from the run, and diffusers' with the tensors of an export."""
    from diffusers import Cosmos3OmniTransformer
    from diffusers.pipelines.cosmos import pipeline_cosmos3_omni as theirs

    generator = find_model(run, weights=weights).load(full_precision=True)
    latent = torch.randn(48, *LAYOUT.latent_shape, generator=torch.Generator().manual_seed(1))
    ours = generator.network(generator.pack([LAYOUT]), [latent], torch.tensor([400.0]))[0]
    transformer = Cosmos3OmniTransformer(
        vocab_size=tiny_runs.VOCAB_SIZE, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_axes_dim=[2, 1, 1], action_gen=False,
        rope_scaling={"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default"},
    )  # fmt: skip
    transformer.load_state_dict({renamed(key): value.float() for key, value in tensors.items()}, strict=True)
    tokenizer = generator.text_tokenizer
    ids = [*LAYOUT.text_ids, tokenizer.eos_id, tokenizer.vision_start_id]
    text, after = theirs.get_3d_mrope_ids_text_tokens(len(ids), 0, use_float_positions=True)
    video, _ = theirs.get_3d_mrope_ids_vae_tokens(3, 2, 2, after + 15000, fps=LAYOUT.fps)
    place = torch.arange(len(ids), len(ids) + 12)
    reference = transformer(
        input_ids=torch.tensor(ids), text_indexes=torch.arange(len(ids)), und_len=len(ids),
        position_ids=torch.cat([text, video.float()], dim=1), sequence_length=len(ids) + 12,
        vision_tokens=[latent[None]], vision_token_shapes=[(3, 2, 2)], vision_sequence_indexes=place,
        vision_mse_loss_indexes=place, vision_timesteps=torch.full((12,), 400.0),
        vision_noisy_frame_indexes=[torch.arange(3)],
    ).sample[0][0]  # fmt: skip
    return ours, reference


def export(runs: Path, run: str, *words: str) -> Path:
    out = runs / "out" / "_".join((run, *(word.strip("-") for word in words)))
    assert main(["export", str(runs / run), "-o", str(out), "--format", "native", "--dtype", "float32", *words]) == 0
    return out


@pytest.mark.parametrize("weights", ["ema", "live"])
def test_diffusers_computes_the_same_with_the_exported_weights(runs: Path, weights: str) -> None:
    """Averaged and live weights of a run, read by an independent reader: velocities equal to 2e-5."""
    tensors = read_export(export(runs, "full", "--weights", weights))
    ours, reference = velocities(runs / "full", tensors, weights)
    assert reference.std() > 0.1
    assert (ours - reference).abs().max() < 2e-5
    other = "live" if weights == "ema" else "ema"
    assert (velocities(runs / "full", tensors, other)[0] - ours).abs().max() > 1e-3


def test_adapters_are_merged_by_the_formula(runs: Path) -> None:
    """W + alpha / rank · B A of the adapters-only checkpoint on the base, and diffusers computes what we do."""
    tensors = read_export(export(runs, "lora"))
    assert not any("lora" in key for key in tensors)
    state = tiny_runs.read_checkpoint(runs / "lora" / "checkpoints" / "iter_000000002")
    with safe_open(runs / "qwen" / "model.safetensors", framework="pt") as base:
        for leaf in "qkvo":
            plain = base.get_tensor(f"model.language_model.layers.0.self_attn.{leaf}_proj.weight")
            name = f"language_model.model.layers.0.self_attn.{leaf}_proj_moe_gen"
            low, high = (state[f"model/net.{name}.lora_{side}.weight"] for side in "AB")
            merged = tensors[f"model.net.{name}.weight"]
            assert torch.allclose(merged, plain + 6 / 2 * high @ low, atol=1e-6)
            assert not torch.equal(merged, plain)
    ours, reference = velocities(runs / "lora", tensors)
    assert (ours - reference).abs().max() < 2e-5


def test_unmerged_adapters_are_kept_and_merge_on_reading(runs: Path) -> None:
    """--no-merge: base and adapters under their names; as a model it equals the run; as pipeline it is refused."""
    out = export(runs, "lora", "--no-merge")
    tensors = read_export(out)
    assert sum(".lora_" in key for key in tensors) == 8
    expected = native_parameters(load_model(runs / "lora").network)
    found = native_parameters(load_model(out).network)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert main(["export", str(runs / "lora"), "--no-merge"]) == 2


def test_an_export_is_a_model_of_ours_again(runs: Path, tmp_path: Path) -> None:
    """Same weights bit for bit, same defaults, its own tokenizer; and a run can start from it; and it can be moved."""
    out = shutil.copytree(export(runs, "full"), tmp_path / "moved")
    model, origin = find_model(out), find_model(runs / "full")
    assert (model.run, model.iteration, model.weights) == (origin.run, 2, "ema")
    assert model.config.text_tokenizer.path == str(out / "text_tokenizer")
    generator = model.load()
    expected = native_parameters(origin.load().network)
    assert all(torch.equal(value, expected[name]) for name, value in native_parameters(generator.network).items())
    assert generator.tokenize("a prompt") == load_model(runs / "full").tokenize("a prompt")
    assert main(["export", str(out), "-o", str(tmp_path / "pipeline"), "--shift", "3"]) == 0
    assert (tmp_path / "pipeline" / "model_index.json").is_file()
    config = tiny_runs.tiny_config(runs / "world", steps=1)
    config.scheduler.warm_up_steps = [0]
    config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(out)
    Trainer(config, run_folder=tmp_path / "run").train()
    report = json.loads((tmp_path / "run" / "load_report.json").read_text())
    assert (len(report["loaded"]), report["initialised"], report["unexpected"]) == (len(expected), [], [])


@pytest.mark.parametrize("run", ["full", "lora"])
def test_the_vision_tower_of_the_base_is_kept_when_it_is_asked_for(runs: Path, tmp_path: Path, run: str) -> None:
    """Its bits under `language_model.visual.`; the generator reads such an export, and its tower is kept again."""
    base = {name: value for name, value in read_export(runs / "qwen").items() if name.startswith("model.visual.")}
    base = {name.replace("model.", "model.net.language_model.", 1): value for name, value in base.items()}
    plain = read_export(export(runs, run, "--dtype", "float32"))
    main(["export", str(runs / run), "-o", str(tmp_path / "a"), "--format", "native", "--dtype", "float32",
          "--vision-tower", "own"])  # fmt: skip
    main(["export", str(tmp_path / "a"), "-o", str(tmp_path / "b"), "--format", "native", "--dtype", "float32",
          "--vision-tower", "own"])  # fmt: skip
    for folder in (tmp_path / "a", tmp_path / "b"):
        tensors = read_export(folder)
        assert tensors.keys() == plain.keys() | base.keys()
        assert all(torch.equal(tensors[name], value) for name, value in {**plain, **base}.items())
    ours, theirs = velocities(tmp_path / "b", plain)
    assert (ours - theirs).abs().max() < 2e-5


def test_a_tower_that_is_not_there_is_not_kept(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(runs / "full"), "-o", str(tmp_path / "out")]
    plain = str(export(runs, "full", "--dtype", "float32"))
    for more, message in (
        (["--format", "native", "--vision-tower", plain], f"native export {plain} has no vision tower"),
        (
            ["--vision-tower", "own"],
            "--vision-tower: models of the family 'cosmos3' cannot be exported as diffus",
        ),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_shards_hold_every_tensor_once(runs: Path, tmp_path: Path) -> None:
    """A small file size makes several files: the index lists each tensor, and the content is that of one file."""
    model = find_model(runs / "full")
    arguments = {"defaults": Cosmos3Defaults(), "average": True, "dtype": "float32"}
    assert export_native(model.open(), model.spec, tmp_path / "one", **arguments)
    assert export_native(model.open(), model.spec, tmp_path / "many", max_shard_size=20_000, **arguments)
    files = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(path.stat().st_size < 45_000 for path in (tmp_path / "many").glob("*.safetensors"))
    one, many = read_export(tmp_path / "one"), read_export(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(torch.equal(one[key], many[key]) for key in one)
    digests = {json.loads((tmp_path / n / "worldsmith.json").read_text())["weights_sha256"] for n in ("one", "many")}
    assert len(digests) == 1


def test_exporting_again_is_free_and_replacing_needs_force(runs: Path, tmp_path: Path) -> None:
    """The same export again changes nothing; another one needs force; other folders are never touched."""
    model, out = find_model(runs / "full"), tmp_path / "out"
    arguments = {"defaults": Cosmos3Defaults(), "origin": ExportSource(run="a/b", iteration=2, weights="ema")}
    assert export_native(model.open(), model.spec, out, average=True, **arguments)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert not export_native(model.open(), model.spec, out, average=True, **arguments)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    with pytest.raises(FileExistsError, match="replace it with --force"):
        export_native(model.open(), model.spec, out, average=False, **arguments)
    (out / "notes.txt").write_text("keep")
    with pytest.raises(FileExistsError, match=r"notes\.txt\. Move these files first"):
        export_native(model.open(), model.spec, out, average=False, force=True, **arguments)
    (out / "notes.txt").unlink()
    assert export_native(model.open(), model.spec, out, average=False, force=True, **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="is not an export"):
        export_native(model.open(), model.spec, tmp_path / "mine", force=True, **arguments)


def test_a_changed_base_is_noticed(runs: Path, tmp_path: Path) -> None:
    """An adapters-only checkpoint on other base weights than those it was trained on is refused, also for sampling."""
    shutil.copytree(runs / "lora", tmp_path / "lora")
    write_tiny_base(tmp_path / "other")
    with safe_open(tmp_path / "other" / "model.safetensors", framework="pt") as file:
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    tensors["model.language_model.norm.weight"][0] += 1e-3
    from safetensors.torch import save_file

    save_file(tensors, tmp_path / "other" / "model.safetensors")
    config = tmp_path / "lora" / "config.yaml"  # the base is where the run's config says, also when it has moved
    config.write_text(config.read_text().replace(str(runs / "qwen"), str(tmp_path / "other")))
    assert main(["export", str(tmp_path / "lora"), "--format", "native"]) == 2
    from worldsmith.config.errors import UserError

    with pytest.raises(UserError, match="the frozen ones have changed"):
        load_model(tmp_path / "lora")
