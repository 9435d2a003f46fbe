"""`target`/`params` nodes: what may be built, what is refused, and what the errors say."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from worldsmith.config import ConfigError
from worldsmith.config.declare import class_tags
from worldsmith.config.errors import Place
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.yaml.instantiate import BUILDING_BLOCKS, check_node, instantiate


@pytest.fixture(autouse=True)
def fresh_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_tags, "_TRUSTED", {"worldsmith", __name__.partition(".")[0]})


def tag(cls: type) -> str:
    return str(to_dict(cls.Config())["type"])  # type: ignore[attr-defined]


def test_nested_nodes_are_built_inside_out() -> None:
    node = {
        "target": "torch.nn.TransformerEncoder",
        "params": {
            "encoder_layer": {
                "target": "torch.nn.TransformerEncoderLayer",
                "params": {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True},
            },
            "num_layers": 2,
        },
    }
    built = instantiate(node, extra={"enable_nested_tensor": False})
    assert len(built.layers) == 2
    assert built.layers[0].linear1.out_features == 16


def test_from_config_is_a_factory() -> None:
    config = {"num_train_timesteps": 7}
    node = {"target": "diffusers.UniPCMultistepScheduler.from_config", "params": {"config": config}}
    assert instantiate(node).config.num_train_timesteps == 7


def test_a_component_of_ours_is_built_from_its_config(t: ModuleType) -> None:
    node = {"target": tag(t.Generator), "params": {"ema": {"target": tag(t.Ema), "params": {"rate": 0.5}}}}
    built = instantiate(node, extra={"device": "meta"})
    assert isinstance(built, t.Generator)
    assert (built.config.ema.rate, built.device) == (0.5, "meta")
    with pytest.raises(ConfigError, match="did you mean 'rate'") as caught:
        instantiate({"target": tag(t.Ema), "params": {"rat": 1.0}}, path=("model", "ema"))
    assert caught.value.problems[0].path == "model.ema.params.rat"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("os.system", "Python's own library cannot be trusted"),
        ("builtins.eval", "Python's own library cannot be trusted"),
        ("subprocess.Popen", "Python's own library cannot be trusted"),
        ("numpy.load", "--trust numpy"),
        ("torch.load", "is a function, no class"),
        ("torch.hub.load", "is a function, no class"),
        ("torch.jit.load", "is a function, no class"),
        ("diffusers.utils.export_to_video", "is a function, no class"),
        ("torch.nn.Module.load_state_dict", "is a function, no class"),
        ("torch.nn", "is a module, no class"),
        ("torch.os.system", "'os' is the module os"),
        ("torch.nn.modules.module.functools.partial", "'functools' is the module functools"),
        ("torch.package.PackageImporter", "no building block"),
        ("torch.utils.cpp_extension.BuildExtension", "no building block|outside the trusted|importing"),
        ("torch.nn.modules.module.OrderedDict", "outside the trusted packages"),
        ("worldsmith.config.load.Loaded", "no building block"),
        ("torch.nn.Lineer", "did you mean 'Linear'"),
        ("torch.nn.Module.from_config", "has no from_config"),
        ("__is_first_stage__", "no class name"),
        ("torch.nn.Linear()", "no class name"),
        (3, "no class name"),
    ],
)
def test_targets_that_are_refused(target: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        instantiate({"target": target}, path=("model", "net"))
    assert caught.value.problems[0].path == "model.net.target"


def test_a_trusted_package_may_build_any_of_its_classes_but_no_function(t: ModuleType) -> None:
    home = t.__name__
    node = {"target": f"{home}.Ema.Config", "params": {"rate": 0.5}}
    assert instantiate(node) == t.Ema.Config(rate=0.5)
    with pytest.raises(ConfigError, match="is a function"):
        instantiate({"target": f"{home}.small"})


@pytest.mark.parametrize(
    ("params", "path", "words"),
    [
        ({"in_feature": 3, "out_features": 4}, "net.params.in_feature", "did you mean 'in_features'"),
        ({"in_features": 3}, "net", "needs out_features"),
        ({"in_features": "x", "out_features": 4}, "net", "torch.nn.Linear could not be built: TypeError"),
        ([1], "net.params", "expected a table"),
        ({1: 2}, "net.params.1", "a parameter's name"),
    ],
)
def test_errors_name_the_node_the_class_and_the_parameter(params: Any, path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        instantiate({"target": "torch.nn.Linear", "params": params}, path=("net",))
    assert path in [problem.path for problem in caught.value.problems]


def test_what_a_constructor_raises_stays_the_cause_and_has_its_place() -> None:
    node = {"target": "torch.nn.MultiheadAttention", "params": {"embed_dim": 8, "num_heads": 3}}
    places = {("a", "b"): Place("x.yaml", 4, 2)}
    with pytest.raises(ConfigError, match="must be divisible") as caught:
        instantiate(node, path=("a", "b"), places=places)
    assert (caught.value.problems[0].file, caught.value.problems[0].line) == ("x.yaml", 4)
    assert isinstance(caught.value.__cause__, AssertionError)


@pytest.mark.parametrize("name", ["trust_remote_code", "custom_pipeline", "pickle_module"])
def test_parameters_that_run_code_are_refused_wherever_they_hide(name: str) -> None:
    inner = {"target": "transformers.AutoModel.from_pretrained", "params": {"model_kwargs": [{name: True}]}}
    problems = check_node({"target": "torch.nn.Sequential", "params": {"args": [inner]}})
    assert [problem.path for problem in problems] == [f"params.args[0].params.model_kwargs[0].{name}"]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"params": {}}, "needs a target"),
        ("torch.nn.Linear", "expected a node"),
        ({"target": "torch.nn.Linear", "param": {}}, "did you mean 'params'"),
        ({"target": "torch.nn.Linear", "bias": True}, "go into params"),
    ],
)
def test_shapes_that_are_no_node(node: Any, words: str) -> None:
    assert any(words in problem.render() for problem in check_node(node))


def test_nodes_without_end_are_refused() -> None:
    node: dict[str, Any] = {"target": "torch.nn.Identity"}
    for _ in range(100):
        node = {"target": "torch.nn.Identity", "params": {"x": node}}
    assert "nested too deeply" in check_node(node)[0].render()


def test_checking_a_node_imports_nothing() -> None:
    code = (
        "import sys; from worldsmith.config.yaml.instantiate import check_node\n"
        "node = {'target': 'torch.nn.Linear', 'params': {'x': {'target': 'transformers.AutoModel.from_pretrained'}}}\n"
        "assert check_node(node) == []\n"
        "assert not {'torch', 'transformers', 'diffusers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_building_blocks_exist_under_the_names_that_are_listed() -> None:
    """A library that moves a base class would silently shut its descendants out."""
    import importlib

    for name in BUILDING_BLOCKS:
        module, _, cls = name.rpartition(".")
        found = getattr(importlib.import_module(module), cls)
        assert f"{found.__module__}.{found.__qualname__}" == name
