"""`convert --to vlm`: the language model of a generator on a vision tower, as transformers loads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoners import edit_config, from_pretrained, logits, write_reasoner
from safetensors.torch import load_file, save_file
from stored_models import random_transformer, randomize
from transformers import Qwen3VLForConditionalGeneration

from worldsmith.assets import asset_path
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.vision_language.weights.assemble import assemble
from worldsmith.tools.export.convert import convert

TEXT = json.loads((asset_path("tiny_reasoner") / "config.json").read_text())["text_config"]
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "head_dim", "rms_norm_eps")  # fmt: skip
NETWORK = NetworkConfig(
    **{name: TEXT[name] for name in SIZES}, rope_theta=TEXT["rope_parameters"]["rope_theta"],
    mrope_section=TEXT["rope_parameters"]["mrope_section"], latent_channel=8,
)  # fmt: skip
"""The tiny reasoner's language model, as a generator has it."""


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """The model folder that a user names: with a tower that was not trained."""
    write_reasoner(tmp_path / "stock")
    return tmp_path / "stock"


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    """The reasoner that is inside the generator: other weights everywhere."""
    model = write_reasoner(tmp_path / "trained")
    randomize(model, seed=11)
    return model


def write_generator(folder: Path, layout: str, reasoner: Any, tower: str | None) -> Path:
    """A generator whose understanding tower is this reasoner's language model, with its vision tower or without.

    diffusers: transformer/ and vision_encoder/; native: `model.net.…`; net: `net.…`; dcp: as runs save.
    """
    transformer = random_transformer(NETWORK)
    language = {name.removeprefix("model.language_model."): p for name, p in reasoner.named_parameters()}
    words = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "o_proj": "to_out", "q_norm": "norm_q",
             "k_norm": "norm_k"}  # fmt: skip
    with torch.no_grad():
        for name, value in language.items():
            for ours, theirs in words.items():
                name = name.replace(f"self_attn.{ours}.", f"self_attn.{theirs}.")
            if not name.startswith("model.visual."):
                transformer.get_parameter(name).copy_(value)
    transformer.save_pretrained(folder / "transformer")
    visual = {name.removeprefix("model.visual."): p.detach().clone() for name, p in reasoner.named_parameters()}
    visual = {name: value for name, value in visual.items() if not name.startswith(("model.", "lm_head."))}
    if layout == "diffusers":
        if tower is not None:
            (folder / "vision_encoder").mkdir()
            save_file({f"{tower}{n}": v for n, v in visual.items()}, folder / "vision_encoder" / "model.safetensors")
        return folder
    native = folder / layout
    convert(str(folder), native, to="dcp" if layout == "dcp" else "native")
    file = native / "model.safetensors"
    prefix = {"native": "model.net.", "net": "net."}.get(layout, "")
    if prefix:
        stored = {name.replace("model.net.", prefix): value for name, value in load_file(file).items()}
        stored |= {f"{prefix}language_model.visual.{n}": v for n, v in visual.items()} if tower is not None else {}
        file.unlink()
        (native / "manifest.json").unlink()
        save_file(stored, file)
    return native


