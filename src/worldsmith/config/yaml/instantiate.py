"""``{target: package.module.Class, params: {…}}`` nodes: classes that a config builds, nested ones first.

A config is data and not code, so little can be named: components and other building blocks (modules, optimizers,
schedules, data sets, whatever can be saved to a model hub) of our packages, torch, diffusers and transformers, and
any class of a package that the user trusts (``--trust PACKAGE``). A class is called, or its `from_pretrained` or
`from_config`; functions never are. `check_node` looks at names only and imports nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from worldsmith.config.declare.class_tags import check_name, import_name, tag_of, trusted_packages
from worldsmith.config.declare.configurable import Configurable
from worldsmith.config.declare.value_types import mismatch
from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.tree.merge import PARAMS, TARGET
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.plain import TAG, read_section
from worldsmith.config.tree.suggest import did_you_mean

LIBRARIES = ("diffusers", "torch", "transformers")
FACTORIES = ("from_pretrained", "from_config")
BUILDING_BLOCKS = {
    "torch.nn.modules.module.Module",
    "torch.optim.optimizer.Optimizer",
    "torch.optim.lr_scheduler.LRScheduler",
    "torch.utils.data.dataset.Dataset",
    "torch.utils.data.sampler.Sampler",
    "diffusers.utils.hub_utils.PushToHubMixin",
    "transformers.utils.hub.PushToHubMixin",
    "transformers.models.auto.auto_factory._BaseAutoModelClass",
    "transformers.models.auto.configuration_auto.AutoConfig",
    "transformers.models.auto.processing_auto.AutoProcessor",
    "transformers.models.auto.tokenization_auto.AutoTokenizer",
}
"""Classes whose descendants may be built without further trust: making one starts no program and loads no pickle."""
REFUSED_PARAMS = {
    "trust_remote_code": "it runs code that is downloaded with the weights",
    "custom_pipeline": "it runs code that is downloaded",
    "pickle_module": "it unpickles, which can run code",
}
MAX_DEPTH = 40


def is_node(value: Any) -> bool:
    return isinstance(value, dict) and TARGET in value


def check_node(node: Any, path: Path = ()) -> list[Problem]:
    """What is wrong with a node and those in it, as far as can be told without an import: shape, names, packages."""
    problems: list[Problem] = []
    _check(node, path, problems)
    return problems


def instantiate(
    node: Any,
    *,
    path: Path = (),
    extra: Mapping[str, Any] | None = None,
    places: Mapping[Path, Place] | None = None,
) -> Any:
    """Builds a node. `extra` are keywords that the caller adds to its params, such as sizes that others decide.

    Raises ConfigError, with the node's path: a shape, name or package that is not allowed, a parameter that the class
    does not take or misses, or whatever the constructor complains about.
    """
    try:
        problems = check_node(node, path)
        if problems:
            raise ConfigError(problems)
        return _build(node, path, dict(extra or {}))
    except ConfigError as error:
        raise error.located(places or {}) from error.__cause__


def allowed_packages() -> list[str]:
    return sorted({*trusted_packages(), *LIBRARIES})


def _check(node: Any, path: Path, problems: list[Problem]) -> None:
    if len(path) > MAX_DEPTH:
        problems.append(Problem(format_path(path), "nested too deeply"))
        return
    if not isinstance(node, dict):
        problems.append(mismatch(path, f"a node with {TARGET} and {PARAMS}", node))
        return
    for key in node:
        if key not in (TARGET, PARAMS):
            advice = did_you_mean(str(key), (TARGET, PARAMS)) or f"parameters of the class go into {PARAMS}"
            message = f"a node takes only {TARGET} and {PARAMS}"
            problems.append(Problem(format_path((*path, str(key))), message, hint=advice))
    where = format_path((*path, TARGET))
    if TARGET not in node:
        problems.append(Problem(where, f"a node needs a {TARGET}: package.module.Class"))
    else:
        try:
            check_name(node[TARGET], allowed_packages())
        except ValueError as error:
            problems.append(Problem(where, str(error)))
    params = node.get(PARAMS)
    if params is not None and not isinstance(params, dict):
        problems.append(mismatch((*path, PARAMS), "a table of the class's parameters", params))
        return
    for name, value in (params or {}).items():
        here = (*path, PARAMS, str(name))
        if not isinstance(name, str):
            problems.append(mismatch(here, "a parameter's name", name))
        _check_param(name, value, here, problems)


def _check_param(name: Any, value: Any, path: Path, problems: list[Problem]) -> None:
    """A parameter and all that is in it: constructors hand tables of keywords on."""
    if name in REFUSED_PARAMS:
        problems.append(Problem(format_path(path), f"this parameter is refused: {REFUSED_PARAMS[name]}"))
    elif is_node(value):
        _check(value, path, problems)
    elif isinstance(value, (dict, list)) and len(path) > MAX_DEPTH:
        problems.append(Problem(format_path(path), "nested too deeply"))
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_param(key, item, (*path, key if isinstance(key, int) else str(key)), problems)


def _build(node: dict[str, Any], path: Path, extra: dict[str, Any]) -> Any:
    target, params = node[TARGET], node.get(PARAMS) or {}
    cls, factory = _find_class(target, path)
    if factory is None and issubclass(cls, Configurable):
        return _build_component(cls, target, params, path, extra)
    arguments = {name: _built(value, (*path, PARAMS, name)) for name, value in params.items()}
    arguments.update(extra)
    call = getattr(cls, factory) if factory else cls
    _check_arguments(call, target, arguments, path)
    try:
        return call(**arguments)
    except Exception as error:
        raise _failed(target, path, error) from error


def _built(value: Any, path: Path) -> Any:
    """A parameter's value with the nodes in it built."""
    if is_node(value):
        return _build(value, path, {})
    if isinstance(value, dict):
        return {key: _built(item, (*path, key)) for key, item in value.items()}
    return [_built(item, (*path, i)) for i, item in enumerate(value)] if isinstance(value, list) else value


