"""The code of an error stays in its message, whatever the message goes through."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.config.errors import ConfigError, Problem
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.distributed.coordination_group import PeerError, portable
from worldsmith.files.errors import CodedError, UserError

KINDS = [UserError, DataError, SaveError]


def fail(kind: type[CodedError]) -> None:
    raise kind("[E110] no room")


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_is_that_of_the_message(kind: type[CodedError]) -> None:
    assert kind("[E110] no room").code == 110
    assert kind("no room").code is kind().code is None


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_has_credentials(kind: type[CodedError]) -> None:
    told = str(kind("ftp://me:secret@host/a.mp4 and https://host/b.mp4?X-Amz-Signature=secret cannot be read"))
    assert told == "ftp://host/a.mp4 and https://host/b.mp4 cannot be read"
    assert SampleError("unreadable", "ftp://me:secret@host/a.mp4").detail == "ftp://host/a.mp4"


@pytest.mark.parametrize("kind", KINDS)
def test_other_processes_keep_the_code(kind: type[CodedError]) -> None:
    error = kind("[E110] no room")
    assert (copy := pickle.loads(pickle.dumps(error))).code == 110
    assert str(copy) == str(portable(error)) == str(error)
    assert "[E110] no room" in str(PeerError({1: error}))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        raised = pool.submit(fail, kind).exception()
    assert isinstance(raised, kind)
    assert (str(raised), raised.code) == (str(error), 110)


def test_errors_that_quote_another_keep_its_code() -> None:
    error = DataError("[E110] no room")
    assert UserError(str(error)).code == UserError(f"process 1 on host: {error}").code == 110
    mistake = ConfigError([Problem("job", str(error))])
    assert mistake.code == 110
    assert "[E110] no room" in str(portable(mistake))
