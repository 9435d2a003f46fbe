"""Which of the errors of a log is the cause, where it stands, and on which ranks."""

from worldsmith.tools.explain.causes import find_causes, last_error
from worldsmith.tools.explain.explanation import explain_message
from worldsmith.tools.explain.logs import split

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:35021"
BECAUSE = "The above exception was the direct cause of the following exception:"


def traceback(error: str, prefix: str = "") -> str:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 3, in step', "    loss.backward()", error, ""]
    return "\n".join(f"{prefix}{line}" for line in lines)


def found(*texts: str) -> list[int]:
    streams = [stream for i, text in enumerate(texts) for stream in split(text, f"log{i}")]
    return [cause.pattern.id for cause in find_causes(streams)]


def test_the_root_of_a_chain_comes_first() -> None:
    chain = "\n\n".join([traceback("OSError: [Errno 28] No space left on device"), BECAUSE, traceback(OOM)])
    assert found(chain) == [401, 28]
    assert (
        found(chain.replace(BECAUSE, "During handling of the above exception, another exception occurred:"))[0] == 401
    )
    assert last_error(split(chain, "log"))[0].startswith("OSError")  # type: ignore[index]


def test_what_ended_the_run_comes_before_what_it_survived() -> None:
    survived = traceback("OSError: [Errno 24] Too many open files: 'a'")
    assert found("\n".join([survived, "step 12 loss 0.3", traceback(OOM)])) == [28, 403]
    warned = "WARNING: Asked to sample `fps` frames per second but no video metadata was provided"
    assert found("\n".join([warned, OOM])) == [28, 23]


def test_a_partner_that_only_noticed_comes_last_wherever_it_stands() -> None:
    assert found(traceback(LOST), traceback(OOM)) == [28, 305]
    ranks = traceback(LOST, "[rank0]: ") + "\n" + traceback(OOM, "[rank1]: ")
    assert found(ranks) == [28, 305]
    assert found(traceback(LOST)) == [305]
    assert found(f"{LOST}\n{OOM}") == [28, 305]


def test_an_error_of_many_ranks_is_one_with_its_ranks_and_its_first_line() -> None:
    log = "\n".join(f"[rank{rank}]: {OOM.replace('2.50', f'{rank}.50')}" for rank in (3, 1, 2, 1))
    (cause,) = find_causes(split(log, "log"))
    assert (cause.ranks, len(cause.places)) == ([1, 2, 3], 4)
    assert (cause.place.line, cause.place.rank, cause.groups) == (1, 3, {"asked": "3.50 GiB"})
    tee = "\n".join(f"[default{rank}]:{OOM}" for rank in (0, 1))
    assert find_causes(split(tee, "log"))[0].ranks == [0, 1]
    labelled = "\n".join(f" {rank}: {OOM}" for rank in (0, 12))
    assert find_causes(split(labelled, "log"))[0].ranks == [0, 12]


def test_only_the_last_start_of_an_appended_log_counts() -> None:
    start = "--- started 2026-03-01T10:00:00+00:00 on host, process 7, rank 0 of 2"
    first, second = f"{start}\n{OOM}\n", f"{start}\nstep 3 loss 0.2\n"
    assert found(first) == [28]
    assert found(first + second) == []


def test_programs_in_a_traceback_are_not_read() -> None:
    shown = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    raise OSError("[Errno 28]")\nKeyError: 1'
    )
    assert found(shown) == []
    assert last_error(split(shown, "log"))[0] == "KeyError: 1"  # type: ignore[index]


def test_colours_and_bars_do_not_hide_an_error() -> None:
    assert found(f" 3%|=   | 3/100\r\x1b[31m{OOM}\x1b[0m\r\n") == [28]


def test_lines_that_differ_in_numbers_are_looked_at_once_but_exit_codes_are_not() -> None:
    assert found("exitcode  : 1 (pid: 7)\nexitcode  : -9 (pid: 8)") == [202]


def test_reasons_are_explained_where_they_end_a_run_and_not_where_they_are_counted() -> None:
    assert found("data         12 records, 11 windows; left out: missing_file 1 (12 clips opened)") == []
    assert found("error: 9 of 12 samples are bad, 1 are allowed (left out: missing_file 9; listed in q)") == [24]
    assert found("error: chats has 12 records and no usable sample (left out: no_video_fps 12). Set it") == [15]


def test_what_counts_only_where_it_repeats_is_nothing_once() -> None:
    assert found("Error processing sample: list index out of range") == []
    assert found("Error processing sample: list index out of range\n" * 20) == [20]


def test_two_numbers_of_a_line_say_which_side_has_too_many() -> None:
    counts = "ValueError: Image features and image tokens do not match: tokens: {}, features {}"
    assert found(counts.format(1900, 1332)) == [601]
    assert found(counts.format(1332, 1900)) == [18]
    assert found(counts.format(1333, 1332)) == found(counts.format(1332, 1333)) == [631]
    assert found(counts.split(":")[1].strip()) == [631]
    assert found(counts.format(1, 484)) == found(counts.format(0, 64)) == found(counts.format(12, 6400)) == [630]