def _build_component(
    cls: type[Configurable], target: str, params: dict[str, Any], path: Path, extra: dict[str, Any]
) -> Any:
    """One of our components: its params are the fields of its Config, the extra keywords its runtime arguments."""
    problems: list[Problem] = []
    fields = {name: _as_section(value) for name, value in params.items()}
    config = read_section({TAG: tag_of(cls.Config), **fields}, [cls.Config], (*path, PARAMS), problems)
    if problems:
        raise ConfigError(problems)
    try:
        config.check()
        return config.build(**extra)
    except Exception as error:
        raise _failed(target, path, error) from error


def _as_section(value: Any) -> Any:
    """A field's value with the nodes in it in the spelling of the tree: ``{type: …, field: …}``."""
    if is_node(value):
        fields = {name: _as_section(item) for name, item in (value.get(PARAMS) or {}).items()}
        return {TAG: value[TARGET], **fields}
    if isinstance(value, dict):
        return {key: _as_section(item) for key, item in value.items()}
    return [_as_section(item) for item in value] if isinstance(value, list) else value


def _find_class(target: str, path: Path) -> tuple[type, str | None]:
    """The class, and which of its factories is meant. Raises ConfigError for what is no class that may be built."""
    name, _, last = target.rpartition(".")
    factory = last if last in FACTORIES else None
    try:
        cls = import_name(name if factory else target, allowed_packages())
        if not isinstance(cls, type):
            kind = "a module" if inspect.ismodule(cls) else f"a {type(cls).__name__}"
            raise ValueError(f"'{target}' is {kind}, no class; only classes and their {', '.join(FACTORIES)} are built")
        _require_building_block(cls, target)
        if factory and not inspect.ismethod(getattr(cls, factory, None)):
            raise ValueError(f"'{target}': {cls.__name__} has no {factory}")
    except ValueError as error:
        raise ConfigError([Problem(format_path((*path, TARGET)), str(error))]) from error
    return cls, factory


def _require_building_block(cls: type, target: str) -> None:
    home = cls.__module__.partition(".")[0]
    if home not in allowed_packages():
        raise ValueError(f"'{target}' is the class {cls.__module__}.{cls.__qualname__}, outside the trusted packages")
    if home in trusted_packages() and home != "worldsmith":
        return
    names = {f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__}
    if not issubclass(cls, Configurable) and not names & BUILDING_BLOCKS:
        raise ValueError(
            f"'{target}' is no building block (module, optimizer, schedule, data set, model, tokenizer); "
            f"if it has to be built all the same, add --trust {home}"
        )


def _check_arguments(call: Any, target: str, arguments: dict[str, Any], path: Path) -> None:
    """Raises ConfigError for each parameter that the signature does not have, and for those that are missing."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (ValueError, TypeError):  # written in C, without a signature: the call itself will complain
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    swallows = any(p.kind is p.VAR_KEYWORD for p in parameters)
    problems: list[Problem] = []
    for name in arguments:
        if name not in named and not swallows:
            advice = did_you_mean(name, named) or f"it takes: {', '.join(named) or 'nothing'}"
            problems.append(Problem(format_path((*path, PARAMS, name)), f"{target} takes no '{name}'", hint=advice))
    missing = [name for name, p in named.items() if p.default is p.empty and name not in arguments]
    if missing:
        problems.append(Problem(format_path(path), f"{target} needs {', '.join(missing)} in {PARAMS}"))
    if problems:
        raise ConfigError(problems)


def _failed(target: str, path: Path, error: Exception) -> ConfigError:
    return ConfigError([Problem(format_path(path), f"{target} could not be built: {type(error).__name__}: {error}")])
