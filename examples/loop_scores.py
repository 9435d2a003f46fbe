"""The scores of the loop: `python examples/loop_scores.py FOLDER`, where FOLDER has before/, after/ and w4a16/."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    before, after = (json.loads((folder / name / "metrics.json").read_text()) for name in ("before", "after"))
    quantized = json.loads((folder / "w4a16/quantization.json").read_text())["check"]
    print(
        f"yes/no accuracy on {before['total']} questions about clips that nothing has learned from: "
        f"{before['accuracy']:.2f} before, {after['accuracy']:.2f} after, {quantized['accuracy_after']:.2f} quantized"
    )


if __name__ == "__main__":
    main()
