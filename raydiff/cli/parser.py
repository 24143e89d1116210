"""The options of a command. Its errors are ValueErrors, which `raydiff` says in one sentence."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Of `raydiff COMMAND`; `doc` is what --help says of it, as it stands."""

    def __init__(self, command: str, doc: str | None, *, fields: bool = False) -> None:
        super().__init__(
            prog=f"raydiff {command}",
            description=None if fields else doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=not fields,
        )
        if fields:  # `arguments.help_text` shows them after the options
            self.add_argument("--help", "-h", action="store_true", help="show this, with every field")

    def of_run(self) -> Parser:
        """It takes the name of a finished run, too."""
        self.add_argument("run", metavar="RUN", help="an MLflow run, a digest, SWEEP/DIGEST, or a trial's folder")
        return self.with_storage()

    def with_storage(self) -> Parser:
        """It takes the folder in which sweeps and the default MLflow store are, too."""
        from raydiff.experiment.config import Runtime

        where, shown = Runtime().storage, "where sweeps are (default: %(default)s)"
        self.add_argument("--storage", type=folder, default=where, help=shown)
        return self

    def error(self, message: str) -> NoReturn:
        """Raises ValueError."""
        raise ValueError(message)


def folder(text: str) -> Path:
    """What an argument names, whole. Raises ArgumentTypeError for a bucket."""
    if "://" in text:
        raise argparse.ArgumentTypeError(f"this command needs storage in a folder, got {text!r}")
    return Path(text).expanduser().absolute()
