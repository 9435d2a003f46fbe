"""Finding a model on disk and reading the weights that were asked for."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from native_export import export_native

from worldsmith.assets import asset_path
from worldsmith.checkpoint.formats.family_formats import ExportOptions, formats_of
from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.checkpoint.run import frozen_weights
from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.checkpoint.sources.open_weights import StartWeights
from worldsmith.checkpoint.sources.warm_start import load_weights
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.yaml.yaml_text import dump_yaml
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.cosmos3.model import Cosmos3Defaults, Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.lora import is_adapter
from worldsmith.models.model import Model
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow

SEED = 11


@pytest.fixture
def config() -> Cosmos3Generator.Config:
    network = NetworkConfig(
        vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, mrope_section=[2, 1, 1],
    )  # fmt: skip
    return Cosmos3Generator.Config(
        precision="float32",
        network=network,
        tokenizer=WanVAE.Config(vae_path=str(asset_path("tiny_vae")), precision="float32"),
        text_tokenizer=TextTokenizer.Config(path=str(asset_path("tiny_tokenizer"))),
    )


@pytest.fixture
def run_folder(config: Cosmos3Generator.Config, tmp_path: Path) -> Path:
    """A run with checkpoints 1 and 2: live weights are all 1 and 2, averaged ones all 10 and 20."""
    folder = tmp_path / "run"
    write_tree(folder, config)
    for iteration in (1, 2):
        save(folder, config, iteration, {"net.": iteration, "net_ema.": 10 * iteration})
    return folder


def write_tree(folder: Path, config: Cosmos3Generator.Config, **checkpoint: Any) -> dict[str, Any]:
    dataset = VideoDataset.Config(
        path="gone", resolution="128", num_video_frames=17, conditioning_fps=8.0, append_resolution_info=False
    )
    tree = {
        "job": {"project": "demo", "group": "shapes", "name": "tiny"},
        "model": to_dict(ModelSpec(name="cosmos3", config=config)),
        "objective": to_dict(RectifiedFlow.Config()),
        "trainer": {"seed": SEED},
        "checkpoint": to_dict(Checkpointer.Config(init="scratch", **checkpoint)),
        "dataloader_train": to_dict(
            VideoLoader.Config(dataset=dataset, max_sequence_length=100, max_caption_tokens=77)
        ),
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(dump_yaml(tree), encoding="utf-8")
    return tree


def save(folder: Path, config: Cosmos3Generator.Config, iteration: int, values: dict[str, float]) -> None:
    names = Cosmos3Generator(config).network.state_dict()
    model = {prefix + name: torch.full_like(t, v) for prefix, v in values.items() for name, t in names.items()}
    Checkpointer.Config(init="scratch").build(folder=folder / "checkpoints").save(iteration, {"model": model})


def value_of(generator: Cosmos3Generator) -> float:
    """The one value that all weights of the test's checkpoints have."""
    values = {v for p in generator.network.parameters() for v in p.unique().tolist()}
    assert len(values) == 1
    return values.pop()


def test_each_kind_of_weights_is_what_was_asked_for(run_folder: Path) -> None:
    """auto and ema: the average; live: the trained weights; of the newest checkpoint."""
    assert value_of(load_model(run_folder)) == 20
    assert value_of(load_model(run_folder, weights="ema")) == 20
    assert value_of(load_model(run_folder, weights="live")) == 2


def test_an_older_checkpoint_can_be_named(run_folder: Path) -> None:
    """An iter folder is its own model, also when the run goes on; a relative path works."""
    model = find_model(run_folder / "checkpoints" / "iter_000000001", weights="live")
    assert (model.iteration, model.weights, model.run) == (1, "live", "demo/shapes/tiny")
    assert value_of(model.load()) == 1


