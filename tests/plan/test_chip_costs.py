"""Steps of the TPU compiler stay as cheap as in benchmarks/chips.json.

Skipped without libtpu: install it next to jax (the extra plan-tpu), or name the Python of an
environment that has it in BIG_RETRIEVAL_TPU_PYTHON.
"""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from typing import Any

import pytest

from benchmarks.chips import LIMITED, RESULTS, TEST_FLAGS
from tests.helpers import ROOT

TPU_PYTHON = os.environ.get("BIG_RETRIEVAL_TPU_PYTHON", "")
STORED = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {}
GROWTH = 1.1

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not TPU_PYTHON and importlib.util.find_spec("libtpu") is None, reason="needs libtpu"
    ),
    pytest.mark.skipif(
        not any(key.startswith("v5e-4 ") for key in STORED),
        reason="no stored numbers: run benchmarks.chips with TEST_FLAGS and --write",
    ),
]


def test_tpu_steps_stay_cheap() -> None:
    command = [TPU_PYTHON or sys.executable, "-m", "benchmarks.chips", *TEST_FLAGS, "--json"]
    # Without the flags that make the tests' CPU programs cheap to compile.
    unset = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    path = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
    finished = subprocess.run(
        command, cwd=ROOT, env=environment | {"PYTHONPATH": path}, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    rows: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    assert rows
    for key, row in rows.items():
        for name in LIMITED:
            assert row[name] <= GROWTH * STORED[key][name], (key, name)
