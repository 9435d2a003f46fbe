"""What is said of a process of the run that is no more."""

from __future__ import annotations

import pytest

from worldsmith.checkpoint.run.save_error import describe_causes, is_expected
from worldsmith.distributed.coordination_group import PeerError, lost_partner

GLOO = "[gloo/transport/tcp/pair.cc:537] Read error [10.0.0.7]:22203: Connection reset by peer. GLHF!"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (GLOO, " at 10.0.0.7"),
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [fe80::1]:4", " at fe80::1"),
        ("[gloo/transport/tcp/pair.cc:598] Write error [10.0.0.7]:1: Broken pipe", " at 10.0.0.7"),
        ("NCCL error: remote process exited or there was a network error", ""),
        ("Connection was likely closed. Did the remote server shutdown or crash?", ""),
    ],
)
def test_a_partner_that_has_ended_is_told_with_its_address(text: str, where: str) -> None:
    said = f"[E111] another process of the run{where} has ended or cannot be reached"
    assert lost_partner(RuntimeError(text)) == said
    of_a_clean_up = KeyError()
    of_a_clean_up.__context__ = RuntimeError(text)
    assert lost_partner(of_a_clean_up) == said
    failure = PeerError({1: RuntimeError(text)})
    assert (is_expected(failure), describe_causes(failure)) == (True, said)


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes"), ConnectionResetError("reset by peer")])
def test_another_error_is_none_of_a_partner(error: Exception) -> None:
    assert lost_partner(error) is None
