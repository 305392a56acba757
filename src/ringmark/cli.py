"""The `ringmark` command: finds the verbs in ringmark.commands and turns a UserError into one sentence."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import pkgutil
import sys

import ringmark.commands
from ringmark import __version__
from ringmark.errors import UserError, nearest

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    """argparse, but a wrong word is answered with the nearest right one and no wall of usage."""

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"ringmark: {message}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def verbs() -> list[str]:
    """The commands there are: the files of ringmark.commands."""
    return sorted(info.name for info in pkgutil.iter_modules(ringmark.commands.__path__))


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(
        prog="ringmark",
        description="Measure long-context attention methods side by side, and re-make tables from records.",
    )
    parser.add_argument("--version", action="version", version=f"ringmark {__version__}")
    commands = parser.add_subparsers(dest="verb", metavar="COMMAND", parser_class=_Parser)
    for verb in verbs():
        module = importlib.import_module(f"ringmark.commands.{verb}")
        sub = commands.add_parser(verb.replace("_", "-"), help=module.HELP, description=module.HELP)
        module.add_arguments(sub)
    return parser


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    module: object = None
    if isinstance(sys.stdout, io.TextIOWrapper):  # a ? where it lacks a character; stderr never fails so
        sys.stdout.reconfigure(errors="replace")
    try:
        asked = next((word for word in argv if not word.startswith("-")), None)
        if asked is not None and asked.replace("-", "_") not in verbs():
            raise UserError(f"there is no command {asked!r}: {nearest(asked, verbs())}")
        parser = build_parser()
        args = parser.parse_args(argv)
        if args.verb is None:
            parser.print_help()
            return EXIT_USAGE
        module = importlib.import_module(f"ringmark.commands.{args.verb.replace('-', '_')}")
        return int(module.run(args))
    except UserError as error:
        print(f"ringmark: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        kept = getattr(module, "INTERRUPTED", "")
        print("ringmark: interrupted" + (f"; {kept}" if kept else ""), file=sys.stderr)
        return 130
    except BrokenPipeError:  # `ringmark cells ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
