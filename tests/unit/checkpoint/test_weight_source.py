"""Finding weights, reading parts of them, and the account of what a warm start did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from stored_models import spec_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers.models.cosmos3_edge.configuration_cosmos3_edge import Cosmos3EdgeTextConfig

from worldsmith.checkpoint.dcp.dcp_folder import planner_of, save_part
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.sources.checkpoint_weights import CheckpointWeights
from worldsmith.checkpoint.sources.open_weights import StartWeights, open_weights
from worldsmith.checkpoint.sources.warm_start import compare_weights, load_weights
from worldsmith.checkpoint.sources.weight_source import MergedWeights
from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.network.architecture import NetworkConfig, edge, nano, super_
from worldsmith.families.cosmos3.network.network import Cosmos3Network, init_weights
from worldsmith.families.cosmos3.weights.tensor_names import (
    generation_name,
    nemotron_name,
    reasoner_name,
    text_settings,
)

STACK = "language_model.model."
LAYER = f"{STACK}layers.0.self_attn."
NETWORK = NetworkConfig(
    vocab_size=20, hidden_size=6, intermediate_size=10, num_hidden_layers=2, num_attention_heads=3,
    num_key_value_heads=1, head_dim=8, mrope_section=[2, 1, 1], latent_channel=4, action_gen=True,
)  # fmt: skip


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def write_native(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True)
    save_file({f"model.net.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def write_dcp(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_part(folder / "model", planner_of(tensors))
    return folder


class TestShards:
    """Each rank of a mesh reads its own part and no other; nothing is sent."""

    @pytest.fixture
    def last_of_four(self) -> Iterator[None]:
        """A group in which this process is the last of four. PyTorch remembers the shards of a process's first rank."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=3, world_size=4, store=FakeStore())
        yield
        dist.destroy_process_group()

    @pytest.mark.usefixtures("last_of_four")
    @pytest.mark.parametrize("layout", ["rows", "columns", "hybrid"])
    def test_a_shard_is_that_of_the_whole_tensor(self, tmp_path: Path, layout: str) -> None:
        """Rows that do not divide evenly (the last rank has fewer, or none), columns, and replicas of shards."""
        mesh = init_device_mesh("cpu", (2, 2) if layout == "hybrid" else (4,))
        placements = {"rows": [Shard(0)], "columns": [Shard(1)], "hybrid": [Replicate(), Shard(0)]}[layout]
        whole = {LAYER + "q_proj.weight": some(7, 8), LAYER + "q_norm.weight": some(3), "vae2llm.bias": some(1)}
        for name, value in whole.items():
            if layout == "columns" and value.ndim == 1:
                continue
            source = open_weights(write_native(tmp_path / f"{layout}{value.ndim}{len(value)}", {name: value}))
            expected = distribute_tensor(value, mesh, placements, src_data_rank=None)
            empty = distribute_tensor(torch.full_like(value, 9.0), mesh, placements, src_data_rank=None)
            assert isinstance(empty, DTensor)
            source.read_into({name: empty.double()})
            source.read_into({name: empty})
            assert torch.equal(empty.to_local(), expected.to_local()), name


def test_reading_converts_to_the_dtype_of_the_target(tmp_path: Path) -> None:
    """bf16 files into float32 parameters and back; `read` keeps what is stored."""
    value = some(4, 4).bfloat16()
    source = open_weights(write_native(tmp_path / "a", {"vae2llm.weight": value}))
    target = torch.zeros(4, 4)
    source.read_into({"vae2llm.weight": target})
    assert torch.equal(target, value.float())
    assert source.read("vae2llm.weight").dtype == torch.bfloat16
    with pytest.raises(KeyError, match="no weight other"):
        source.read("other")


