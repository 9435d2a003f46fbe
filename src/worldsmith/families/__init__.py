"""The model families, one folder each: network, task, weight formats, sampler and recipes.

A folder's `__init__.py` has `FAMILY`, the import paths of these parts. `diffusers_pipeline/` has no `FAMILY`: it
contains the base classes of the families that wrap a diffusers pipeline.
"""
