"""The tiny twins of the released recipes train on a CPU from a base, resume bit for bit, and are exported."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from diffusers import Cosmos3OmniTransformer
from tiny_runs import make_long_clips, read_checkpoint, read_losses

from worldsmith.cli.main import main

SLOW = ["vision_sft_nano_tiny", "vision_sft_edge_tiny"]
QUICKEST = "vision_sft_super_tiny"
"""The twin of the default run; it trains adapters."""
LAYERS = 2
QUICK = [
    *("--trainer.cpu_threads", "1", "--trainer.grad_accum_iter", "1", "--model.config.compile.enabled", "false"),
    *("--model.config.network.num_hidden_layers", str(LAYERS), "--dataloader_train.dataset.num_video_frames", "9"),
    *("--dataloader_train.max_sequence_length", "null", "--dataloader_train.max_samples_per_batch", "4"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with two clips of 61 frames, which is the shortest window that the recipes take."""
    folder = tmp_path_factory.mktemp("twins")
    make_long_clips(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DATASET_PATH", str(folder / "data"))
        patch.setenv("WORLDSMITH_LATENT_CACHE", str(folder / "latents"))
        for name in ("WORLD_SIZE", "WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT"):
            patch.delenv(name, raising=False)
        yield folder


def train(twin: str, name: str, *words: str) -> Path:
    """Runs the twin's TOML file under another name; the run folder."""
    toml = Path(__file__).parents[2] / f"examples/toml/sft_config/{twin}.toml"
    assert main(["train", f"--sft-toml={toml}", *QUICK, "--job.name", name, *words]) == 0
    return Path("outputs/train/worldsmith/sft") / name


@pytest.mark.parametrize("twin", [*(pytest.param(name, marks=pytest.mark.slow) for name in SLOW), QUICKEST])
def test_a_twin_trains_from_a_base_resumes_and_is_exported(
    twin: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BASE_CHECKPOINT_PATH", "none")
    base = train(
        *(twin, f"{twin}_base", "--checkpoint.init", "scratch", "--checkpoint.load_path", "null"),
        *("--checkpoint.save_weights", "all", "--model.config.lora_enabled", "false", "--model.config.ema.enabled"),
        *("false", "--optimizer.keys_to_select", "[]", "--trainer.max_iter", "1"),
    )
    monkeypatch.setenv("BASE_CHECKPOINT_PATH", str(base))
    words = ("--trainer.max_iter", "2", "--checkpoint.save_iter", "1")
    run = train(twin, f"{twin}_run", *words)
    assert [step for step, *_ in read_losses(run)] == [1, 2]
    before, after = (read_checkpoint(path / f"checkpoints/iter_00000000{n}") for path, n in ((base, 1), (run, 2)))
    changed = {
        name.removeprefix("model/net.")
        for name, tensor in after.items()
        if name.startswith("model/net.") and not (name in before and torch.equal(tensor, before[name]))
    }
    if twin == "vision_sft_super_tiny":
        assert changed == {name.removeprefix("model/net.") for name in after if "lora_" in name and "model/" in name}
        assert len(changed) == LAYERS * 4 * 2  # four projections
        assert not any(name.startswith("model/") and "lora_" not in name for name in after)
    else:
        assert changed
        assert all("moe_gen" in n or n.startswith(("time_", "vae2llm", "llm2vae")) or "for_gen" in n for n in changed)

    # The last step again, from the checkpoint before it.
    shutil.rmtree(run / "checkpoints/iter_000000002")
    train(twin, f"{twin}_run", *words)
    again = read_checkpoint(run / "checkpoints/iter_000000002")
    assert again.keys() == after.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in after.items())

    assert main(["export", str(run), "--dtype", "float32", "-o", str(run / "pipeline")]) == 0
    exported = Cosmos3OmniTransformer.from_pretrained(run / "pipeline" / "transformer")
    live = exported.layers[1].self_attn.add_q_proj.weight
    source = before["model/net.language_model.model.layers.1.self_attn.q_proj_moe_gen.weight"]
    assert live.shape == source.shape
    assert not torch.equal(live, source), "the export has the weights of the base"
    torch.testing.assert_close(live.data, source, rtol=0, atol=1e-3)
    frozen = before["model/net.language_model.model.layers.1.self_attn.q_proj.weight"]
    assert torch.equal(exported.layers[1].self_attn.to_q.weight, frozen)


@pytest.mark.slow
def test_a_twin_runs_compiled_as_its_recipe_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes half a minute of a CPU; the loss is that of the run without."""
    scratch = ("--checkpoint.init", "scratch", "--checkpoint.load_path", "null", "--trainer.max_iter", "1")
    monkeypatch.setenv("BASE_CHECKPOINT_PATH", "none")
    plain = train("vision_sft_nano_tiny", "plain", *scratch)
    compiled = train("vision_sft_nano_tiny", "compiled", *scratch, "--model.config.compile.enabled", "true")
    assert read_losses(plain)[0][1:3] == pytest.approx(read_losses(compiled)[0][1:3], rel=1e-5)
