"""The command `big-retrieval`, which is `python -m big_retrieval`, too."""

import sys

from big_retrieval import commands


def main() -> None:
    """Runs the command that the first word names."""
    word, *rest = sys.argv[1:] or ["--help"]
    if word in ("--help", "-help", "-h", "help"):
        print(commands.overview())
        return
    if word in ("--version", "-version"):
        word, rest = "configs", [word]  # every command answers this; `configs` starts quickly
    if word not in commands.COMMANDS:
        print(f"error: {commands.unknown(word)}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"{commands.PROGRAM} {word}", *rest]
    module = commands.load(word)
    from big_retrieval import cli

    cli.run(
        module.main,
        words=getattr(module, "WORDS", 0),
        log=getattr(module, "LOG", False),
        without=getattr(module, "WITHOUT", ()),
        instead=getattr(module, "INSTEAD", ""),
        about=module.__doc__ or "",
    )


if __name__ == "__main__":
    main()
