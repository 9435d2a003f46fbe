"""`worldsmith convert`: its account, its exit codes, and what it leaves alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.cli.main import main
from worldsmith.families.cosmos3.network.architecture import NetworkConfig, edge, nano, super_
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.weights.network_settings import released_tier

HIDDEN, HEADS, DIM = 8, 2, 8
CONFIG = {
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text", "vocab_size": 12, "hidden_size": HIDDEN, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": DIM,
        "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 5e6, "mrope_section": [2, 1, 1]},
    },
}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The files of a reasoner of one layer, written by hand."""
    shapes = {
        "self_attn.q_proj": (HEADS * DIM, HIDDEN), "self_attn.k_proj": (DIM, HIDDEN), "self_attn.v_proj": (DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * DIM), "self_attn.q_norm": (DIM,), "self_attn.k_norm": (DIM,),
        "mlp.gate_proj": (16, HIDDEN), "mlp.up_proj": (16, HIDDEN), "mlp.down_proj": (HIDDEN, 16),
        "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
    }  # fmt: skip
    prefix = "model.language_model."
    tensors = {f"{prefix}layers.0.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    tensors |= {f"{prefix}embed_tokens.weight": torch.randn(12, HIDDEN), f"{prefix}norm.weight": torch.randn(HIDDEN)}
    tensors |= {"lm_head.weight": torch.randn(12, HIDDEN), "model.visual.pos_embed.weight": torch.randn(2, 2)}
    folder = tmp_path / "reasoner"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_the_account_and_the_folder(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts of loaded, copied and initialised tensors, heads asked for included, are printed and in the manifest."""
    out = tmp_path / "base"
    assert main(["convert", str(source), "-o", str(out), "--action-gen", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "26 tensors loaded" in said
    assert "in the checkpoint but not in this network: 1 (model.visual.pos_embed.weight)" in said
    assert f"to train from it: checkpoint.load_path={out}" in said
    manifest = json.loads((out / "worldsmith.json").read_text())
    assert manifest["tensors"] == {"loaded": 26, "copied": 12, "initialised": 13}
    assert manifest["model"]["config"]["network"]["action_gen"] is True
    assert len(open_weights(out).shapes) == 39
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["base", "reasoner"]


def test_mistakes_end_with_exit_code_2(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path without weights, a config that is missing, a folder that is taken: one line each, nothing written."""
    out = tmp_path / "base"
    assert main(["convert", str(tmp_path / "nowhere"), "-o", str(out)]) == 2
    assert "SOURCE" in capsys.readouterr().err
    out.mkdir()
    (out / "notes.txt").write_text("keep")
    assert main(["convert", str(source), "-o", str(out), "--force"]) == 2
    assert "is not an export" in capsys.readouterr().err
    assert (out / "notes.txt").read_text() == "keep"
    (source / "config.json").unlink()
    assert main(["convert", str(source), "-o", str(tmp_path / "other")]) == 2
    assert "hidden_size and num_hidden_layers and rope_theta" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "reasoner"]


def test_converting_again_needs_force(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "base"
    for words, code in ((["--seed", "1"], 0), (["--seed", "2"], 2), (["--seed", "2", "--force"], 0)):
        assert main(["convert", str(source), "-o", str(out), "--to", "native", *words]) == code
    assert "replace it with --force" in capsys.readouterr().err
    assert json.loads((out / "worldsmith.json").read_text())["seed"] == 2


def test_the_initial_values_follow_the_seed(source: Path, tmp_path: Path) -> None:
    """Heads of the same seed are equal in every format, those of another seed are not; copies never change."""
    words = {"a": ["--seed", "1"], "b": ["--seed", "1", "--to", "native"], "c": ["--seed", "2", "--to", "diffusers"]}
    for name, flags in words.items():
        assert main(["convert", str(source), "-o", str(tmp_path / name), *flags]) == 0
    head, copy = "vae2llm.weight", "language_model.model.layers.0.self_attn.q_proj_moe_gen.weight"
    a, b, c = ({n: open_weights(tmp_path / folder).read(n) for n in (head, copy)} for folder in "abc")
    assert torch.equal(a[head], b[head])
    assert not torch.equal(a[head], c[head])
    assert torch.equal(a[copy], b[copy])
    assert torch.equal(a[copy], c[copy])


def test_a_base_checkpoint_is_not_a_model_for_videos(source: Path, tmp_path: Path) -> None:
    for to in ("dcp", "native"):
        assert main(["convert", str(source), "-o", str(tmp_path / to), "--to", to]) == 0
        with pytest.raises(FileNotFoundError, match=r"is a base checkpoint .* has no tokenizer and no VAE"):
            find_model(tmp_path / to)


@pytest.mark.parametrize("tier", [edge, nano, super_])
def test_a_released_network_is_known_by_its_shapes(tier: Callable[[], NetworkConfig]) -> None:
    """Folders of other systems state their settings in another form, or not at all; a changed shape is not known."""
    with torch.device("meta"):
        network = Cosmos3Network(tier())
    shapes = {name: list(parameter.shape) for name, parameter in network.named_parameters()}
    assert released_tier(shapes) == tier()
    shapes["language_model.model.norm.weight"] = [7]
    assert released_tier(shapes) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vlm-model-name", "stock"], 'vlm_model_name = "stock" and to = "dcp"'),
        (["--to", "native", "--vision-tower", "other"], 'vision_tower = "other" and to = "native"'),
        (["--to", "vlm", "--action-gen"], 'action_gen = true and to = "vlm"'),
        (["--to", "vlm", "--seed", "3"], 'seed = 3 and to = "vlm"'),
    ],
)
def test_settings_of_another_target_are_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["convert", str(source), "-o", str(tmp_path / "out"), *words]) == 2
    assert f"{message}: the former has no effect" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
