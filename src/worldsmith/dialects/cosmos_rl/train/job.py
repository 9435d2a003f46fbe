"""Folder, names, resume and trackers of a training spec."""

from __future__ import annotations

from pathlib import PurePath

from worldsmith.dialects.cosmos_rl.rules import refuse_remote_output
from worldsmith.dialects.translation import SpecTranslation, computed, shown

OUTPUT, RESULTS, TIMESTAMP, RESUME = "train.output_dir", "results_dir", "train.timestamp", "train.resume"
PROJECT, GROUP, EXPERIMENT = (f"logging.{name}_name" for name in ("project", "group", "experiment"))


@computed(OUTPUT, RESULTS, TIMESTAMP)
def run_folder(t: SpecTranslation) -> None:
    """Sets the folder of the runs. As in Cosmos-RL each start has a new one below it, named after the time."""
    output, results, name = (t.get(key).removeprefix("file://") for key in (OUTPUT, RESULTS, TIMESTAMP))
    output = output if t.is_stated(OUTPUT) else ""
    if refuse_remote_output(t, *([OUTPUT] if output else []), RESULTS):
        return
    folder = str(PurePath(results) / output) if output != results else output
    folder = "" if folder == "." else folder
    below = f"{folder or 'the output root/job.project/job.group'}/<time of the start>"
    if name:  # there a timestamp says that output_dir has been extended by it already
        path = PurePath(folder) if folder else PurePath(name)
        folder, name = "" if str(path.parent) == "." else str(path.parent), path.name
        t.put("job.name", name, source=TIMESTAMP)
        below = f"{folder or '.'}/{name}"
        t.say(TIMESTAMP, "renamed", f"job.name = {shown(name)}: {OUTPUT} is the run folder itself")
    elif t.is_stated(TIMESTAMP):
        t.say(TIMESTAMP, "kept", "the time of the start")
    if folder:
        t.put("job.folder", folder, source=OUTPUT if output else RESULTS)
    where = f"job.folder = {shown(folder)}; " if folder else ""
    t.say(OUTPUT, "renamed", f"{where}the run lies in {below}")
    if t.is_stated(RESULTS):
        t.say(RESULTS, "renamed" if results else "unneeded", f"the run lies in {below}")


@computed(RESUME)
def resume(t: SpecTranslation) -> None:
    value = t.get(RESUME)
    if isinstance(value, str):
        t.put("checkpoint.load_path", value, source=RESUME)
        t.put("checkpoint.load_training_state", True, source=RESUME)
        text = f"a new run that continues from checkpoint.load_path = {shown(value)}, a run or checkpoint of Worldsmith"
        t.say(RESUME, "approximated", f"{text}; give the weights of a run of Cosmos-RL as policy.model_safetensor_path")
    elif value:
        t.put("job.resume_newest", True, source=RESUME)
        t.say(
            RESUME, "renamed", f"job.resume_newest = true: the run in {OUTPUT} that was saved last, in its own folder"
        )
    else:
        t.say(RESUME, "kept", f"each start is a new run in a new folder; {RESUME}=true resumes the one saved last")


@computed(PROJECT, GROUP, EXPERIMENT)
def names(t: SpecTranslation) -> None:
    t.move(PROJECT, "job.project", "renamed")
    given = {key: t.get(key) for key in (GROUP, EXPERIMENT) if t.get(key) not in (None, "", "None")}
    if given:
        t.put("job.group", "/".join(given.values()), source=next(iter(given)))
    for key in (GROUP, EXPERIMENT):
        if key in given:
            t.say(key, "renamed", f"job.group = {shown('/'.join(given.values()))}; the run's own name is its time")
        elif t.is_stated(key):
            t.say(key, "unneeded", "no name is given")


@computed("logging.logger")
def trackers(t: SpecTranslation) -> None:
    logger = t.get("logging.logger")
    mode = "online" if "wandb" in logger else "disabled"
    t.put("job.wandb_mode", mode, source="logging.logger")
    rest = [name for name in logger if name != "wandb"]
    own = f"; {', '.join(rest)}: every run has its console, metrics and page" if rest else ""
    t.say("logging.logger", "renamed", f"job.wandb_mode = {shown(mode)}{own}")
