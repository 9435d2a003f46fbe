"""Values inside a simulation, and modules made without any."""

from functools import partial

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from worldsmith.families.cosmos3.network.architecture import tiny
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.models.real_values import in_simulation, real_values, without_values
from worldsmith.models.video_model import SampleLayout


def test_tensors_have_values_within_it_and_none_after_it():
    with FakeTensorMode():
        with real_values():
            inside = torch.arange(3)
        assert inside.tolist() == [0, 1, 2]
        assert isinstance(torch.arange(3), FakeTensor)
        assert real_values()(torch.arange)(2).tolist() == [0, 1]


def test_without_a_mode_nothing_happens():
    with real_values():
        assert torch.arange(2).tolist() == [0, 1]
    assert not in_simulation()


def test_a_simulation_is_known_from_within_other_modes_too():
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode(), FlopCounterMode(display=False):
        assert in_simulation()
        with real_values():
            assert not in_simulation()
    with FlopCounterMode(display=False):
        assert not in_simulation()


def test_a_module_without_values_has_its_type_from_the_start():
    with FakeTensorMode():
        made = without_values(partial(nn.Linear, 2, 3), torch.bfloat16, "cpu")
    assert isinstance(made.weight, FakeTensor)
    assert made.weight.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32


def test_a_pack_has_its_sizes_in_a_simulation():
    layouts = [SampleLayout(text_ids=[1] * n, latent_shape=(2, 4, 4 + n), fps=8.0) for n in (3, 4)]
    make = partial(pack_samples, layouts, tiny(), eos_id=2, vision_start_id=3)
    real = make()
    with FakeTensorMode():
        made = make()
    assert torch.equal(made.timestep_rows, real.timestep_rows)
    assert torch.equal(made.text_ids, real.text_ids)
