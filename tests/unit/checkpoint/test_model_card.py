"""The README of an exported folder says what this model is: sizes, data, steps, what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from native_export import export_native
from stored_models import QWEN, spec_of

from worldsmith.assets import asset_path
from worldsmith.checkpoint.formats.export_folder import ExportSource, add_to_card, facts_of, find_export_damage
from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.sources.open_weights import StartWeights
from worldsmith.families.cosmos3.model import Cosmos3Defaults

SENTENCES = {"append_duration_fps": True, "append_resolution": True}
SMALL = Cosmos3Defaults(height=64, width=64, num_frames=17, fps=8.0, **SENTENCES)
LARGE = Cosmos3Defaults(height=192, width=320, num_frames=61, fps=24.0, append_duration_fps=True)
DATA = {"data": "my_clips", "clips": 40, "windows": 52}


def export(out: Path, defaults: Cosmos3Defaults, **arguments: object) -> str:
    """The card of an export with other numbers."""
    spec = spec_of(QWEN)
    spec.config.text_tokenizer.path = str(asset_path("tiny_tokenizer"))
    spec.config.tokenizer.vae_path = str(asset_path("tiny_vae"))
    assert export_native(StartWeights(spec, 0), spec, out, defaults=defaults, **arguments)
    return (out / "README.md").read_text()


def test_two_models_have_their_own_numbers(tmp_path: Path) -> None:
    source = ExportSource(run="a/b/c", iteration=700, weights="ema")
    small = export(tmp_path / "small", SMALL, origin=source, card=DATA, dtype="float32")
    large = export(tmp_path / "large", LARGE)
    assert "ema ones of the run `a/b/c` after 700 steps, in float32" in small
    assert "Trained on `my_clips`: 40 clips, 52 windows, such as 64x64 pixels, 17 frames, 8 frames" in small
    assert '"The video is 2.1 seconds long and is of 8 FPS." "This video is of 64x64 resolution."' in small
    assert '"The video is 2.5 seconds long and is of 24 FPS."' in large
    assert "after 0 steps, in bfloat16" in large
    assert not re.search("64x64|2.1 seconds|Trained on|resolution", large)
    count = sum(p.numel() for p in StartWeights(spec_of(QWEN), 0).model.network.parameters())
    assert f"of {count / 1e6:.1f} million parameters" in small


def test_sizes_that_nobody_knows_are_not_made_up(tmp_path: Path) -> None:
    card = export(tmp_path / "out", Cosmos3Defaults(**SENTENCES))
    assert '"The video is S seconds long and is of F FPS." "This video is of HxW resolution."' in card


def test_a_pipelines_card_uses_the_arguments_of_the_library() -> None:
    """`dtype`, and the settings of this model; every key that the card reads is one that an export states."""
    about = {"source": {"run": "", "iteration": 5, "weights": "live"}, "dtype": "bfloat16", "worldsmith": "1",
             "format": "diffusers", "card": DATA, "generation": {**vars_of(LARGE)}}  # fmt: skip
    card = formats_of("cosmos3").card("export", about)
    assert 'Cosmos3OmniPipeline.from_pretrained("export", dtype=torch.bfloat16)' in card
    assert "height=192, width=320, num_frames=61, fps=24.0, num_inference_steps=35" in card


def vars_of(defaults: Cosmos3Defaults) -> dict[str, object]:
    return {name: getattr(defaults, name) for name in Cosmos3Defaults.__dataclass_fields__}


def test_what_was_measured_is_added_and_the_export_stays_whole(tmp_path: Path) -> None:
    out, picture = tmp_path / "out", tmp_path / "evaluation" / "contact_sheet.png"
    picture.parent.mkdir()
    picture.write_bytes(b"png")
    before = export(out, SMALL, card=DATA)
    assert add_to_card(out, {"adherence": 0.975, "prompts": 36}, picture)
    card = (out / "README.md").read_text()
    assert "Measured by `worldsmith evaluate`: adherence 0.975, prompts 36." in card
    assert "](contact_sheet.png)" in card
    assert (out / "contact_sheet.png").read_bytes() == b"png"
    assert find_export_damage(out, json.loads((out / "worldsmith.json").read_text())) is None
    spec = spec_of(QWEN)
    assert set(before.split()) <= set(card.split())
    with pytest.raises(FileExistsError, match="--force"):
        export_native(StartWeights(spec, 1), spec, out, defaults=LARGE)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_changed_byte_makes_an_export_incomplete(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    export(out, SMALL)
    spec = spec_of(QWEN)
    spec.config.text_tokenizer.path = str(asset_path("tiny_tokenizer"))
    spec.config.tokenizer.vae_path = str(asset_path("tiny_vae"))
    assert not export_native(StartWeights(spec, 0), spec, out, defaults=SMALL)
    content = bytearray((out / name).read_bytes())
    content[-3] ^= 1
    (out / name).write_bytes(content)
    (out / "lineage.json").write_text("{}")  # as `worldsmith export` adds it: it belongs to the export
    with pytest.raises(FileExistsError, match=rf"missing or changed files \(.*{name}.*\): replace it with --force"):
        export_native(StartWeights(spec, 0), spec, out, defaults=SMALL)
    assert export_native(StartWeights(spec, 0), spec, out, defaults=SMALL, force=True)
    assert not export_native(StartWeights(spec, 0), spec, out, defaults=SMALL)


def test_a_card_that_somebody_has_edited_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(out, SMALL)
    (out / "README.md").write_text("# Mine\n")
    (tmp_path / "sheet.png").write_bytes(b"png")
    assert not add_to_card(out, {"adherence": 1.0}, tmp_path / "sheet.png")
    assert (out / "README.md").read_text() == "# Mine\n"
    assert not (out / "sheet.png").exists()
    assert not add_to_card(tmp_path, {"adherence": 1.0}, tmp_path / "sheet.png")


def test_the_data_of_a_run_are_those_that_its_folder_records(tmp_path: Path) -> None:
    (tmp_path / "dataset_windows.txt").write_text("0a cat_w0\n0b cat_w1\n0c dog_w0\n")
    tree = {"dataloader_train": {"dataset": {"path": "/data/pets"}}}
    model = StoredModel(tmp_path, spec_of(QWEN), SMALL, "r", 0, "untrained", tree)
    assert facts_of(model) == {"data": "pets", "clips": 2, "windows": 3}
    (tmp_path / "dataset_windows.txt").unlink()
    assert facts_of(model) == {}