@pytest.mark.parametrize(
    ("layout", "tower"),
    [("diffusers", ""), ("diffusers", "vision_encoder."), ("diffusers", "model.visual."), ("native", ""), ("net", "")],
)
def test_language_model_and_tower_of_a_generator(
    trained: Any, stock: Path, tmp_path: Path, layout: str, tower: str
) -> None:
    """From every layout: the trained reasoner again, with the same logits, and nothing of the stock weights."""
    source = write_generator(tmp_path / "generator", layout, trained, tower)
    lines = assemble(str(source), tmp_path / "out", base=str(stock), max_shard_size=1_000_000)
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    model = from_pretrained(tmp_path / "out")
    expected = dict(trained.named_parameters())
    assert {name for name, p in model.named_parameters() if torch.equal(p, expected[name])} == expected.keys()
    assert torch.equal(logits(model), logits(trained))
    count = sum(name.startswith("model.visual.") for name in expected)
    assert lines[0].startswith(f"language model: {len(expected) - count} tensors from ")
    assert f"; {count} of them differ from those of vision tower in {stock}" in lines[1]
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (stock / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("prefix", ["", "vision_encoder."])
def test_a_repository_with_one_index_at_its_root(trained: Any, stock: Path, tmp_path: Path, prefix: str) -> None:
    """One weight_map over transformer/ and vision_encoder/, with the names of the tower's own folder or longer ones."""
    source = write_generator(tmp_path / "generator", "diffusers", trained, prefix)
    weight_map = {}
    for folder, file in (
        ("transformer", "diffusion_pytorch_model.safetensors"),
        ("vision_encoder", "model.safetensors"),
    ):
        tensors = load_file(source / folder / file)
        (source / folder / file).rename(source / folder / "part.safetensors")
        weight_map |= dict.fromkeys(tensors, f"{folder}/part.safetensors")
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assemble(str(source), tmp_path / "out", base=str(stock))
    assert torch.equal(logits(from_pretrained(tmp_path / "out")), logits(trained))


@pytest.mark.parametrize("layout", ["diffusers", "dcp"])
def test_a_generator_without_a_tower_gets_that_of_the_model_folder(
    trained: Any, stock: Path, tmp_path: Path, layout: str
) -> None:
    """And that is said; of every tensor the folder tells where it comes from."""
    source = write_generator(tmp_path / "generator", layout, trained, None)
    lines = assemble(str(source), tmp_path / "out", base=str(stock))
    assert (
        "because the source has no vision tower; correct if the language model was never trained with images"
        in lines[1]
    )
    model, other = from_pretrained(tmp_path / "out"), from_pretrained(stock)
    expected = {**dict(trained.named_parameters()), **dict(other.model.visual.named_parameters(prefix="model.visual"))}
    assert all(torch.equal(p, expected[name]) for name, p in model.named_parameters())
    origins = json.loads((tmp_path / "out" / "tensor_origins.json").read_text())
    assert sorted(name for names in origins.values() for name in names) == sorted(expected)
    (tower,) = (names for place, names in origins.items() if str(stock) in place)
    assert set(tower) == {name for name in expected if name.startswith("model.visual.")}


def test_a_tower_that_is_named_comes_before_the_source_s_own(trained: Any, stock: Path, tmp_path: Path) -> None:
    source = write_generator(tmp_path / "generator", "diffusers", trained, "")
    lines = assemble(str(source), tmp_path / "out", base=str(stock), tower=str(stock))
    assert "; 0 of them differ" in lines[1]
    assert torch.equal(
        from_pretrained(tmp_path / "out").model.visual.pos_embed.weight,
        from_pretrained(stock).model.visual.pos_embed.weight,
    )


def test_the_command_and_what_the_folder_is_then(
    trained: Any, stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of ours, with the same logits, which can be exported; its card and its record say what it is made of."""
    source, out = write_generator(tmp_path / "generator", "native", trained, ""), tmp_path / "out"
    words = ["convert", "--checkpoint-path", str(source), "--to", "vlm", "--vlm-model-name", str(stock), "-o", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"language model: {len(dict(trained.model.language_model.named_parameters())) + 1} tensors from" in said
    assert f"to train from it: model.config.policy.backbone.model_name={out}" in said
    about = json.loads((out / "worldsmith.json").read_text())
    assert about["assembled_from"]["language"] == f"native export {source}"
    assert about["assembled_from"]["vision"] == f"vision tower in {source}"
    model = find_model(out)
    assert torch.equal(logits(model.load(full_precision=True).network), logits(trained))
    assert main(["export", str(out), "-o", str(tmp_path / "again"), "--dtype", "float32"]) == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert not (tmp_path / "again" / "tensor_origins.json").exists()


def test_tied_embeddings_have_no_head(tmp_path: Path) -> None:
    write_reasoner(tmp_path / "stock", tied=True)
    tied = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "stock")
    source = write_generator(tmp_path / "generator", "native", tied, "")
    with pytest.raises(UserError, match="an LM head that differs from its embedding table"):
        assemble(str(source), tmp_path / "out", base=str(tmp_path / "stock"))
    file = source / "model.safetensors"
    stored = load_file(file)
    table = stored["model.net.language_model.model.embed_tokens.weight"]
    save_file({**stored, "model.net.language_model.lm_head.weight": table.clone()}, file)
    assemble(str(source), tmp_path / "out", base=str(tmp_path / "stock"))
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(from_pretrained(tmp_path / "out").lm_head.weight, table)


class TestMistakes:
    @pytest.fixture
    def source(self, trained: Any, tmp_path: Path) -> Path:
        return write_generator(tmp_path / "generator", "native", trained, "")

    def refused(self, source: Path, stock: Path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            assemble(str(source), source.parent / "out", base=str(stock))
        assert not (source.parent / "out").exists()

    def without(self, source: Path, word: str) -> None:
        file = source / "model.safetensors"
        save_file({name: value for name, value in load_file(file).items() if word not in name}, file)

    def test_part_of_a_language_model(self, source: Path, stock: Path) -> None:
        self.without(source, "layers.2.mlp.up_proj")
        self.refused(source, stock, r"1 missing \(model\.language_model\.layers\.2\.mlp\.up_proj\.weight\)")

    def test_part_of_a_tower(self, source: Path, stock: Path) -> None:
        self.without(source, "visual.blocks.1.")
        self.refused(source, stock, r"12 missing \(model\.visual\.blocks\.1\.")

    def test_a_tower_that_is_said_to_be_there(self, source: Path, stock: Path) -> None:
        """The stock tower never takes the place of a trained one in silence."""
        self.without(source, ".visual.")
        edit_config(source, vlm_config={"include_visual": True})
        self.refused(source, stock, r"config\.json states include_visual, but no vision tower was found")

    def test_a_tower_that_an_index_lists(self, trained: Any, stock: Path, tmp_path: Path) -> None:
        """A repository of which a part was downloaded."""
        source = write_generator(tmp_path / "repository", "diffusers", trained, None)
        weight_map = {"vision_encoder.pos_embed.weight": "vision_encoder/model.safetensors"}
        (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        self.refused(source, stock, r"index\.json lists files in vision_encoder/, but no vision tower was found")

    def test_another_language_model(self, source: Path, stock: Path) -> None:
        text = json.loads((stock / "config.json").read_text())["text_config"]
        edit_config(stock, text_config={**text, "rms_norm_eps": 1e-5})
        self.refused(
            source,
            stock,
            "another language model than the model folder: rms_norm_eps is 1e-05 in the weights and 1e-06",
        )

    def test_no_model_of_this_size_is_known(self, source: Path) -> None:
        found = (
            rf"has the hidden size {NETWORK.hidden_size} of its language model, only Qwen.* 4096, .*--vlm-model-name"
        )
        with pytest.raises(UserError, match=found):
            assemble(str(source), source.parent / "out")

    def test_a_folder_that_is_there(self, source: Path, stock: Path, tmp_path: Path) -> None:
        assemble(str(source), tmp_path / "out", base=str(stock))
        with pytest.raises(FileExistsError, match="--force"):
            assemble(str(source), tmp_path / "out", base=str(stock))
        assemble(str(source), tmp_path / "out", base=str(stock), dtype="bfloat16", force=True)
        assert from_pretrained(tmp_path / "out").dtype == torch.bfloat16
        shutil.rmtree(tmp_path / "out")
