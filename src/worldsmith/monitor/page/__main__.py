"""`python -m worldsmith.monitor.page RUN`: rebuilds the report of a running run at low priority."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from worldsmith.monitor.page.run_page import write_page

if __name__ == "__main__":
    os.nice(19)
    write_page(Path(sys.argv[1]))
