"""Arrays: .npy files written in pieces, and .npz files read up to a limit."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.io.regular import check_zip
from big_retrieval.io.space import reason


def read_npz(path: Path, prefix: str = "") -> dict[str, np.ndarray]:
    """Returns arrays of an .npz file, without pickles, up to the size limit of `check_zip`."""
    try:
        check_zip(path)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if name.startswith(prefix)}
    except UserError:
        raise
    except Exception as error:  # of zip files, of zlib, of numpy, or no memory
        raise UserError(
            f"Cannot read {path} as .npz file of plain arrays: {reason(error)}."
        ) from None


def header(dtype: Any, shape: tuple[int, ...]) -> bytes:
    """Returns the header of an .npy file; its length does not depend on the number of rows."""
    out = io.BytesIO()
    layout: Any = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(out, layout)
    return out.getvalue()


class ArrayWriter:
    """Writer of a new .npy file, row by row; `shape` is the shape of a row, () for numbers."""

    def __init__(self, path: Path, dtype: Any, shape: tuple[int, ...] = ()):
        self._dtype, self.shape, self.rows = np.dtype(dtype), shape, 0
        self._file = path.open("wb")
        self._header()
        self._start = self._file.tell()

    def append(self, rows: np.ndarray) -> None:
        """Appends rows [n, *shape], converted to the file's type."""
        rows = np.ascontiguousarray(rows, self._dtype)
        if rows.shape[1:] != self.shape:
            raise ValueError(f"rows of shape {rows.shape[1:]} in a file of {self.shape}")
        self._file.write(rows.data)  # unlike errors of `tofile`, its errors have an errno
        self.rows += len(rows)

    def close(self) -> None:
        """Writes the number of rows into the header, which numpy leaves room for."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._header()
        if self._file.tell() != self._start:
            raise RuntimeError(f"the header of {self._file.name} has another length now")
        self._file.close()

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _header(self) -> None:
        self._file.write(header(self._dtype, (self.rows, *self.shape)))
