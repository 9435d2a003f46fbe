"""Encoding, validating and drawing samples in a simulation: by the run's own code, and what is held then."""

from dataclasses import replace

import pytest
from tiny_runs import make_world, tiny_config
from torch.distributed.tensor._op_schema import OpSchema

from worldsmith.config.tree.references import resolve
from worldsmith.models.converters.frozen_base import FrozenBase
from worldsmith.models.converters.quantized_linear import QuantizedLinear
from worldsmith.planning.simulation import tracked_run
from worldsmith.planning.simulation.simulate import other_phases, simulate
from worldsmith.planning.simulation.tracked_run import simulated_run
from worldsmith.planning.simulation_inputs import assumed_batches
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos

NAMES = ("encoding", "validation", "sampling")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    config = resolve(tiny_config(make_world(tmp_path_factory.mktemp("world"))))
    config.dataloader_train.latent_cache = "kept"
    config.dataloader_val, config.trainer.run_validation = config.dataloader_train, True
    config.trainer.callbacks["draw"] = DrawVideos.Config(every=100, samples=1)
    config.model.config.ema.enabled = True
    return config


@pytest.fixture(scope="module")
def phases(config):
    work = simulate(config, assumed_batches(config).batches, ranks=2, phases=NAMES)
    return {phase.name: phase for phase in work.phases}


def test_each_is_measured_beside_the_states_of_the_network(phases):
    states = ("parameters", "moments")
    assert phases.keys() >= set(NAMES)
    for name in NAMES:
        assert [phases[name].kinds[kind] for kind in states] == [phases["optimizer"].kinds[kind] for kind in states]
        assert "gradients" not in phases[name].kinds


def test_the_vae_is_held_where_it_encodes_and_decodes(config, phases):
    with simulated_run(config, assumed_batches(config).batches, ranks=2) as run:
        weights = sum(p.numel() * p.element_size() for p in run.model.vae.model.parameters())
    assert phases["encoding"].kinds["encoders"] == phases["sampling"].kinds["encoders"] >= weights
    assert "encoders" not in phases["validation"].kinds


def test_under_the_average_the_networks_own_weights_are_kept_beside_it(phases):
    assert phases["validation"].kinds["average"] == 2 * phases["optimizer"].kinds["average"]


def test_what_the_run_does_not_do_is_left_out(config):
    callbacks = {name: found for name, found in config.trainer.callbacks.items() if name != "draw"}
    loop = replace(config.trainer, run_validation=False, callbacks=callbacks)
    with simulated_run(replace(config, trainer=loop), assumed_batches(config).batches, ranks=2) as run:
        assert other_phases(run, ["validation", "sampling"]) == []


def test_each_replica_copies_what_it_holds_for_a_save(config):
    """Though only the first one writes."""
    batches, copies = assumed_batches(config).batches, {}
    for replicas in (1, 2):
        degrees = replace(config.model.config.parallelism, data_parallel_replicate_degree=replicas)
        model = replace(config.model, config=replace(config.model.config, parallelism=degrees))
        with simulated_run(replace(config, model=model), batches, ranks=4, loads=True) as run:
            run.prime()
            (saving,) = other_phases(run, ["saving"])
        copies[replicas] = saving.main_memory
    assert copies[2] == pytest.approx(2 * copies[1], rel=0.05)


def test_of_equal_frozen_layers_the_first_and_the_last_are_quantized(config, monkeypatch):
    """The layers between them get tensors of the same sizes, and no phase changes by a byte."""
    model = replace(
        config.model.config, lora_enabled=True, lora_target_modules="all-linear", converters=[FrozenBase.Config(bits=4)]
    )
    model.ema.trainable_only = True
    qlora = replace(
        config,
        model=replace(config.model, config=model),
        checkpoint=replace(config.checkpoint, save_weights="trained"),
        optimizer=replace(config.optimizer, keys_to_select=[], lr_multipliers={}),
    )
    batches, quantized, hold = assumed_batches(config).batches, [], QuantizedLinear.quantize
    monkeypatch.setattr(QuantizedLinear, "quantize", lambda layer, value: (quantized.append(layer), hold(layer, value)))
    found = {}
    for name in ("first and last", "all"):
        with monkeypatch.context() as patch:
            if name == "all":
                patch.setattr(tracked_run, "conversion_key", id)
            quantized.clear()
            with simulated_run(qlora, batches, ranks=1, loads=True) as run:
                phases = {phase.name: phase for phase in run.tracker.phases()}
                layers = run.model.quantized_layers.values()
                sizes = [{name: tuple(v.shape) for name, v in vars(x).items() if hasattr(v, "shape")} for x in layers]
                found[name] = phases["loading"], sizes, len(quantized)
    assert found["first and last"][:2] == found["all"][:2]
    shapes = {tuple(sorted(layer.items())) for layer in found["all"][1]}
    assert found["first and last"][2] <= 2 * len(shapes) < found["all"][2]


def test_the_arguments_of_an_update_are_listed_once_and_not_for_each_parameter(config, monkeypatch):
    """Listing them takes time in proportion to the parameters: for each of them this would be most of a long plan."""
    listed, specs = [], OpSchema.args_spec.fget
    with simulated_run(config, assumed_batches(config).batches, ranks=2) as run:
        monkeypatch.setattr(OpSchema, "args_spec", property(lambda schema: (listed.append(1), specs(schema))[1]))
        run.prime()
        assert 0 < len(listed) < len(list(run.model.network.parameters()))
