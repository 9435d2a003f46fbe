"""HTML report of a run, `report.html`, built only from the files in its folder."""
