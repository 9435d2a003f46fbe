"""What `worldsmith check` says before a reasoner's run: a row for each thing that is known to stop or to spoil one.

The names of the rows: c1 … c15 are checks before a launch, d15 … d27 what goes wrong with data, by their usual numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import reasoner_runs
from hub_server import serving_hub

from worldsmith.checkpoint.sources.remote_model import fetch_model
from worldsmith.cli.main import main
from worldsmith.config.errors import ConfigError
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.files.remote_folder import RemoteModel
from worldsmith.tools.check.check import CheckData
from worldsmith.tools.check.readiness import Needs, inspect_models
from worldsmith.training.run_folder import ROOT_VARIABLES

Records = list[dict[str, Any]]
Change = Callable[[Records, Any], Any]
TURNS = [{"from": "human", "value": "Is it?"}, {"from": "gpt", "value": "no"}]
LONG = [{"from": "human", "value": "x " * 600}, TURNS[1]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four records with a video (0, 1, 3, 4), one with an image (2), one of text (5)."""
    return reasoner_runs.make_world(tmp_path_factory.mktemp("preflight") / "world", samples=6)


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ROOT_VARIABLES[0], str(tmp_path / "outputs"))
    return tmp_path


def run_of(world: Path, folder: Path, change: Change) -> Any:
    """The tiny run over a copy of the records, after `change(records, run)`, which may give another value to write."""
    records = json.loads((world / "data" / "annotations.json").read_text())
    config = reasoner_runs.reasoner_config(world)
    file = folder / "annotations.json"
    config.dataloader_train.dataset = LlavaDataset.Config(path=str(file), media_root=str(world / "data"))
    config.trainer.grad_accum_iter = 1
    written = change(records, config)
    file.write_text(json.dumps(records if written is None else written))
    return config


def check(config: Any, sources: Any = None, **settings: Any) -> tuple[dict[str, Any], int, str]:
    """Facts, exit code, and what people read, in one line."""
    result = (
        CheckData.Config(**{"workers": 0, **settings}).build(run=Loaded(resolve(config), sources=sources or {})).run()
    )
    return json.loads(json.dumps(dict(result.facts))), result.code, " ".join(" ".join(result.lines).split())


def put(**values: Any) -> Change:
    """Changes the first record."""
    return lambda records, _: records[0].update(values)


def on(path: str, value: Any, also: Change = lambda *_: None) -> Change:
    """Changes a setting of the run, and then what `also` changes."""

    def change(records: Records, run: Any) -> Any:
        *sections, name = path.split(".")
        section = run
        for part in sections:
            section = getattr(section, part)
        setattr(section, name, value)
        return also(records, run)

    return change


def rate(value: float) -> Change:
    return lambda records, _: [{**record, "video_fps": value} if "video" in record else record for record in records]


DATA, LOADER = "dataloader_train.dataset", "dataloader_train"
STOPS: dict[str, tuple[Change, str]] = {
    "c3 no annotations": (on(f"{DATA}.path", "/no/where.json"), "/no/where.json does not exist"),
    "c3 no model": (on("model.config.policy.backbone.model_name", "/no/model"), "/no/model: no such folder"),
    "c4 another shape": (lambda *_: {"videos": []}, "expected a list of records, an object with such a list as"),
    "c4 d15 no video_fps": (
        on(f"{DATA}.video_fps", "require", put(video_fps=8)),
        "3 of 4 records with a video have no video_fps, but video_fps = 'require' is set: record 1 (chat1), "
        "record 3 (chat3), record 4 (chat4)",
    ),
    "c11 d22 no records": (lambda *_: [], "no sample of"),
    "c12 d18 none fits": (
        on(f"{LOADER}.max_sequence_length", 20),
        "none fits into a pack: set dataloader_train.max_sequence_length to at least",
    ),
    "c12 d18 one too long ends the run": (
        on(f"{LOADER}.on_overlong", "error", lambda records, _: records[5].update(conversations=LONG)),
        "dataloader_train.on_overlong is 'error', but 1 samples (16.7%) exceed the token limit: set "
        "dataloader_train.max_sequence_length to at least 12",
    ),
    "d20 too many broken samples": (lambda records, _: [{**one, "video": "gone.mp4"} for one in records], "are bad"),
}


