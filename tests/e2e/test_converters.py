"""Runs with converters: adapters over weights of few bits, and a converter of another package, from start to export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import qlora_runs
import reasoner_runs
import tiny_cogvideox
import tiny_flux
import tiny_wan
import torch
import toy_runs
from launch import launch
from qlora_runs import lora_config, qlora_config
from safetensors.torch import load_file

from worldsmith.actions.dry_run import plan_run
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.cli.main import main
from worldsmith.config import UserError
from worldsmith.models.converters import FrozenBase
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer

LAST = "checkpoints/iter_000000004"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base`, a full fine-tune; `lora` and `q8`, adapters over it; `whole`, over 4 bits; `parts`, that in two parts."""
    folder = tmp_path_factory.mktemp("qlora")
    world = toy_runs.make_world(folder / "world")
    Trainer(toy_runs.toy_config(world, steps=4), run_folder=folder / "base").train()
    runs = {"lora": lora_config(world), "whole": qlora_config(world), "q8": qlora_config(world, bits=8)}
    for name, config in {**runs, "first": qlora_config(world, steps=2), "parts": qlora_config(world)}.items():
        config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(folder / "base")
        config.checkpoint.keys_to_skip_loading = ["net_ema."]
        place = "parts" if name == "first" else name
        Trainer(config, run_folder=folder / place, resume_changed=name == "parts").train()
    return folder


def test_a_resumed_run_over_4_bits_is_the_uninterrupted_one_bit_for_bit(folder: Path) -> None:
    assert toy_runs.read_losses(folder / "parts") == toy_runs.read_losses(folder / "whole")
    expected, found = (toy_runs.read_checkpoint(folder / name / LAST) for name in ("whole", "parts"))
    assert not [name for name in expected if not torch.equal(expected[name], found[name])]
    assert not [name for name in expected if name.startswith("model/") and "lora_" not in name]


@pytest.mark.parametrize(("name", "make"), [("lora", lora_config), ("whole", qlora_config)])
def test_offloaded_frozen_weights_change_no_bit_of_a_resumed_run(name: str, make: Any, folder: Path) -> None:
    out = folder / f"{name}_offloaded"
    for steps in (2, 4):
        config = make(folder / "world", steps=steps)
        config.model.config.parallelism.offload = "frozen"
        config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(folder / "base")
        config.checkpoint.keys_to_skip_loading = ["net_ema."]
        Trainer(config, run_folder=out, resume_changed=True).train()
    assert toy_runs.read_losses(out) == toy_runs.read_losses(folder / name)
    expected, found = (toy_runs.read_checkpoint(place / LAST) for place in (folder / name, out))
    assert not [key for key in expected if not torch.equal(expected[key], found[key])]


def test_fewer_bits_change_the_losses_a_little(folder: Path) -> None:
    plain, q8, q4 = ([line[1] for line in toy_runs.read_losses(folder / name)] for name in ("lora", "q8", "whole"))
    distances = [max(abs(a - b) for a, b in zip(plain, other, strict=True)) for other in (q8, q4)]
    assert 0 < distances[0] < distances[1]
    assert q8 == pytest.approx(plain, rel=0.02)


def test_merging_adds_to_the_weights_in_full_precision(folder: Path) -> None:
    out = folder / "merged"
    words = ["export", str(folder / "whole"), "-o", str(out), "--format", "native", "--dtype", "float32"]
    assert main([*words, "--weights", "live"]) == 0
    stored = load_file(out / "model.safetensors")
    base, run = (toy_runs.read_checkpoint(folder / name / LAST) for name in ("base", "whole"))
    for index in range(2):
        path = f"model/net.layers.{index}"
        low, high = run[f"{path}.lora_A.weight"], run[f"{path}.lora_B.weight"]
        torch.testing.assert_close(
            stored[f"model.net.layers.{index}.weight"], base[f"{path}.weight"] + 4 / 2 * high @ low
        )
        assert torch.equal(stored[f"model.net.layers.{index}.bias"], base[f"{path}.bias"])
    assert json.loads((out / "config.json").read_text())["model"]["config"]["converters"] == []


def test_another_base_is_noticed(folder: Path, tmp_path: Path) -> None:
    Trainer(toy_runs.toy_config(folder / "world", steps=3), run_folder=tmp_path / "other").train()
    with pytest.raises(UserError, match="the frozen ones have changed"):
        find_model(folder / "whole", base=str(tmp_path / "other")).open()


def test_a_plan_says_what_is_converted(folder: Path, tmp_path: Path) -> None:
    config = qlora_config(folder / "world", leave_out=["layers.0"])
    lines = [line for line in plan_run(config, tmp_path, world_size=1) if line.startswith("converter")]
    assert lines == ["converter    FrozenBase: 1 layer (1 × layers.1); their weights take 0.00 MiB instead of 0.00 MiB"]


PACKAGE = '''
from worldsmith.models.converters.converter import Converter, replace_modules


def scaled(layer, factor):
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_layer = layer

        def forward(self, x):
            return factor * self.base_layer(x)

    return Scaled()


class Scale(Converter):
    """Multiplies what the last layer gives."""

    class Config(Converter.Config):
        factor: float = 1.0
        """By this."""

    def convert(self, network, parts):
        path = f"layers.{len(parts.layers) - 1}"
        return replace_modules(network, {path: scaled(network.get_submodule(path), self.config.factor)})
'''


