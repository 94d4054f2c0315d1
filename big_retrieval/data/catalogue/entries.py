"""What an entry of the catalogue says of a data set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """Something to fetch.

    Attributes:
      what: what is fetched.
      address: where it is; a page, where a form or an account is asked for.
      md5: of the file, where its publisher tells it.
    """

    what: str
    address: str
    md5: str = ""


@dataclass(frozen=True)
class Expected:
    """Files of a complete folder; what is None or empty is not compared.

    Attributes:
      path: of a file in the folder, or a pattern of several (`train2014/*.jpg`).
      files: how many files the pattern matches; None: at least one.
      lines: how many lines the file has.
      records: how many objects the JSON file has: in its list, or in its list `images`.
      queries: how many different ids the first column has, below a header line.
      md5: of the file.
      beside: the ending of another file that stands beside each finished one.
      optional: whether a folder without the files is complete, too.
    """

    path: str
    files: int | None = None
    lines: int | None = None
    records: int | None = None
    queries: int | None = None
    md5: str = ""
    beside: str = ""
    optional: bool = False


@dataclass(frozen=True)
class DataSet:
    """A published data set.

    Attributes:
      title: its name.
      place: the folder that the configs read it from.
      size: how much it takes on the disk.
      license: on which terms it may be used.
      fetch: what is fetched.
      steps: commands that make the folder of it.
      parts: what the folder holds then.
      configs: which configs read it.
    """

    title: str
    place: str
    size: str
    license: str
    fetch: tuple[Download, ...]
    steps: tuple[str, ...]
    parts: tuple[Expected, ...]
    configs: str