def test_the_pointer_decides_and_damage_is_passed_over(run_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The pointer's checkpoint is taken; if a file of it changed, the older one is, and the log says why."""
    newest = run_folder / "checkpoints" / "iter_000000002"
    data = next(newest.glob("model/*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    assert find_model(run_folder).iteration == 1
    assert "iter_000000002" in caplog.text
    shutil.rmtree(run_folder / "checkpoints" / "iter_000000001")
    with pytest.raises(UserError, match=r"is complete: iter_000000002: .* bytes"):
        find_model(run_folder)


def test_looking_at_a_run_changes_nothing_in_it(run_folder: Path) -> None:
    """A save in progress is left alone."""
    (run_folder / "checkpoints" / ".saving_iter_000000003").mkdir()
    before = sorted(run_folder.rglob("*"))
    load_model(run_folder)
    assert sorted(run_folder.rglob("*")) == before


def test_without_an_average_auto_is_live_and_ema_is_refused(config: Cosmos3Generator.Config, tmp_path: Path) -> None:
    """A run without EMA has no averaged weights to give."""
    write_tree(tmp_path / "run", config)
    save(tmp_path / "run", config, 3, {"net.": 3})
    assert find_model(tmp_path / "run").weights == "live"
    assert value_of(load_model(tmp_path / "run")) == 3
    with pytest.raises(ValueError, match="no EMA weights"):
        load_model(tmp_path / "run", weights="ema")


def test_untrained_is_the_runs_own_start(config: Cosmos3Generator.Config, run_folder: Path, tmp_path: Path) -> None:
    """From scratch: init from trainer.seed. With load_path: those weights, skipped tensors initialised."""
    start = Cosmos3Generator(config, seed=SEED).network.state_dict()
    loaded = load_model(run_folder, weights="untrained").network.state_dict()
    assert all(torch.equal(start[name], loaded[name]) for name in start)

    tuned = tmp_path / "tuned"
    write_tree(tuned, config, load_path=str(run_folder), keys_to_skip_loading=["net_ema.", "vae2llm"])
    warm = load_model(tuned, weights="untrained").network.state_dict()
    assert (warm["llm2vae.weight"] == 2).all()
    assert torch.equal(warm["vae2llm.weight"], start["vae2llm.weight"])


def test_defaults_come_from_the_runs_config(run_folder: Path) -> None:
    """Caption flags, caps, frames, rate and the tier's shift are those of training; the size is left open."""
    assert load_model(run_folder).defaults == Cosmos3Defaults(
        num_frames=17, fps=8.0, shift=2, append_duration_fps=True, append_resolution=False, max_caption_tokens=77
    )


def test_weights_of_another_network_are_refused(run_folder: Path, config: Cosmos3Generator.Config) -> None:
    """A changed config.yaml does not load silently."""
    config.network.hidden_size = 32
    write_tree(run_folder, config)
    with pytest.raises(UserError, match="do not fit this network"):
        load_model(run_folder)


def test_weights_come_in_the_models_precision_or_in_full(config: Cosmos3Generator.Config, run_folder: Path) -> None:
    """For sampling a bfloat16 model has bfloat16 weights (its time embedder apart); for an export it keeps float32."""
    config.precision = "bfloat16"
    write_tree(run_folder, config)
    dtypes = {name: p.dtype for name, p in load_model(run_folder).network.named_parameters()}
    assert dtypes["vae2llm.weight"] == torch.bfloat16
    assert dtypes["time_embedder.mlp.0.weight"] == torch.float32
    full = find_model(run_folder).load(full_precision=True)
    assert {p.dtype for p in full.network.parameters()} == {torch.float32}


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    """Missing folders, empty folders and runs without a checkpoint say what was expected."""
    with pytest.raises(FileNotFoundError, match="nothing: no such folder"):
        load_model(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no model in this folder"):
        load_model(tmp_path)


def test_a_run_without_checkpoint_has_untrained_weights_only(config: Cosmos3Generator.Config, tmp_path: Path) -> None:
    """Right after its start a run can show its first weights and nothing else."""
    write_tree(tmp_path / "run", config)
    assert find_model(tmp_path / "run", weights="untrained").iteration == 0
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        find_model(tmp_path / "run")


def test_a_damaged_checkpoint_is_refused_when_it_was_named(run_folder: Path) -> None:
    """A flipped bit in an iter folder that was asked for, where another one would be whole."""
    newest = run_folder / "checkpoints" / "iter_000000002"
    data = next(newest.glob("model/*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(UserError, match=r"iter_000000002 is damaged: the content of model/"):
        load_model(newest)


def test_memory_is_taken_in_the_precision_of_the_weights(
    config: Cosmos3Generator.Config, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bytes for each bfloat16 weight and never four; the values are those of the float32 weights, rounded."""
    config.precision = "bfloat16"
    write_tree(run_folder, config)
    taken: list[torch.dtype] = []
    allocate = Model._allocate

    def watched(model: Model) -> None:
        if model.device.type != "meta":
            named = model.network.named_parameters()
            taken.extend(p.dtype for name, p in named if not name.startswith("time_embedder"))
        allocate(model)

    monkeypatch.setattr(Model, "_allocate", watched)
    values = Cosmos3Generator(config, seed=SEED).network.state_dict()
    model = {f"net.{name}": value for name, value in values.items()}
    Checkpointer.Config(init="scratch").build(folder=run_folder / "checkpoints").save(3, {"model": model})
    taken.clear()
    loaded = load_model(run_folder).network.state_dict()
    assert set(taken) == {torch.bfloat16}
    assert all(torch.equal(values[name].to(loaded[name].dtype), loaded[name]) for name in values)


class TestMovedBase:
    """A run of trained weights only, whose base has another place than its config says."""

    @pytest.fixture
    def lora(self, config: Cosmos3Generator.Config, run_folder: Path, tmp_path: Path) -> Path:
        """Adapters on the live weights of `run_folder`, which has moved to `moved` since."""
        config.lora_enabled, config.lora_rank, config.lora_alpha = True, 2, 4
        folder = tmp_path / "lora"
        write_tree(folder, config, load_path=str(run_folder), save_weights="trained")
        network = Cosmos3Generator(config, seed=SEED).network
        state = native_parameters(network)
        adapters = {f"net.{name}": torch.full_like(p, 0.5) for name, p in state.items() if is_adapter(name)}
        frozen = {name: torch.full_like(p, 2.0) for name, p in state.items() if not is_adapter(name)}
        texts = {frozen_weights.FILE: frozen_weights.describe_frozen_weights(frozen, source="the base")}
        checkpointer = Checkpointer.Config(init="scratch").build(folder=folder / "checkpoints")
        checkpointer.save(1, {"model": adapters}, texts=texts)
        run_folder.rename(tmp_path / "moved")
        return folder

    def test_its_place_can_be_given(self, lora: Path, tmp_path: Path) -> None:
        """Without it the error says how; with it the weights are the merged ones."""
        with pytest.raises(
            UserError, match=r"contains only the trained weights.*load_path .*run: no such folder.*--base DIR"
        ):
            load_model(lora)
        weight = load_model(lora, base=str(tmp_path / "moved")).network.state_dict()
        assert bool((weight["vae2llm.weight"] == 2).all())
        assert bool((weight["language_model.model.layers.0.self_attn.q_proj_moe_gen.weight"] == 2 + 2 * 0.5).all())
        first = load_model(lora, weights="untrained", base=str(tmp_path / "moved")).network.state_dict()
        assert all(bool((value == 2).all()) for value in first.values())

    def test_another_base_is_refused(self, lora: Path, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="the frozen ones have changed"):
            load_model(lora, base=str(tmp_path / "moved" / "checkpoints" / "iter_000000001"))

    def test_its_adapters_need_no_base(self, lora: Path, tmp_path: Path) -> None:
        """They are exported from the checkpoint alone."""
        assert formats_of("cosmos3").exports()["adapter"].write(find_model(lora), tmp_path / "adapter", ExportOptions())
        assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()

    def test_a_base_for_what_has_all_its_weights_is_refused(
        self, config: Cosmos3Generator.Config, run_folder: Path, tmp_path: Path
    ) -> None:
        """A whole checkpoint, the first weights of a run from scratch, an exported folder."""
        spec = ModelSpec(name="cosmos3", config=config)
        export_native(StartWeights(spec, 1), spec, tmp_path / "out", defaults=Cosmos3Defaults())
        for path, weights in ((run_folder, "auto"), (run_folder, "untrained"), (tmp_path / "out", "auto")):
            with pytest.raises(UserError, match="needs no base"):
                find_model(path, weights=weights, base="anything")  # type: ignore[arg-type]


def test_choosing_does_not_read_weights(run_folder: Path) -> None:
    """find_model gives config, defaults and iteration; load() of a copy with other defaults carries those."""
    model = find_model(run_folder)
    changed = replace(model, defaults=replace(model.defaults, shift=9.0))
    assert changed.load().defaults.shift == 9.0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", r"config\.yaml:1:1: the byte 0xff is not UTF-8"),
        (b"", r"config\.yaml has no section 'job'"),
        (b"- 1", r"config\.yaml has no section 'job'"),
        (b"job: 3", r"config\.yaml has no section 'job'"),
    ],
)
def test_a_config_that_is_none_is_named(run_folder: Path, content: bytes, words: str) -> None:
    (run_folder / "config.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        find_model(run_folder)


def test_weights_that_are_not_finite_are_refused(run_folder: Path, config: Cosmos3Generator.Config) -> None:
    """When a model is loaded or exported, and at the start of a run, which may skip them."""
    names = list(native_parameters(Cosmos3Generator(config).network))
    save(run_folder, config, 3, {"net.": float("nan"), "net_ema.": 30})
    refused = f"{len(names)} tensors contain values that are not finite"
    assert value_of(load_model(run_folder)) == 30
    with pytest.raises(UserError, match=refused):
        load_model(run_folder, weights="live")
    live = find_model(run_folder, weights="live")
    with pytest.raises(UserError, match="not finite"):
        export_native(live.open(), live.spec, run_folder.parent / "out", defaults=live.defaults)
    assert not (run_folder.parent / "out").exists()
    model = {f"net.{name}": p.detach() for name, p in native_parameters(Cosmos3Generator(config).network).items()}
    with pytest.raises(UserError, match=refused):
        load_weights(str(run_folder), model)
    report = load_weights(str(run_folder), model, keys_to_skip=["net."])
    assert len(report.skipped) == len(names)
    load_weights(str(run_folder), model, average_as_live=True)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("__class__", None, "unknown key '__class__' in generation"),
        ("guidance", "6", r"generation\.guidance: expected a number, found '6'"),
        ("guidance", float("nan"), r"generation\.guidance: expected a number, found nan"),
        ("steps", 1.5, r"generation\.steps: expected an integer, found 1\.5"),
    ],
)
def test_defaults_of_an_export_that_its_family_does_not_have_are_refused(
    config: Cosmos3Generator.Config, run_folder: Path, tmp_path: Path, name: str, value: Any, words: str
) -> None:
    model = find_model(run_folder)
    export_native(model.open(), model.spec, tmp_path / "out", defaults=model.defaults)
    file = tmp_path / "out" / "worldsmith.json"
    about = json.loads(file.read_text())
    about["generation"][name] = value
    file.write_text(json.dumps(about))
    with pytest.raises(UserError, match=words):
        find_model(tmp_path / "out")
