"""Reads more files than the process may open, from threads and from another process."""

import io
import multiprocessing
import random
import resource
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
from array_record.python.array_record_module import ArrayRecordWriter

from big_retrieval.data.formats.open_files import file_table
from big_retrieval.data.formats.shards import Shard
from big_retrieval.data.formats.tables import Chain

FILES, LIMIT = 100, 80


def write_files(folder: Path) -> dict[str, Chain]:
    """One row a file, with its number."""
    tables = {"tar": [], "array_record": []}
    for number in range(FILES):
        path = folder / f"{number}.tar"
        with tarfile.open(path, "w") as tar:
            member = tarfile.TarInfo("sample.txt")
            member.size = len(content := str(number).encode())
            tar.addfile(member, io.BytesIO(content))
        tables["tar"].append(file_table(path))
        path = folder / f"{number}.array_record"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        writer.write(msgpack.packb({"txt": str(number)}))
        writer.close()
        tables["array_record"].append(Shard(path, 1, ["txt"]))
    return {name: Chain(files, name) for name, files in tables.items()}


def read_all(tables: dict[str, Chain], seed: int) -> None:
    """Reads every row, in some order."""
    order = [(name, number) for name in tables for number in range(FILES)]
    random.Random(seed).shuffle(order)
    for name, number in order:
        row = tables[name].row(number)
        assert row["txt"] == str(number), (name, number, row)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    made = write_files(Path(sys.argv[1]))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: read_all(made, seed), range(4)))
    process = multiprocessing.get_context("spawn").Process(target=read_all, args=(made, 5))
    process.start()
    process.join()
    sys.exit(process.exitcode)
