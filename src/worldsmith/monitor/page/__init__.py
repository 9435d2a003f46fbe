"""The page of a run, `report.html`: made from what its folder holds, and from nothing else."""
