"""Options of commands: dataclasses whose fields are the flags of a command line.

    @dataclass(frozen=True, kw_only=True)
    class SearchOptions(CommonOptions):
        index: Path  # Index folder
        depth: AtLeast1 = 10  # Maximum number of documents per query

    options = parse(SearchOptions, ["--index=docs", "--depth=3"])

A field without a default is a required flag. Types are str, Path, int, float, bool, Literal and
`tuple[str, ...]`, whose values are separated by commas; each may also be None. `Flag` adds
properties that the type does not express. --help prints the comments.
"""

import dataclasses
import functools
import itertools
import linecache
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from big_retrieval.cli import mistakes
from big_retrieval.cli.values import parse_value, split_list
from big_retrieval.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Flag:
    """Properties of a flag, in the annotation of its field: `Annotated[int, Flag(low=1)]`."""

    low: float | None = None  # smallest number
    high: float | None = None  # largest number
    choices: tuple[str, ...] = ()  # valid values, as an alternative to Literal
    repeated: bool = False  # True for a tuple with one flag per value instead of commas
    alias: str = ""  # second name of the flag
    needs: str = ""  # flag that has to be present, too
    # maximum number of words that are not flags, for the tuple that takes these words
    words: int = 0
    # name before the dot, for the tuple that collects flags such as --config.KEY=VALUE unparsed
    keys: str = ""


AtLeast0 = Annotated[int, Flag(low=0)]
AtLeast1 = Annotated[int, Flag(low=1)]
Repeated = Annotated[tuple[str, ...], Flag(repeated=True)]


@dataclass(frozen=True)
class CommandFlag:
    """A flag of a command."""

    name: str
    field: dataclasses.Field[Any]
    type: Any
    details: Flag

    @property
    def choices(self) -> tuple[str, ...]:
        """Valid values; empty if others are valid, too."""
        is_literal = typing.get_origin(self.type) is Literal
        return typing.get_args(self.type) if is_literal else self.details.choices

    @property
    def takes_value(self) -> bool:
        return self.type is not bool

    @property
    def is_required(self) -> bool:
        factory = self.field.default_factory
        return self.field.default is factory is dataclasses.MISSING

    def convert(self, texts: Sequence[str]) -> Any:
        """Returns the value of a flag, from its last text, or from all texts if `repeated`."""
        name, text, low, high = f"--{self.name}", texts[-1], self.details.low, self.details.high
        if typing.get_origin(self.type) is tuple:
            return tuple(texts) if self.details.repeated else split_list(name, text)
        if self.choices and text not in self.choices:
            raise UserError(f"{name} is {text!r}; it must be one of {', '.join(self.choices)}.")
        value: Any = text if self.choices else parse_value(name, text, self.type)
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise UserError(f"{name} is {value}; it must be {bounds}.")
        return value


def fields_of(cls: Any, prefix: str = "") -> list[CommandFlag]:
    """Returns a flag for every field; the class's own fields precede inherited ones."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    order = [name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())]
    return [
        CommandFlag(f"{prefix}{name.rstrip('_')}", fields[name], *_type_and_details(hints[name]))
        for name in dict.fromkeys(order)
        if name in fields
    ]


def flags_of(cls: Any, prefix: str = "") -> list[CommandFlag]:
    """Returns `fields_of` without the fields for words and keys."""
    return [x for x in fields_of(cls, prefix) if not (x.details.words or x.details.keys)]


def _type_and_details(hint: Any) -> tuple[Any, Flag]:
    """Returns the type in an annotation, without None, and its `Flag`."""
    details = Flag()
    while True:
        if typing.get_origin(hint) is Annotated:
            hint, *annotations = typing.get_args(hint)
            details = next((x for x in annotations if isinstance(x, Flag)), details)
        elif typing.get_origin(hint) in (typing.Union, types.UnionType):
            (hint,) = (x for x in typing.get_args(hint) if x is not type(None))
        else:
            return hint, details


def parse(
    cls: type[T], argv: Sequence[str], *, prefix: str = "", command: str = "", partial: bool = False
) -> T:
    """Returns the options of a command line.

    Args:
      argv: flags and words, without the program.
      prefix: text before each name, such as "data.".
      command: name of the command, for messages.
      partial: True sets required flags that are missing to None, as --help does.
    """
    by_name = {flag.name: flag for flag in flags_of(cls, prefix)}
    takers = [x for x in fields_of(cls) if x.details.words or x.details.keys]
    options: dict[str, Any] = {}
    for taker in takers:
        if taker.details.keys:
            argv, options[taker.field.name] = _take_keys(argv, taker.details.keys)
    texts, words = _read_flags(argv, by_name.values(), command)
    _take_words(words, takers, options, command)
    for name, flag in by_name.items():
        if name in texts:
            options[flag.field.name] = flag.convert(texts[name])
            if (needs := flag.details.needs) and needs not in texts:
                raise UserError(f"--{name} needs --{needs}. Add --{needs}, or remove --{name}.")
        elif flag.is_required and partial:
            options[flag.field.name] = None
        elif flag.is_required:
            meaning = meanings_of(cls)[flag.field.name]
            if meaning[1:2].islower():
                meaning = meaning[0].lower() + meaning[1:]
            raise UserError(f"--{name} is missing: {meaning}.")
    if (count := len(texts.get("config", ()))) > 1:
        raise UserError(f"--config is given {count} times. Keep one.")
    return cls(**options)


def _read_flags(
    argv: Sequence[str], command_flags: Iterable[CommandFlag], command: str
) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the texts of each flag by name, and the words that are not flags."""
    by_name = {name: x for x in command_flags for name in (x.name, x.details.alias) if name}
    texts: dict[str, list[str]] = {}
    words: list[str] = []
    arguments = list(argv)
    while arguments:
        arg = arguments.pop(0)
        if not arg.startswith("-") or arg == "-":
            words.append(arg)
            continue
        raw_name, equals, text = arg.lstrip("-").partition("=")
        name = raw_name.replace("-", "_")  # --dry-run is --dry_run
        flag, opposite = by_name.get(name), by_name.get(re.sub("^no_?", "", name))
        if flag is None and opposite is not None and not opposite.takes_value and not equals:
            flag, text = opposite, "False"
        elif flag is None:
            raise UserError(mistakes.unknown_flag(raw_name, command, by_name, argv))
        elif not equals and not flag.takes_value:
            text = "True"
        elif not equals:
            if not arguments:
                raise UserError(f"{arg} has no value; write {arg}=VALUE.")
            text = arguments.pop(0)
        texts.setdefault(flag.name, []).append(text)
    return texts, words