class TestFinding:
    def test_what_is_no_model_says_what_would_be(self, tmp_path: Path) -> None:
        """Missing, empty, a file, foreign tensors: each is said, with the forms that are understood."""
        with pytest.raises(FileNotFoundError, match="no such folder"):
            open_weights(tmp_path / "nowhere")
        with pytest.raises(FileNotFoundError, match="no checkpoint in this folder; expected a run folder"):
            open_weights(tmp_path)
        (tmp_path / "model.pt").write_bytes(b"")
        with pytest.raises(UserError, match=r"load_path .*model.pt is a file; expected a run folder"):
            open_weights(tmp_path / "model.pt")
        (tmp_path / "bert").mkdir()
        save_file({"encoder.weight": some(2)}, tmp_path / "bert" / "model.safetensors")
        with pytest.raises(UserError, match=r"\(1, such as encoder.weight\) do not belong to a known model"):
            open_weights(tmp_path / "bert")

    def test_a_repository_in_the_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The name of a hub repository serves as load_path when the cache has it; no network is asked."""
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        home = tmp_path / "cache" / "models--org--base"
        write_native(home / "snapshots" / "abc", {"vae2llm.weight": some(2, 3)})
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text("abc")
        model = {"net.vae2llm.weight": torch.zeros(2, 3)}
        assert load_weights("org/base", model).loaded == ["net.vae2llm.weight"]
        assert torch.equal(model["net.vae2llm.weight"], some(2, 3))
        with pytest.raises(FileNotFoundError, match=r"checkpoint\.load_path org/other: looked for a local folder"):
            load_weights("org/other", model)

    def test_damaged_and_missing_files_are_named(self, tmp_path: Path) -> None:
        """A truncated file, and a shard that the index lists and that is not there."""
        folder = write_native(tmp_path / "cut", {"vae2llm.weight": some(40, 40)})
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(UserError, match=r"model.safetensors is damaged"):
            open_weights(folder)
        (tmp_path / "part").mkdir()
        index = {"weight_map": {"model.net.vae2llm.weight": "model-00001-of-00002.safetensors"}}
        (tmp_path / "part" / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(FileNotFoundError, match=r"lacks the weight file model-00001-of-00002\.safetensors"):
            open_weights(tmp_path / "part")

    def test_a_config_that_contradicts_is_refused(self, tmp_path: Path) -> None:
        """Biases, experts, and another family of networks."""
        tensors = {f"model.language_model.layers.0.self_attn.{name}_proj.weight": some(4, 4) for name in "qkvo"}
        for text, complaint in (
            ({"attention_bias": True, "model_type": "qwen3_vl_text"}, "attention_bias is true"),
            ({"model_type": "qwen3_vl_moe_text"}, "mixture-of-experts"),
            ({"model_type": "llama"}, "model_type is 'llama'; expected a Qwen3-VL"),
        ):
            folder = tmp_path / complaint[:4]
            folder.mkdir()
            save_file(tensors, folder / "model.safetensors")
            (folder / "config.json").write_text(json.dumps({"text_config": {"hidden_size": 4, **text}}))
            with pytest.raises(UserError, match=complaint):
                open_weights(folder)


def released(**text: Any) -> dict[str, Any]:
    """A config.json of the dense Qwen3-VL family, in the words of the released files; `text` are a size's own."""
    common = {"attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
              "initializer_range": 0.02, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
              "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 5000000, "vocab_size": 151936,
              "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20],
                               "rope_type": "default"}}  # fmt: skip
    return {"model_type": "qwen3_vl", "text_config": {**common, **text}, "vision_config": {"depth": 27}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (released(hidden_size=4096, intermediate_size=12288, num_attention_heads=32, num_hidden_layers=36), nano()),
        (released(hidden_size=5120, intermediate_size=25600, num_attention_heads=64, num_hidden_layers=64), super_()),
        ({"model_type": "cosmos3_edge", "text_config": Cosmos3EdgeTextConfig().to_dict()}, edge()),
    ],
    ids=["nano", "super", "edge"],
)
def test_the_config_of_a_released_reasoner_is_its_tier(config: dict[str, Any], expected: NetworkConfig) -> None:
    """Qwen3-VL 8B and 32B and the Edge reasoner (as transformers defines it) give exactly the networks of the tiers."""
    assert NetworkConfig(**text_settings(config)) == expected


def test_names_of_reasoners() -> None:
    assert reasoner_name("model.language_model.layers.3.mlp.up_proj.weight") == f"{STACK}layers.3.mlp.up_proj.weight"
    assert reasoner_name("model.layers.3.input_layernorm.weight") == f"{STACK}layers.3.input_layernorm.weight"
    assert reasoner_name("lm_head.weight") == "language_model.lm_head.weight"
    assert reasoner_name("model.visual.blocks.0.attn.qkv.weight") is None
    assert nemotron_name("backbone.layers.5.mixer.down_proj.weight") == f"{STACK}layers.2.mlp.down_proj.weight"
    assert nemotron_name("backbone.layers.4.norm.weight") == f"{STACK}layers.2.input_layernorm.weight"
    assert nemotron_name("vision.patch.weight") is None
    assert generation_name(f"{LAYER}mlp.up_proj.weight") == f"{LAYER}mlp_moe_gen.up_proj.weight"
    assert generation_name(f"{LAYER}norm.weight") == f"{LAYER}norm_moe_gen.weight"


