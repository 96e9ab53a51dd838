"""Arguments of Megatron-LM as its logs show them: the dump of all of them, or the command line.

Source: NVIDIA/Megatron-LM `megatron/training/arguments.py`, `_print_args`: a header between rows of dashes, every
argument of the parser sorted by name, dots up to column 48 (a longer name is followed by two spaces), "end of
arguments". An argument that a dump does not have is one that this version of the program does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_BEGINS: Final = re.compile(r"(?<!-)-{8,100} arguments -{8}")
_ENDS: Final = re.compile(r"(?<!-)-{6,100} end of arguments -{6}")
_DOTTED: Final = re.compile(r"(?:^|[\s:\]])([A-Za-z_]\w{0,99}) \.{3,} ?(.{0,4096})")
_UNDOTTED: Final = re.compile(r"(?:^|:)\s{2,}([A-Za-z_]\w{24,99})  (\S.{0,4096})")
_COMMAND: Final = re.compile(r"\b(?:pretrain|train|finetune)_\w{1,40}\.py\s+(--.*)")
_WORDS: Final = {"None": None, "True": True, "False": False}
MOST_ARGUMENTS: Final = 5000
"""Ten times what the program knows."""

LARGEST: Final = 10**9

Arguments = dict[str, Any]


class ArgumentReader:
    """Goes through the lines of a log; `arguments` are those of the last dump or command line."""

    def __init__(self) -> None:
        self.arguments: Arguments = {}
        self.dumped = False
        """Whether they come from a dump, which is complete."""
        self._inside = False

    def begins(self, line: str) -> bool:
        """Whether a dump or a command line begins here: what follows is another run."""
        return ("-" in line and _BEGINS.search(line) is not None) or (
            ".py" in line and _COMMAND.search(line) is not None
        )

    def read(self, line: str) -> None:
        """Take the arguments that this line holds."""
        if "-" in line and _BEGINS.search(line):
            self.arguments, self.dumped, self._inside = {}, True, True
        elif self._inside:
            if _ENDS.search(line):
                self._inside = False
                return
            found = _DOTTED.search(line) or _UNDOTTED.search(line)
            if found and line.endswith("\n") and len(self.arguments) < MOST_ARGUMENTS:
                self.arguments[found.group(1)] = _value(found.group(2))
        elif ".py" in line and (command := _COMMAND.search(line)):
            self.arguments, self.dumped = _options(command.group(1)), False


def _value(text: str) -> Any:
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    try:
        return int(text) if text.lstrip("-").isdecimal() and len(text) < 19 else float(text)
    except ValueError:
        return text


def _options(command: str) -> Arguments:
    """`--micro-batch-size 4 --bf16` as argparse stores it: underscores, True for an option without a value."""
    arguments: Arguments = {}
    name = None
    for word in command.split()[: 2 * MOST_ARGUMENTS]:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            arguments[name] = _value(value) if value else True
        elif name is not None:
            known = arguments[name]
            arguments[name] = _value(word) if known is True else f"{known} {word}"
    return arguments


class ArgumentWords:
    """One run's arguments, asked by type: what has another type counts as absent."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments

    def integer(self, *names: str) -> int | None:
        """The first of these that is a positive integer."""
        for name in names:
            value = self._arguments.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST:
                return value
        return None

    def number(self, name: str) -> float | None:
        """A number from 0 to 1."""
        value = self._arguments.get(name)
        return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None

    def whole(self, name: str) -> int | None:
        """An integer from 0 up. 1.0 is none: Megatron-DeepSpeed prints an untouched default so, and ZeRO's stage is
        then what the engine's own config says."""
        value = self._arguments.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST else None

    def only(self, name: str) -> int | None:
        """The one count of an argument that may be a list, as in "[8]"; 0 where it is absent, None: there are several.

        Megatron-DeepSpeed takes a list of the experts of each layer.
        """
        counts = set(re.findall(r"\d{1,9}", self.text(name)))
        return int(counts.pop()) if len(counts) == 1 else None if counts else 0

    def on(self, *names: str) -> bool:
        """Whether any of these switches is on."""
        return any(self._arguments.get(name) is True for name in names)

    def text(self, name: str) -> str:
        """The argument as text, lower case; empty where it is absent."""
        value = self._arguments.get(name)
        return "" if value is None else str(value).lower()
