"""Compiling parts of a network: names stay, and what cannot be compiled says so instead of running slowly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from worldsmith.config.errors import UserError
from worldsmith.config.sections import CompileConfig
from worldsmith.training.parallel import compile_methods


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def run(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.linear(x)


@pytest.mark.parametrize("dynamic", [True, False])
def test_what_cannot_be_compiled_is_an_error_with_a_way_out(dynamic: bool) -> None:
    block = Broken()
    compile_methods([block], ["run"], CompileConfig(enabled=True, compile_dynamic=dynamic))
    assert list(block.state_dict()) == ["linear.weight", "linear.bias"]
    way_out = "set enabled = false" if dynamic else "set compile_dynamic = true .* or enabled = false"
    with pytest.raises(UserError, match=rf"model\.config\.compile: Broken\.run could not be compiled; {way_out}"):
        block.run(torch.ones(1, 2))


def test_an_error_of_the_code_itself_stays_what_it_is() -> None:
    block = Broken()
    compile_methods([block], ["run"], CompileConfig(enabled=False))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        block.run(torch.ones(1, 3))