@pytest.mark.parametrize("row", STOPS)
def test_what_stops_a_run_is_exit_code_2(row: str, world: Path, tmp_path: Path) -> None:
    change, words = STOPS[row]
    facts, code, text = check(run_of(world, tmp_path, change))
    assert (code, facts["can_start"]) == (2, False)
    assert any(words in problem for problem in facts["problems"]), facts["problems"]
    assert len(facts["problems"]) == len(set(facts["problems"]))
    assert "PROBLEM" in text
    assert words[:40] in text


Seen = Callable[[dict[str, Any], str], bool]
"""What must hold for the facts of the training data, and what people read."""
TELLS: dict[str, tuple[Change, Seen]] = {
    "c4 wrapped": (lambda records, _: {"info": 1, "items": records}, lambda train, _: train["kept"] == 6),
    "c4 one record": (lambda records, _: records[0], lambda train, _: train["kept"] == 1),
    "c4 no rate, and none required": (
        put(video_fps=8),
        lambda train, text: train["flags"][0]["count"] == 3 and "3 of 4 records with a video have no" in text,
    ),
    "c4 a rate that is 2 % off": (
        rate(8.16),
        lambda train, text: (
            train["notes"] == {"video_fps_disagrees": 4}
            and len(train["said"]["video_fps_disagrees"]) == 4
            and "chat0 (record 0) states 8.16 fps" in train["said"]["video_fps_disagrees"][0]
            and "video_fps_disagrees 4: chat0 (record 0)" in text
        ),
    ),
    "c4 a rate that is 0.5 % off": (rate(8.04), lambda train, _: train["notes"] == {}),
    "c4 a rate that is not used": (
        on(f"{DATA}.video_fps", "probe", rate(30)),
        lambda train, _: train["notes"] == {} and train["flags"] == [],
    ),
    "c11 the same id twice": (
        put(id="chat1"),
        lambda _, text: (
            "2 of 6 records have an id that occurs" in text and "record 0 (chat1), record 1 (chat1)" in text
        ),
    ),
    "c11 d24 a medium that is not there": (
        put(video="gone.mp4"),
        lambda train, _: [
            [one["index"], one["key"]] for one in train["left_out"]["missing_file"]["examples"]
        ] == [[0, "chat0"]],
    ),
    "c11 one turn": (
        put(conversations=TURNS[:1]),
        lambda train, _: train["left_out"]["no_answer"]["examples"][0]["index"] == 0,
    ),
    "c11 more tags than media": (
        put(conversations=[{"from": "human", "value": "<video> <video>"}, TURNS[1]]),
        lambda train, _: "user's texts contain 2 <video>" in train["left_out"]["bad_record"]["examples"][0]["detail"],
    ),
    "c12 some are too long": (
        lambda records, _: records[5].update(conversations=LONG),
        lambda train, text: (
            (train["over_cap"], train["kept"], train["needed_cap"]) == (1, 5, train["tokens"]["max"] + 1)
            and f"set dataloader_train.max_sequence_length to at least {train['needed_cap']} (now 500)" in text
            and "which 1 of them (16.7%) do not stay below" in text
        ),
    ),
    "d21 images are null": (put(images=None, image=None), lambda train, _: train["kept"] == 6),
    "d27 an answer without words": (
        put(conversations=[TURNS[0], {"from": "gpt", "value": " "}]),
        lambda train, _: train["left_out"]["no_answer"]["count"] == 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", TELLS)
def test_what_a_run_can_do_with_is_told(row: str, world: Path, tmp_path: Path) -> None:
    change, holds = TELLS[row]
    facts, code, text = check(run_of(world, tmp_path, change))
    assert (code, facts["problems"]) == (0, [])
    assert holds(facts["data"]["train"], text), facts["data"]["train"]


def test_the_cap_that_is_said_is_the_one_that_does(world: Path, tmp_path: Path) -> None:
    """c12: with it nothing is left out, with one less the longest is; headers tell it without decoding."""
    config = run_of(world, tmp_path, lambda records, _: records[5].update(conversations=LONG))
    by_headers, read = (check(config, headers=headers)[0]["data"]["train"] for headers in (True, False))
    assert (by_headers["decoded"], read["decoded"]) == (False, True)
    for name in ("tokens", "needed_cap", "over_cap", "kept", "packs", "features"):
        assert by_headers[name] == read[name]
    for cap, over in ((read["needed_cap"], 0), (read["needed_cap"] - 1, 1)):
        config.dataloader_train.max_sequence_length = cap
        assert check(config, headers=True)[0]["data"]["train"]["over_cap"] == over
    field = "data_setting.max_tokens"
    sources: Any = {("dataloader_train", "max_sequence_length"): [("data_setting", "max_tokens")]}
    assert f"set {field} to at least" in check(config, headers=True, sources=sources)[2]


def test_everything_is_in_one_report(world: Path, tmp_path: Path) -> None:
    """c3, c4: without a model the records are looked at all the same."""
    change = on("model.config.policy.backbone.model_name", "/no/model", on(f"{DATA}.video_fps", "require"))
    facts, code, _ = check(run_of(world, tmp_path, change))
    assert (code, len(facts["problems"])) == (2, 3)  # the folder, its weights, the rates
    assert facts["data"]["train"]["left_out"]["no_video_fps"]["count"] == 4
    assert facts["data"]["train"]["flags"][0]["name"] == "no_video_fps"


def test_frames_are_asked_for_in_one_way(world: Path, tmp_path: Path) -> None:
    """c11 d16: both would be a mistake of the run's description."""
    media = f"{LOADER}.processor.media"
    with pytest.raises(ConfigError, match=r"fps = 2\.0 and nframes = 4 cannot both be set"):
        resolve(run_of(world, tmp_path, on(f"{media}.fps", 2.0, on(f"{media}.nframes", 4))))


def test_few_validation_data_are_all_counted(world: Path, tmp_path: Path) -> None:
    """d26, c11: fewer samples than a pack holds are a pack; those that are trained on, too, are told."""
    config = run_of(world, tmp_path, lambda *_: None)
    (tmp_path / "val.json").write_text(json.dumps(json.loads((tmp_path / "annotations.json").read_text())[:1]))
    config.trainer.run_validation = True
    dataset = LlavaDataset.Config(path=str(tmp_path / "val.json"), media_root=str(world / "data"))
    config.dataloader_val = reasoner_runs.reasoner_config(world).dataloader_train
    config.dataloader_val.dataset, config.dataloader_val.max_samples_per_batch = dataset, 4
    facts, code, _ = check(config)
    assert (code, facts["overlap"], facts["data"]["val"]["packs"]) == (0, 1, [1])


@pytest.mark.parametrize("name", ["outputs", "temporary"])
def test_folders_that_cannot_be_written(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c14"""
    (tmp_path / "file").touch()
    if name == "outputs":
        monkeypatch.setenv(ROOT_VARIABLES[0], str(tmp_path / "file"))
    else:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    facts, code, _ = check(run_of(world, tmp_path, lambda *_: None), headers=True)
    assert code == 2
    assert "cannot be written" in facts["problems"][0]


def test_a_key_for_wandb(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """c2: in the environment, or where `wandb login` puts it; what it is is never told."""
    config = run_of(world, tmp_path, on("job.wandb_mode", "online"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    facts, code, text = check(config, headers=True)
    assert (code, facts["credentials"]) == (2, {"WANDB_API_KEY": False})
    assert "there is no login: set WANDB_API_KEY" in facts["problems"][0]
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password hidden_word\n")
    assert check(config, headers=True)[1] == 0
    (tmp_path / "netrc").write_text("machine example.org login user password hidden_word\n")
    assert check(config, headers=True)[1] == 2
    monkeypatch.setenv("WANDB_API_KEY", "hidden_word")
    facts, code, text = check(config, headers=True)
    assert code == 0
    assert "WANDB_API_KEY is set" in text
    assert "hidden_word" not in text + json.dumps(facts)


def test_weights_of_the_hub(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """c2, c9: whether they would be given, and whether they fit on the disk of the cache."""
    config = run_of(world, tmp_path, on("model.config.policy.backbone.safetensors_path", "hf://org/model"))
    repos = {"org/model": {"model.safetensors": b"12345678", "config.json": b"{}"}}
    with serving_hub(repos, monkeypatch, tmp_path / "cache") as hub:
        facts, code, text = check(config, headers=True)
        assert (code, facts["credentials"], facts["disk"]["download"]) == (0, {"HF_TOKEN": False}, 10)
        assert facts["hub"] == [
            {
                "field": "model.config.policy.backbone.safetensors_path",
                "name": "org/model",
                "state": "on the hub",
                "bytes": 10,
            }
        ]
        hub.sizes = {"model.safetensors": 2**60}
        facts, code, text = check(config, headers=True)
        assert code == 2
        assert "downloads need 1073741824.00 GiB, but the disk of the Hugging Face cache" in facts["problems"][0]
        hub.gated, hub.asked = {"org/model"}, []
        monkeypatch.setenv("HF_TOKEN", "hf_hidden")
        hub.tokens = {"hf_hidden": set()}
        facts, code, text = check(config, headers=True)
        assert (code, facts["hub"][0]["state"], len(facts["problems"])) == (2, "not available", 1)
        assert "is gated, and the token has no access to it" in facts["problems"][0]
        assert "HF_TOKEN is set" in text
        assert "hf_hidden" not in text + json.dumps(facts)
        assert len(hub.asked) == 2


def test_weights_of_a_store(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their download is counted until they are in the cache, and must fit on its disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    field = "model.config.policy.backbone.safetensors_path"
    config = run_of(world, tmp_path, on(field, "memory://weights"))
    files = fsspec.filesystem("memory")
    weights = world / "model/model.safetensors"
    files.pipe_file("/weights/model.safetensors", weights.read_bytes())
    size = weights.stat().st_size
    facts, code, text = check(config, headers=True)
    stored = {"field": field, "name": "memory://weights", "state": "in the store", "bytes": size}
    assert (code, facts["hub"], facts["disk"]["store_download"], facts["credentials"]) == (0, [stored], size, {})
    assert "memory://weights is in the store" in text
    with monkeypatch.context() as patch:
        patch.setattr(RemoteModel, "bytes", 2**60)
        facts, code, _ = check(config, headers=True)
    assert code == 2
    assert "downloads need 1073741824.00 GiB, but the disk of the cache of models" in facts["problems"][0]
    fetch_model("memory://weights", field=field)
    facts, code, _ = check(config, headers=True)
    assert (code, facts["hub"]) == (0, [{"field": field, "name": "memory://weights", "state": "in the cache"}])
    files.rm("/weights", recursive=True)
    facts, code, _ = check(config, headers=True)
    assert (code, facts["hub"][0]["state"], len(facts["problems"])) == (2, "not available", 1)


def test_a_run_that_is_too_large(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """c8, c9: a problem where it is launched, a remark on a machine that may be another one."""
    shutil.copytree(world / "model", tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    settings["text_config"] |= {"num_hidden_layers": 40, "intermediate_size": 2**27}
    (tmp_path / "model" / "config.json").write_text(json.dumps(settings))
    change = on("model.config.policy.backbone.model_name", str(tmp_path / "model"), on("checkpoint.init", "scratch"))
    config = run_of(world, tmp_path, change)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    facts, code, _ = check(config, headers=True)
    assert (code, len(facts["problems"])) == (2, 1)
    assert "a checkpoint of this run needs" in facts["problems"][0]
    assert any("the run does not fit into the memory of this machine" in remark for remark in facts["remarks"])
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "the run does not fit into the memory of this machine" in check(config, headers=True)[0]["problems"][1]


@pytest.mark.slow
def test_a_hub_of_ones_own(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """c2: by HF_ENDPOINT and HF_TOKEN, which the library reads when it is imported."""
    config = run_of(world, tmp_path, on("model.config.policy.backbone.safetensors_path", "hf://org/model"))
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    command = [sys.executable, "-m", "worldsmith", "check", str(tmp_path / "run.yaml"), "--headers", "--workers", "0"]
    with serving_hub({"org/model": {"model.safetensors": b"x"}}, monkeypatch, tmp_path / "cache") as hub:
        hub.gated, hub.tokens = {"org/model"}, {"hf_good": {"org/model"}, "hf_poor": set()}
        for token, code, words in (
            ("hf_good", 0, "org/model is on the hub"),
            ("hf_poor", 2, "the token has no access to it"),
            ("hf_old", 2, "rejects the token"),
        ):
            env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HOME": str(tmp_path / "home")}
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
            assert done.returncode == code, done.stderr
            assert words in " ".join(done.stdout.split())
            assert token not in done.stdout + done.stderr


def test_what_the_machine_has(world: Path, tmp_path: Path) -> None:
    """c8, c9: figures of disk and memory, and a run that does not fit here."""
    facts, _, text = check(run_of(world, tmp_path, lambda *_: None), headers=True)
    assert 0 < facts["machine"]["needed"] < facts["machine"]["free"]
    assert 0 < facts["disk"]["checkpoint"] * facts["disk"]["checkpoints_kept"] < facts["disk"]["free"]
    assert "each process needs" in text


SPEC = """
[train]
epoch = 1
train_batch_per_replica = {batch}
[train.train_policy]
type = "sft"
mini_batch = {mini}
[train.ckpt]
enable_checkpoint = true
[policy]
model_name_or_path = "{world}/model"
model_max_length = {longest}
[policy.parallelism]
tp_size = 1
dp_shard_size = {shards}
[custom.train_dataset]
annotation_path = "{annotations}"
media_path = "{world}/data"
[custom.vision]
nframes = 4
"""


def test_a_step_that_is_more_than_a_pass_is_told(world: Path, tmp_path: Path) -> None:
    """c7: the run would start all the same, and go on in the next pass."""
    change = on("trainer.grad_accum_iter", 3, on(f"{LOADER}.max_samples_per_batch", 3))
    facts, code, text = check(run_of(world, tmp_path, change))
    assert (code, facts["can_start"]) == (0, True)
    assert "note" in text
    assert any(
        "an epoch over 6 samples gives only 2 to some processes (of 1), which train twice on the same samples "
        "within one step. Possible fixes: "
        "trainer.grad_accum_iter = 2 or less, smaller packs" in remark
        for remark in facts["remarks"]
    )


def test_a_spec_of_another_system(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """c7, c12, d15: what is needed is said of the field that the spec has, and of all records, also without rates."""
    file, records = tmp_path / "spec.toml", tmp_path / "rated.json"
    found = json.loads((world / "data" / "annotations.json").read_text())
    records.write_text(json.dumps([{**record, "video_fps": 8.0} for record in found]))

    def checked(longest: int, *words: str, batch: int = 2, mini: int = 1, shards: int = 1, rated: bool = True) -> Any:
        annotations = records if rated else world / "data" / "annotations.json"
        numbers = {"batch": batch, "mini": mini, "shards": shards, "longest": longest}
        file.write_text(SPEC.format(**numbers, world=world, annotations=annotations))
        code = main(["check", "--spec", str(file), "--json", "--workers", "0", "--headers", *words])
        facts = json.loads(capsys.readouterr().out)
        return code, facts["data"]["train"], facts["problems"], facts["remarks"]

    code, train, problems, remarks = checked(500)
    assert (code, problems, remarks) == (0, [], [])
    most = int(train["tokens"]["max"])
    code, _, problems, _ = checked(20)
    assert code == 2
    assert f"none may be used: set policy.model_max_length to at least {most} (now 20)" in problems[0]
    assert (
        f"set policy.model_max_length to at least {most} (now 20)" in checked(500, "policy.model_max_length=20")[2][0]
    )
    own = checked(500, "--", "dataloader_train.max_sample_tokens=20")[2][0]
    assert f"set dataloader_train.max_sample_tokens to at least {most} (now 20)" in own
    assert checked(most)[1]["over_cap"] == 0
    assert f"set policy.model_max_length to at least {most} (now {most - 1})" in checked(most - 1)[3][0]
    two = checked(most - 1, mini=2)  # of a sample, though two of them have room for twice as many
    assert two[1]["over_cap"] == checked(most - 1)[1]["over_cap"] > 0
    assert f"set policy.model_max_length to at least {most} (now {most - 1})" in two[3][0]
    assert checked(most, mini=2)[1]["over_cap"] == 0
    code, train, _, remarks = checked(most - 1, batch=3, shards=2)  # one of six is left out: not three for each
    assert (code, len(train["packs"])) == (0, 2)
    assert any("a step takes 3 packs on each process, but an epoch over" in remark for remark in remarks)
    code, train, problems, _ = checked(500, rated=False)
    assert (code, len(problems), train["tokens"]["max"]) == (2, 1, most)
    assert "4 of 4 records with a video have no video_fps, but video_fps = 'require' is set" in problems[0]


def test_media_that_lie_one_folder_off(world: Path, tmp_path: Path) -> None:
    """d24: all are missing, and it is said where they are."""
    facts, code, text = check(run_of(world, tmp_path, on(f"{DATA}.media_root", str(world))))
    assert (code, facts["data"]["train"]["left_out"]["missing_file"]["count"]) == (2, 5)
    (found,) = (one for one in facts["data"]["train"]["flags"] if one["name"] == "media_elsewhere")
    assert (found["count"], found["of"]) == (5, 5)
    assert f"set media_root = '{world / 'data'}'" in found["said"]
    assert "5 of 5 images and videos were not found" in text


def test_all_parts_of_a_pipeline_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VAE and text encoder, on the hub, in a store and on this machine; of each only the files that a run needs.

    A file that two of them need is counted once.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vae = {"vae/config.json": b"{}", "vae/diffusion_pytorch_model.safetensors": bytes(100), "vae/notes.md": bytes(5)}
    encoder = {"text_encoder/config.json": b"{}", "text_encoder/model.safetensors": bytes(70)}
    repos = {"org/both": {**vae, **encoder, "transformer/model.safetensors": bytes(999)}}
    files = fsspec.filesystem("memory")
    for name, content in repos["org/both"].items():
        files.pipe_file(f"/both/{name}", content)
    config = get_recipe("cogvideox_2b_tiny").model
    named = {"vae_path": "model.config.tokenizer.vae_path", "path": "model.config.text_encoder.path"}
    with serving_hub(repos, monkeypatch, tmp_path / "hub"):
        for encoder_path, state in (("memory://both", "in the store"), ("org/both", "on the hub")):
            config.config.tokenizer.vae_path, config.config.text_encoder.path = "org/both", encoder_path
            needs = Needs()
            inspect_models(needs, SimpleNamespace(model=config, initial_weights=lambda: None))
            assert needs.hub == [
                {"field": named["vae_path"], "name": "org/both", "state": "on the hub", "bytes": 102},
                {"field": named["path"], "name": encoder_path, "state": state, "bytes": 72},
            ]
            downloads = (needs.disk["download"], needs.disk.get("store_download", 0))
            assert downloads == ((102, 72) if state == "in the store" else (174, 0))
            assert needs.problems == []
        start = SimpleNamespace(field="checkpoint.load_path", path="org/both")
        inspect_models(needs := Needs(), SimpleNamespace(model=config, initial_weights=lambda: start))
        assert [fact["bytes"] for fact in needs.hub] == [1173, 102, 72]
        assert needs.disk["download"] == 1173
    own = get_recipe("cogvideox_2b_tiny")
    inspect_models(needs := Needs(), own)
    assert needs.hub == []