def test_the_rank_that_failed_first_by_the_report_of_torchrun_comes_first() -> None:
    report = "Root Cause (first observed failure):\n[0]:\n  time : 2026-03-01_10:00:00\n  rank      : 1 (local_rank: 1)"
    late = traceback("RuntimeError: CUDA error: invalid device ordinal", "[rank0]: ")
    log = "\n".join([late, traceback(OOM, "[rank1]: "), report])
    assert found(log)[:2] == [28, 230]
    assert found(log.replace("rank      : 1", "rank      : 0"))[:2] == [230, 28]


def test_a_rank_that_died_comes_before_the_time_out_of_those_that_waited() -> None:
    waited = "[rank0]: [E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
    aborted = "torch.distributed.elastic: failed (exitcode: -6) local_rank: 0 (pid: 7) of binary: python"
    assert found(f"{waited}\n{aborted}")[:1] == [303]
    assert not {227, 411} & set(found(f"{waited}\n{aborted}"))
    assert found(f"{waited}\n{traceback(OOM, '[rank1]: ')}\n{aborted}")[0] == 28


def test_shared_memory_that_is_too_small_is_no_full_disk() -> None:
    assert found("h1:7:9 [0] NCCL WARN Call to posix_fallocate failed : No space left on device") == [25]
    assert found("NCCL WARN Error: failed to extend /dev/shm/nccl-Ab12 to 33030532 bytes") == [25]


def test_cosmos_rl_in_rl_mode_without_rl_is_a_possibility_and_only_with_rollouts() -> None:
    log = "Number of rollout replicas: {}\nsocket.gaierror: [Errno -2] Name or service not known"
    (cause,) = find_causes(split(log.format(1), "log"))
    assert cause.pattern.id == 2
    assert "Possibly train.train_policy.type is missing in the spec" in cause.pattern.means
    assert found(log.format(0)) == [309]


def test_programs_in_a_box_of_rich_and_in_a_notebook_are_not_read() -> None:
    code = "raise OSError('No space left on device')"
    box = f"╭──── Traceback (most recent call last) ────╮\n│ /a/b.py:7 in f │\n│ ❱ 7 │ {code} │\n╰────╯\n{OOM}"
    assert found(box) == [28]
    cell = f"OutOfMemoryError        Traceback (most recent call last)\nCell In[3], line 1\n----> 1 {code}\n\n{OOM}"
    assert found(cell) == [28]


def test_lines_after_an_indented_traceback_are_read() -> None:
    inner = ["    Traceback (most recent call last):", '      File "a.py", line 3, in step', "        loss.backward()"]
    assert found("\n".join([*inner, f"    {OOM}"])) == [28]


def test_a_doubt_is_said_only_where_nothing_else_is_known() -> None:
    inside = '  File "/venv/lib/python3.11/site-packages/peft/tuners/lora/layer.py", line 45, in forward'
    failed = f"{inside}\nIndexError: tuple index out of range"
    warned = (
        "[W socket.cpp:401] [c10d] The client socket cannot be initialized (errno: 97 - Address family not supported)"
    )
    assert found(failed) == [704]
    assert found(f"{failed}\n{OOM}") == [28]
    assert found(f"{warned}\n{failed}") == [704]
    assert found(f"{failed}\n{LOST}") == [704, 305]
    assert found(f"{inside}\n{LOST}") == [305]
    assert found(failed.replace("peft/tuners/lora", "shop")) == []
    assert explain_message(failed, None) == []
    assert explain_message(f"{failed}\n{OOM}", None)[0].startswith("meaning: The GPU does not have enough free memory")


def test_a_library_is_suspected_only_of_what_its_own_frame_raised() -> None:
    library = '  File "/venv/lib/python3.11/site-packages/peft/tuners/lora/layer.py", line 45, in forward'
    hands_on = '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1739, in _call_impl'
    own = '  File "/data/train.py", line 7, in step\n    run(x)'
    assert found(f"{own}\n{library}\nValueError: seven") == [704]
    assert found(f"{own}\n{library}\n{hands_on}\nValueError: seven") == [704]
    assert found(f"{library}\n{own}\nValueError: seven") == []
    assert found(f"{library}\nOddError: six\nValueError: seven") == []
    scheduler = library.replace("peft/tuners/lora/layer", "diffusers/schedulers/scheduling_euler")
    assert found(f"{scheduler}\nIndexError: list index out of range") == [836]
    assert found(f"{scheduler}\n{own}\nIndexError: list index out of range") == []


def test_what_the_line_says_comes_before_what_the_last_line_says() -> None:
    kernel = "CUDA error (/x/flash_fwd_launch_template.h:188): invalid argument"
    assert found(f"{kernel}\nRuntimeError: Engine core initialization failed. See root cause above.") == [251]
    tensor = "ValueError: Unable to create tensor, you should probably activate truncation and/or padding"
    assert found(tensor) == [613]
    assert found(f"ValueError: too many dimensions 'str'\n{tensor}") == [612]
    assert found(f"ValueError: expected sequence of length 7 at dim 1 (got 9)\n{tensor}") == [604]


def test_an_error_without_a_traceback_is_the_last_one_where_there_is_none_with_it() -> None:
    bare = "ValueError: seven\nmy.OddError: eight"
    assert last_error(split(f"step 1\n{bare}\nstep 2", "log")) == ("my.OddError: eight", ("log", 3, None))
    assert last_error(split(f"{traceback('KeyError: 1')}\n{bare}", "log"))[0] == "KeyError: 1"  # type: ignore[index]
    assert last_error(split("loss: 0.3\nNote: Error rates: 3", "log")) is None