def _take_keys(argv: Sequence[str], name: str) -> tuple[list[str], tuple[str, ...]]:
    """Returns the arguments without flags such as --config.KEY, and these flags."""
    remaining, keys = list[str](), list[str]()
    arguments = list(argv)
    while arguments:
        arg = arguments.pop(0)
        match = re.match(rf"--?(no)?{name}\.[^=]+(=)?", arg)
        (keys if match else remaining).append(arg)
        has_value = match is None or match[1] or match[2]
        if not has_value and arguments and not re.match(r"--?[A-Za-z]", arguments[0]):
            keys.append(arguments.pop(0))  # --config.KEY VALUE
    return remaining, tuple(keys)


def _take_words(
    words: Sequence[str], takers: Sequence[CommandFlag], options: dict[str, Any], command: str
) -> None:
    taker = next((x for x in takers if x.details.words), None)
    max_words = taker.details.words if taker else 0
    if len(words) > max_words:
        raise UserError(mistakes.unexpected_word(words[max_words], max_words, command))
    if taker and words:
        options[taker.field.name] = tuple(words)


def only_one(options: Any, *names: str, required: bool = False) -> str:
    """Returns the only flag that is set, or ""; rejects several, and with `required` none."""
    present = [name for name in names if getattr(options, name)]
    if len(present) > 1:
        raise UserError(f"--{present[0]} and --{present[1]} are both given. Keep one of them.")
    if required and not present:
        raise UserError(f"Add one of {', '.join(f'--{name}' for name in names)}.")
    return "".join(present)


def select(cls: type[T], options: Any) -> T:
    """Returns the options that a base class declares, as an instance of the base class."""
    return cls(**{field.name: getattr(options, field.name) for field in dataclasses.fields(cls)})  # type: ignore[arg-type]


@functools.cache
def meanings_of(cls: type) -> Mapping[str, str]:
    """Returns the meaning of every field of a dataclass: the comment next to and above it."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            meanings |= comment_meanings(_body_of(base))
    return meanings


def _body_of(cls: type) -> Iterator[str]:
    """Yields the source lines of a class that is not within a function."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    header = re.compile(rf"class {cls.__name__}\b")
    lines = itertools.dropwhile(lambda line: not header.match(line), linecache.getlines(file))
    return itertools.takewhile(lambda line: line[0] in " \n", itertools.islice(lines, 1, None))


def comment_meanings(lines: Iterable[str]) -> dict[str, str]:
    """Returns name -> text of the comments next to and above the fields of a dataclass."""
    meanings: dict[str, str] = {}
    above = ""
    for line in lines:
        if match := re.match(r"    # (.*)", line):
            above = f"{above} {match[1]}".strip()
            continue
        if match := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line):
            meaning = "; ".join(part for part in (above, match[2]) if part)
            meanings |= {match[1]: meaning} if meaning else {}
        above = ""
    return meanings
