"""Batches of a plan: those of the data where they are at hand, else assumed ones."""

from dataclasses import replace

import pytest
from tiny_runs import make_world, tiny_config

from worldsmith.config.tree.references import resolve
from worldsmith.planning.simulation.simulate import simulate
from worldsmith.planning.simulation_inputs import Stated, assumed_batches, plan_batches


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return resolve(tiny_config(make_world(tmp_path_factory.mktemp("world"))))


def test_the_largest_of_the_first_batches_are_taken_and_nothing_is_decoded(config):
    found = plan_batches(Stated(config, [], True), ranks=1)
    assert len(found.batches) == config.trainer.grad_accum_iter
    clips = [clip for batch in found.batches for clip in batch]
    assert {clip.num_frames for clip in clips} <= {5, 9}
    assert all((clip.video if clip.latents is None else clip.latents).untyped_storage().nbytes() < 8 for clip in clips)
    assert found.num_samples == 6
    assert found.sample_bytes == 3 * 9 * 64 * 64
    assert "the largest of the first" in found.described
    assert simulate(config, found.batches, ranks=2).samples == len(clips)


def test_without_data_they_are_assumed_and_it_is_said_why(config):
    data = replace(config.dataloader_train, dataset=replace(config.dataloader_train.dataset, path="nowhere"))
    found = plan_batches(Stated(replace(config, dataloader_train=data), [], True), ranks=1)
    assert found.described.startswith("dummy data: ")
    assert "nowhere does not exist" in found.described
    assert found.num_samples is None


def test_data_that_a_variable_would_name_are_not_looked_for(config):
    data = replace(config.dataloader_train, dataset=replace(config.dataloader_train.dataset, path="$CLIPS"))
    found = plan_batches(Stated(replace(config, dataloader_train=data), [], True), ranks=1)
    assert found.described.endswith("(the dataset was not read: $CLIPS is not set)")


def test_with_another_tokenizer_the_data_are_not_read(config):
    found = plan_batches(Stated(config, [], False), ranks=1)
    assert "the run's tokenizer is not on this machine" in found.described


def test_a_cache_keeps_latents_and_without_one_pixels_come(config):
    pixels = assumed_batches(replace(config, dataloader_train=replace(config.dataloader_train, latent_cache="")))
    latents = assumed_batches(replace(config, dataloader_train=replace(config.dataloader_train, latent_cache="x")))
    assert (pixels.batches[0][0].latents, pixels.cache_bytes) == (None, 0)
    assert (latents.batches[0][0].video, latents.cache_bytes) == (None, latents.batches[0][0].latents.numel() * 4)
