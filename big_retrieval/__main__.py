"""The command `big-retrieval`, which is `python -m big_retrieval`, too."""

import sys

from big_retrieval import commands


def main() -> None:
    """Runs the command that the first word names."""
    word, *argv = sys.argv[1:] or ["--help"]
    if word in ("--help", "-help", "-h", "help"):
        print(commands.overview())
        return
    if word in ("--version", "-version"):
        word, argv = "configs", [word]  # every command prints the version
    if word not in commands.COMMANDS:
        print(f"error: {commands.unknown(word)}", file=sys.stderr)
        sys.exit(2)
    commands.run(word, argv)


if __name__ == "__main__":
    main()
