"""Model folders of transformers, read into our network and exported from it, against transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoners import (
    from_pretrained,
    logits,
    model_config,
    write_decoder,
    write_model,
    write_qwen2_5,
    write_reasoner,
    write_run,
)
from safetensors.torch import load_file, save_file
from tiny_reasoner import decoder
from transformers import AutoTokenizer, GenerationConfig

from worldsmith.checkpoint.formats.export_weights import exports_of
from worldsmith.checkpoint.formats.family_formats import ExportOptions
from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.checkpoint.sources.warm_start import LoadReport, load_weights
from worldsmith.config.errors import UserError
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec

COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
PREPROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json")
FORMS = ["plain", "tied", "text", "2.5", "2.5 tied"]


def write(folder: Path, form: str) -> Any:
    if form == "text":
        return write_decoder(folder, "qwen3")
    return (write_qwen2_5 if "2.5" in form else write_reasoner)(folder, tied="tied" in form)


def load(path: Path, model: VisionLanguageModel, skip: tuple[str, ...] = ()) -> LoadReport:
    """As a training run with this start does it."""
    spec = ModelSpec(name="vision_language", config=model.config)
    state = {f"net.{name}": p.detach() for name, p in native_parameters(model.network).items()}
    return load_weights(str(path), state, spec=spec, keys_to_skip=skip)


def export(model: Any, out: Path, **options: Any) -> None:
    assert exports_of(model.spec.name)["hf"].write(model, out, ExportOptions(**options))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shard", ["one_file", "shards"])
def test_a_model_folder_computes_the_same_here(tmp_path: Path, form: str, shard: str) -> None:
    """Every weight arrives in its place: logits over text and a picture differ by less than 1e-5 of their size."""
    theirs = write(tmp_path / "base", form)
    if shard == "shards":
        theirs.save_pretrained(tmp_path / "base", max_shard_size="100KB")
        (tmp_path / "base" / "model.safetensors").unlink(missing_ok=True)
        assert len(list((tmp_path / "base").glob("*.safetensors"))) > 2
    model = VisionLanguageModel(model_config(tmp_path / "base"))
    report = load(tmp_path / "base", model)
    assert len(report.loaded) == len(native_parameters(model.network)) == len(dict(theirs.named_parameters()))
    assert report.unexpected == report.left == []
    expected = logits(theirs)
    assert (logits(model.network) - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("form", FORMS)
def test_from_pretrained_loads_an_export_with_nothing_missing(tmp_path: Path, form: str) -> None:
    """Weights that differ from the base: no missing, unexpected or mismatched key, and the same logits."""
    base = logits(write(tmp_path / "base", form))
    model = VisionLanguageModel(model_config(tmp_path / "base"), seed=5)
    ours = logits(model.network)
    assert (ours - base).abs().max() > 0.1 * base.abs().max()
    run = write_run(tmp_path / "run", model.config, model.network)
    export(find_model(run), tmp_path / "out", dtype="float32")
    assert (logits(from_pretrained(tmp_path / "out")) - ours).abs().max() < 1e-5 * ours.abs().max()
    before, after = (load_file(tmp_path / name / "model.safetensors").keys() for name in ("base", "out"))
    assert before == after
    assert ("lm_head.weight" in after) == ("tied" not in form)
    again = load_model(tmp_path / "out")  # as evaluation and inference open it
    assert torch.equal(logits(again.network), ours)


def test_an_export_has_all_that_its_base_had(tmp_path: Path) -> None:
    """Tokenizer, template, preprocessors and generation settings: the base's bytes; the config differs in its dtype."""
    write_reasoner(tmp_path / "base")
    model = VisionLanguageModel(model_config(tmp_path / "base"), seed=5)
    export(find_model(write_run(tmp_path / "run", model.config, model.network)), tmp_path / "out")
    for name in (*COMPANIONS, *PREPROCESSORS):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "base" / name).read_bytes(), name
    before, after = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("base", "out"))
    assert after == {**before, "dtype": "bfloat16"}
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == [507, 505]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline_tag: image-text-to-text" in card
    assert "the live weights of the run `demo/questions/tiny` after 7 steps, in bfloat16" in card
    loaded = from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    expected = {name: p.detach().bfloat16() for name, p in native_parameters(model.network).items()}
    assert all(torch.equal(p, expected[name]) for name, p in loaded.named_parameters())


def test_averaged_weights_are_exported_unless_the_live_ones_are_asked_for(tmp_path: Path) -> None:
    write_decoder(tmp_path / "base")
    model = VisionLanguageModel(model_config(tmp_path / "base"), seed=5)
    average = {name: torch.full_like(p, 0.25) for name, p in native_parameters(model.network).items()}
    run = write_run(tmp_path / "run", model.config, model.network, average)
    for kind, name in (("auto", "average"), ("live", "trained")):
        export(find_model(run, weights=kind), tmp_path / name, dtype="float32")
    stored = {name: load_file(tmp_path / name / "model.safetensors") for name in ("average", "trained")}
    assert all(bool((value == 0.25).all()) for value in stored["average"].values())
    live = native_parameters(model.network)
    assert all(torch.equal(value, live[name]) for name, value in stored["trained"].items())