class TestReport:
    def test_every_tensor_is_accounted_for(self, tmp_path: Path) -> None:
        """Loaded, skipped, started from live, unexpected, a rule without effect; all of it in lines and JSON."""
        folder = write_dcp(
            tmp_path / "a", {"net.vae2llm.weight": some(2, 3), "net.old": some(1), "net_ema.old": some(1)}
        )
        model = {
            "net.vae2llm.weight": torch.zeros(2, 3),
            "net.action2llm.fc.weight": torch.ones(2),
            "net_ema.vae2llm.weight": torch.zeros(2, 3),
        }
        report = load_weights(str(folder), model, keys_to_skip=["net_ema.", "action2llm", "tpyo"])
        assert report.loaded == ["net.vae2llm.weight"]
        assert report.skipped == ["net.action2llm.fc.weight", "net_ema.vae2llm.weight"]
        assert report.left == ["net.action2llm.fc.weight"]
        assert report.started_live == ["net_ema.vae2llm.weight"]
        assert report.unexpected == ["net.old", "net_ema.old"]
        assert report.rules_without_effect == ["tpyo"]
        assert torch.equal(model["net_ema.vae2llm.weight"], some(2, 3))
        assert bool((model["net.action2llm.fc.weight"] == 1).all())
        text = "\n".join(report.lines())
        assert 'no tensor name contains "tpyo", so it has no effect' in text
        assert "in the checkpoint but not in this network: 1 (net.old)\n" in text
        assert "EMA weights of the checkpoint, which are not loaded: 1 (net_ema.old)\n" in text
        assert json.loads(json.dumps(asdict(report)))["rules_without_effect"] == ["tpyo"]

    def test_averages_of_trained_weights_only(self, tmp_path: Path) -> None:
        """Where the average has no such name the live weight stands in; without any average all start live."""
        stored = {"net.vae2llm.weight": some(2), "net.llm2vae.weight": some(2, seed=1),
                  "net_ema.vae2llm.weight": some(2, seed=2)}  # fmt: skip
        folder = write_dcp(tmp_path / "a", stored)
        model = {name: torch.zeros(2) for name in (*stored, "net_ema.llm2vae.weight")}
        report = load_weights(str(folder), model)
        assert (len(report.loaded), report.started_live) == (4, [])
        assert torch.equal(model["net_ema.vae2llm.weight"], some(2, seed=2))
        assert torch.equal(model["net_ema.llm2vae.weight"], some(2, seed=1))
        native = write_native(tmp_path / "b", {"vae2llm.weight": some(2), "llm2vae.weight": some(2, seed=1)})
        report = load_weights(str(native), model)
        assert report.started_live == ["net_ema.vae2llm.weight", "net_ema.llm2vae.weight"]
        assert torch.equal(model["net_ema.vae2llm.weight"], some(2))

    def test_adapters_may_start_fresh_but_are_never_dropped_in_silence(self, tmp_path: Path) -> None:
        """A base without adapters suits a LoRA run; a LoRA checkpoint does not suit a run without, unless told to."""
        name = f"{LAYER}q_proj_moe_gen"
        base = {f"net.{name}.weight": some(4, 4)}
        pair = {f"net.{name}.lora_A.weight": some(2, 4), f"net.{name}.lora_B.weight": some(4, 2)}
        plain, tuned = write_dcp(tmp_path / "plain", base), write_dcp(tmp_path / "tuned", {**base, **pair})
        shapes = {key: list(value.shape) for key, value in {**base, **pair}.items()}
        report = compare_weights(open_weights(plain), shapes, [])
        assert report.initialised == report.left == list(pair)
        assert compare_weights(open_weights(tuned), shapes, []).loaded == list(shapes)
        with pytest.raises(UserError, match=r"contains adapters \(LoRA\) that this network does not have: 2 "):
            compare_weights(open_weights(tuned), {key: list(value.shape) for key, value in base.items()}, [])
        kept = compare_weights(open_weights(tuned), {key: list(value.shape) for key, value in base.items()}, ["lora_"])
        assert (kept.unexpected, kept.rules_without_effect) == (list(pair), [])
        other = {key.replace("q_proj", "k_proj"): shape for key, shape in shapes.items() if "lora" in key}
        with pytest.raises(UserError, match=r"Not in the checkpoint: 2 \(.*k_proj_moe_gen.lora_A"):
            compare_weights(open_weights(tuned), {**shapes, **other}, [])

    def test_what_a_caller_allows_may_be_absent(self, tmp_path: Path) -> None:
        folder = write_dcp(tmp_path / "a", {"net.vae2llm.weight": some(2)})
        wanted = {"net.vae2llm.weight": [2], "net.sound2llm.weight": [3]}
        with pytest.raises(UserError, match=r"Not in the checkpoint: 1 \(net.sound2llm.weight\)"):
            compare_weights(open_weights(folder), wanted, [])
        report = compare_weights(open_weights(folder), wanted, allow_initialised=["sound"])
        assert report.initialised == ["net.sound2llm.weight"]

    def test_choices_that_differ_are_notes(self, tmp_path: Path) -> None:
        """How positions are counted may differ from the source's, and is said."""
        folder = write_dcp(tmp_path / "a", {"net.vae2llm.weight": some(2)})
        network = {"base_fps": 24, "rope_theta": 5e6}
        (folder / "worldsmith.json").write_text(
            json.dumps({"model": {"name": "cosmos3", "config": {"network": network}}})
        )
        wanted = {"net.vae2llm.weight": [2]}
        report = compare_weights(open_weights(folder), wanted, [], spec=spec_of(NetworkConfig(base_fps=30)))
        assert report.notes == ["base_fps is 24 in the weights and 30 in the config"]
        with pytest.raises(UserError, match=r"rope_theta is 5000000.0 in the weights and 10000.0 in the config"):
            compare_weights(open_weights(folder), wanted, [], spec=spec_of(NetworkConfig(rope_theta=1e4)))


