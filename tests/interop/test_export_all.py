"""All exports, compared with the libraries that are at hand; see export_all.py."""

from pathlib import Path

import pytest

from tests.interop import export_all


@pytest.mark.slow
def test_the_libraries_compute_the_same(tmp_path: Path) -> None:
    """One test, as to start the libraries takes seconds."""
    targets = export_all.available(export_all.PYTHON)
    if not targets:
        pytest.skip(f"{export_all.PYTHON} has no PyTorch")
    exports = list(export_all.write_all(tmp_path, targets))
    done = export_all.verified(exports, export_all.PYTHON)
    assert export_all.problems(done, export_all.PYTHON) == []