def test_an_export_moves_and_begins_a_run(tmp_path: Path) -> None:
    """The base is gone and the folder has another place: it is found, loaded, and exported to the same bytes."""
    write_reasoner(tmp_path / "base")
    model = VisionLanguageModel(model_config(tmp_path / "base"), seed=5)
    export(find_model(write_run(tmp_path / "run", model.config, model.network)), tmp_path / "out", dtype="float32")
    (tmp_path / "base").rename(tmp_path / "gone")
    (tmp_path / "out").rename(tmp_path / "moved")
    other = VisionLanguageModel(model_config(tmp_path / "moved"))
    load(tmp_path / "moved", other)
    assert torch.equal(logits(other.network), logits(model.network))
    export(find_model(tmp_path / "moved"), tmp_path / "again", dtype="float32")
    files = [tmp_path / name / "model.safetensors" for name in ("moved", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()


class TestMistakes:
    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        write_decoder(tmp_path / "base")
        return tmp_path / "base"

    def change(self, folder: Path, added: dict[str, torch.Tensor], removed: tuple[str, ...] = ()) -> None:
        file = folder / "model.safetensors"
        kept = {name: value for name, value in load_file(file).items() if name not in removed}
        save_file({**kept, **added}, file, metadata={"format": "pt"})

    def test_a_missing_weight_is_named(self, base: Path) -> None:
        model = VisionLanguageModel(model_config(base))
        self.change(base, {}, ("model.layers.1.mlp.up_proj.weight",))
        with pytest.raises(
            UserError, match=r"Not in the checkpoint: 1 \(net\.model\.layers\.1\.mlp\.up_proj\.weight\)"
        ):
            load(base, model)

    def test_an_unexpected_weight_is_named_and_may_be_skipped(self, base: Path) -> None:
        model = VisionLanguageModel(model_config(base))
        self.change(base, {"model.layers.2.mlp.up_proj.weight": torch.ones(2, 2)})
        with pytest.raises(
            UserError, match=r"weights that this network does not have: 1 \(model\.layers\.2\.mlp\.up_proj\.weight\)"
        ):
            load(base, model)
        report = load(base, model, skip=("model.layers.2.",))
        assert report.unexpected == ["net.model.layers.2.mlp.up_proj.weight"]

    def test_buffers_and_a_tied_head_are_no_mistakes(self, tmp_path: Path) -> None:
        write_decoder(tmp_path / "base", tie_word_embeddings=True)
        table = load_file(tmp_path / "base" / "model.safetensors")["model.embed_tokens.weight"]
        self.change(tmp_path / "base", {"model.rotary_emb.inv_freq": torch.ones(6), "lm_head.weight": table.clone()})
        model = VisionLanguageModel(model_config(tmp_path / "base"))
        report = load(tmp_path / "base", model)
        assert sorted(report.unexpected) == ["model.rotary_emb.inv_freq", "net.lm_head.weight"]

    def test_another_meaning_of_the_same_shapes(self, base: Path, tmp_path: Path) -> None:
        write_decoder(tmp_path / "other", rope_parameters={"rope_type": "default", "rope_theta": 77.0})
        model = VisionLanguageModel(model_config(base))
        with pytest.raises(
            UserError, match=r"rope_theta is 77\.0 in the weights and 10000\.0 in the config.*Set model.config.policy"
        ):
            load(tmp_path / "other", model)

    def test_weights_of_a_generator(self, base: Path, tmp_path: Path) -> None:
        from stored_models import QWEN, random_transformer

        random_transformer(QWEN).save_pretrained(tmp_path / "transformer")
        model = VisionLanguageModel(model_config(base))
        with pytest.raises(UserError, match="convert SOURCE --to vlm"):
            load(tmp_path / "transformer", model)


def test_the_family_that_is_wanted_reads_a_folder_that_two_can_read(tmp_path: Path) -> None:
    """Without a wish the generator takes a Qwen3-VL folder, as `worldsmith convert` does."""
    write_reasoner(tmp_path / "base")
    assert open_weights(tmp_path / "base").family == "cosmos3"
    source = open_weights(tmp_path / "base", family="vision_language")
    assert (source.family, source.describe) == ("vision_language", f"Hugging Face folder {tmp_path / 'base'}")
    assert "model.visual.pos_embed.weight" in source.shapes
    assert find_model(tmp_path / "base").spec.name == "vision_language"


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3", "gpt_oss", "llama4_text"])
def test_experts_are_read_and_written_as_their_folders_keep_them(tmp_path: Path, kind: str) -> None:
    """Stored one by one or as one: the same network here, and the folder has the same tensors again, to the bit."""
    theirs = write_model(tmp_path / "base", decoder(kind))
    model = VisionLanguageModel(model_config(tmp_path / "base"))
    report = load(tmp_path / "base", model)
    assert len(report.loaded) == len(native_parameters(model.network))
    assert report.unexpected == report.left == []
    expected = logits(theirs)
    assert (logits(model.network) - expected).abs().max() < 1e-5 * expected.abs().max()
    run = write_run(tmp_path / "run", model.config, model.network)
    export(find_model(run), tmp_path / "out", dtype="float32")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(logits(from_pretrained(tmp_path / "out")), expected)
    rounded = from_pretrained(tmp_path / "base", dtype=torch.bfloat16).state_dict()
    export(find_model(run), tmp_path / "rounded")
    exact = {name for name, p in load_file(tmp_path / "rounded/model.safetensors").items() if p.dtype == torch.float32}
    assert exact == {name for name, value in rounded.items() if value.dtype == torch.float32}
    assert bool(exact) == (kind == "deepseek_v3")
