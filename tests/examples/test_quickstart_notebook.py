"""examples/quickstart.ipynb: its cells run in order, with a short training."""

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from tests.helpers import ROOT

CELLS = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]


def test_quickstart_notebook_has_ten_cells_without_outputs() -> None:
    assert len(CELLS) == 10
    assert not any(cell.get("outputs") for cell in CELLS)


@pytest.mark.slow
def test_quickstart_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names: dict = {}
    for number, cell in enumerate(CELLS):
        code = "".join(cell["source"])
        if cell["cell_type"] == "code":
            code = code.replace("steps = 500", "steps = 20")
            exec(compile(code, f"quickstart.ipynb, cell {number}", "exec"), names)
    assert names["steps"] == 20
    assert [row["step"] for row in names["rows"]] == [10, 20]
    assert "retrieval/test/image_to_text/R@1" in names["results"]
    # The index finds the image that the model finds.
    assert names["hits"][0] == f"{names['best'][0]}.png"
    np.testing.assert_allclose(names["hit_scores"][0], names["scores"][names["best"][0]], atol=1e-5)
    assert names["attribution"].image.shape == (4, 4)