class TestStart:
    def test_first_weights_one_by_one_are_those_of_the_whole_network(self) -> None:
        """Every parameter, heads and modality embeddings included, has the bits that `init_weights` gives it."""
        network = Cosmos3Network(NETWORK)
        init_weights(network, 5)
        start = StartWeights(spec_of(NETWORK), 5)
        for name, value in network.state_dict().items():
            assert torch.equal(start.read(name), value), name

    def test_a_source_comes_first_unless_skipped(self, tmp_path: Path) -> None:
        own = some(6, 16)
        source = CheckpointWeights(write_dcp(tmp_path / "a", {"net.vae2llm.weight": own}) / "model")
        fresh = StartWeights(spec_of(NETWORK), 5)
        taken, skipped = (
            StartWeights(spec_of(NETWORK), 5, source),
            StartWeights(spec_of(NETWORK), 5, source, ["vae2llm"]),
        )
        assert torch.equal(taken.read("vae2llm.weight"), own)
        for start, name in ((skipped, "vae2llm.weight"), (taken, "llm2vae.weight")):
            assert torch.equal(start.read(name), fresh.read(name))


def test_merging_adds_the_product_to_each_adapted_weight(tmp_path: Path) -> None:
    """W + scale · B A in float32, of the live and of the averaged weights; others keep their bits."""
    base = f"{LAYER}q_proj_moe_gen"
    stored = {f"net.{base}.weight": some(4, 3), f"net.{base}.lora_A.weight": some(2, 3, seed=1),
              f"net.{base}.lora_B.weight": some(4, 2, seed=2), "net.vae2llm.weight": some(2, 2),
              f"net_ema.{base}.lora_A.weight": some(2, 3, seed=3), f"net_ema.{base}.lora_B.weight": torch.zeros(4, 2),
              }  # fmt: skip
    source = CheckpointWeights(write_dcp(tmp_path / "a", stored) / "model")
    merged = MergedWeights(source, 0.5)
    assert set(merged.shapes) == {f"{base}.weight", "vae2llm.weight"}
    expected = some(4, 3) + 0.5 * some(4, 2, seed=2) @ some(2, 3, seed=1)
    assert torch.allclose(merged.read(f"{base}.weight"), expected, atol=1e-6)
    assert torch.equal(merged.read(f"{base}.weight", average=True), some(4, 3))
    assert torch.equal(merged.read("vae2llm.weight"), some(2, 2))
    assert merged.changes_something()
    assert not merged.changes_something(average=True)


def test_short_names_of_released_models_are_those_of_their_repositories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever weights or a model are named; a local folder of that name comes first, and other names stay."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    for look in (open_weights, find_model):
        with pytest.raises(FileNotFoundError, match=r"nvidia/Cosmos3-Nano: looked for .* and on the hub"):
            look("Cosmos3-Nano")
        with pytest.raises(FileNotFoundError, match=r"Cosmos3-Neno: no such folder"):
            look("Cosmos3-Neno")
    write_dcp(tmp_path / "Cosmos3-Nano", {"net.vae2llm.weight": some(2)})
    assert list(open_weights("Cosmos3-Nano").shapes) == ["vae2llm.weight"]