def test_a_converter_of_another_package_by_file_and_by_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is trained, saved, resumed and exported; the weights have the plain names, and the model computes with it."""
    (tmp_path / "scale_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    world = toy_runs.make_world(tmp_path / "world")
    monkeypatch.setenv("TOY_ROWS", str(world / toy_runs.ROWS))
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    (tmp_path / "scaled.toml").write_text(
        '[job]\nexperiment = "toy"\nproject = "tests"\ngroup = "toy"\nname = "by_file"\n'
        '[trainer]\nmax_iter = 2\n[[model.converters]]\ntype = "scale_package.Scale"\nfactor = 3.0\n'
    )
    by_file = ["train", "--sft-toml", str(tmp_path / "scaled.toml")]
    assert main(by_file) == 2
    assert "add --trust scale_package" in capsys.readouterr().err
    trusting = ["--trust", "scale_package"]
    assert main([*by_file, *trusting]) == 0
    flags = ["--model.config.converters", "scale_package.Scale", "--model.config.converters.0.factor", "3"]
    by_flags = ["train", "toy", *trusting, *flags, "--job.name", "by_flags"]
    assert main([*by_flags, "--trainer.max_iter", "1"]) == 0
    assert main([*by_flags, "--trainer.max_iter", "2", "--resume-changed"]) == 0
    runs = [tmp_path / "out/tests/toy" / name for name in ("by_file", "by_flags")]
    assert toy_runs.read_losses(runs[0]) == toy_runs.read_losses(runs[1])
    assert main(["export", str(runs[0]), "-o", str(tmp_path / "plain"), "--dtype", "float32"]) == 0
    capsys.readouterr()
    for source in (str(runs[0]), str(tmp_path / "plain")):
        words = ["train", "toy", "--job.name", "without", "--checkpoint.init", "pretrained", "--dryrun"]
        assert main([*words, "--checkpoint.load_path", source]) == 0
        noted = "converters that the weights were trained with: ['scale_package.Scale']; now: []"
        assert noted in capsys.readouterr().out
    stored = load_file(tmp_path / "plain/model.safetensors")
    assert sorted(stored) == [f"model.net.layers.{i}.{leaf}" for i in range(2) for leaf in ("bias", "weight")]
    network = find_model(tmp_path / "plain").load(full_precision=True).network
    x = torch.ones(1, 4)
    weights = [stored[f"model.net.layers.{index}.weight"] for index in range(2)]
    biases = [stored[f"model.net.layers.{index}.bias"] for index in range(2)]
    torch.testing.assert_close(network(x), 3 * ((x @ weights[0].T + biases[0]) @ weights[1].T + biases[1]))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "before"), [("cogvideox", 30), ("flux", 30), ("wan", 30), ("reasoner", 60)])
def test_after_50_steps_the_loss_is_that_of_full_precision_within_2_percent(
    family: str, before: int, tmp_path: Path
) -> None:
    """Adapters on a tiny network, over a base of so many steps."""
    make_world, make_config = {
        "cogvideox": (tiny_cogvideox.make_world, tiny_cogvideox.tiny_config),
        "flux": (tiny_flux.make_world, tiny_flux.tiny_config),
        "wan": (tiny_wan.make_world, tiny_wan.tiny_config),
        "reasoner": (reasoner_runs.make_world, reasoner_runs.reasoner_config),
    }[family]
    world, losses = make_world(tmp_path / "world"), {}
    for bits in (None, 32, 8, 4):
        steps = before if bits is None else 50
        config = make_config(world, steps=steps)
        model, config.checkpoint.save_iter = config.model.config, steps
        config.scheduler = LambdaCosine.Config(cycle_lengths=[steps], warm_up_steps=[0])
        model.ema.trainable_only = True
        if bits is not None:
            model.lora_enabled, model.lora_rank, config.checkpoint.save_weights = True, 8, "trained"
            model.lora_target_modules = model.lora_target_modules or "q_proj,v_proj,o_proj,linear_fc1"
            config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(tmp_path / "None")
            config.checkpoint.keys_to_skip_loading = ["net_ema."]
        if bits in (4, 8):
            model.converters = [FrozenBase.Config(bits=bits)]
        Trainer(config, run_folder=tmp_path / str(bits)).train()
        losses[bits] = [line[1] for line in toy_runs.read_losses(tmp_path / str(bits))][-10:]
    for bits in (4, 8):
        assert losses[bits] != losses[32]
        assert sum(losses[bits]) == pytest.approx(sum(losses[32]), rel=0.02)


@pytest.mark.slow
def test_two_ranks_train_as_one_over_4_bits(folder: Path) -> None:
    for offload in ("none", "frozen"):
        out = folder / f"ranks_{offload}"
        launch(Path(qlora_runs.__file__), 2, [str(folder / "world"), str(out), offload])
    config = qlora_config(folder / "world")
    config.model.config.lora_dropout = 0.0
    Trainer(config, run_folder=folder / "single").train()
    ranks, offloaded, single = (
        toy_runs.read_losses(folder / name) for name in ("ranks_none", "ranks_frozen", "single")
    )
    assert offloaded == ranks
    assert [line[1] for line in ranks] == pytest.approx([line[1] for line in single], rel=1e-5)
