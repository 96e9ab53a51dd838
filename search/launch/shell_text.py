"""Options of a command in a shell script, or of a bare list of arguments: enough of a shell for launch scripts.

Variables and arrays that the text sets are put in where the command names them; nothing is run. What only a running
shell would know stays as it is written, with its dollar sign.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cost_models.errors import InvalidInput

MOST_WORDS: Final = 20_000
LARGEST: Final = 1 << 17
"""Characters of a script: far more than any has, few enough that a single word of them is read in a second."""
MOST_PUT_IN: Final = 1 << 22
"""Characters that variables stand for, all together: those that hold one another double their length at every step."""
_SEPARATORS: Final = frozenset("();&|<>\n")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?-([^}]*)|:?\?[^}]*)?\}|(\w+))")
_COMMENT: Final = re.compile(r"(?m)(^|\s)#.*$")
_DECLARES: Final = ("export", "declare", "local", "readonly")
_LAUNCHERS: Final = ("torchrun", "python", "python3", "srun", "deepspeed", "accelerate")


@dataclass
class ShellText:
    """What a script says."""

    words: list[str]
    """Of the command that trains, variables put in."""
    variables: dict[str, list[str]] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        """Option, with its two dashes → the words up to the next; of one given twice the last counts."""
        options: dict[str, tuple[str, ...]] = {}
        name = None
        for word in self.words:
            if word.startswith("--") and len(word) > 2:
                name, separator, value = word.partition("=")
                options[name] = (value,) if separator else ()
            elif word.endswith(".py"):
                name = None
            elif name is not None:
                options[name] = (*options[name], word)
        return options

    def variable(self, name: str) -> str:
        """What the text sets it to; empty: nothing."""
        return " ".join(self.variables.get(name, []))


def read_shell(text: str) -> ShellText:
    """A script, a command line, or a JSON list of arguments.

    Raises:
        InvalidInput: Quotes that do not close, or more words than any command has.
    """
    if len(text) > LARGEST:
        raise _refused("too_large", f"a launch script has at most {LARGEST} characters")
    if text.lstrip().startswith("["):
        return ShellText(_json_words(text))
    reader = _Reader()
    for command in reader.commands(_tokens(text)):
        reader.found.append(command)
    trains = [words for words in reader.found if _is_training(words)]
    return ShellText(trains[-1] if trains else [word for words in reader.found for word in words], reader.variables)


def _is_training(words: list[str]) -> bool:
    starts = any(word.rpartition("/")[2] in _LAUNCHERS or word.endswith(".py") for word in words)
    return starts and any(word.startswith("--") for word in words)


def _json_words(text: str) -> list[str]:
    try:
        words = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused("syntax", f"this is no JSON list of arguments: {error}") from error
    if not isinstance(words, list) or len(words) > MOST_WORDS or not all(isinstance(w, str | int) for w in words):
        raise _refused("syntax", "a JSON list of arguments holds texts and numbers only")
    return [str(word) for word in words]


def _tokens(text: str) -> list[str]:
    joined = re.sub(r"\\\r?\n", " ", text)
    lexer = shlex.shlex(_COMMENT.sub(r"\1", joined), posix=True, punctuation_chars="();&|<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer)
    except ValueError as error:
        raise _refused("syntax", f"this is no shell script: {error}") from error


class _Reader:
    """Goes through the tokens; `variables` are those that were set so far."""

    def __init__(self) -> None:
        self.variables: dict[str, list[str]] = {}
        self.found: list[list[str]] = []
        self._put_in = 0

    def commands(self, tokens: list[str]) -> Iterator[list[str]]:
        """The words of each command that is no assignment."""
        words: list[str] = []
        position = 0
        while position < len(tokens):
            token = tokens[position]
            position += 1
            following = tokens[position] if position < len(tokens) else ""
            assignment = _ASSIGNMENT.fullmatch(token)
            if _is_separator(token):
                if words:
                    yield words
                words = []
            elif token.isdecimal() and following.startswith(">"):
                continue  # the number of a stream that is sent elsewhere
            elif assignment and all(word in _DECLARES for word in words):
                if not assignment.group(3) and following.startswith("("):
                    position = self._array(assignment, tokens, position)
                else:
                    self._set(assignment, self._expanded(assignment.group(3)))
            else:
                words += self._expanded(token)
                _bounded(words)
        if words:
            yield words

    def _array(self, assignment: re.Match[str], tokens: list[str], position: int) -> int:
        if tokens[position].strip("\n") != "(":
            return position + 1  # an empty one, "()", or arithmetic
        held: list[str] = []
        position += 1
        while position < len(tokens) and not tokens[position].strip("\n").startswith(")"):
            if not _is_separator(tokens[position]):
                held += self._expanded(tokens[position])
                _bounded(held)
            position += 1
        self._set(assignment, held)
        return position + 1

    def _set(self, assignment: re.Match[str], words: list[str]) -> None:
        name, appends, _ = assignment.groups()
        before = self.variables.get(name, []) if appends else []
        self.variables[name] = _bounded([*before, *words])

    def _expanded(self, token: str) -> list[str]:
        whole = _VARIABLE.fullmatch(token)
        if whole:
            # Whether it was quoted is not known; split, only names with spaces differ, of files that nobody reads here.
            return [word for held in self._value(whole) for word in held.split()]
        return [_VARIABLE.sub(lambda found: " ".join(self._value(found)), token)]

    def _value(self, found: re.Match[str]) -> list[str]:
        name, default, plain = found.groups()
        held = self.variables.get(name or plain)
        if held is None:
            return [found.group()] if default is None else default.split()
        self._put_in += sum(len(word) + 1 for word in held)
        if self._put_in > MOST_PUT_IN:
            raise _refused("too_large", f"variables stand for more than {MOST_PUT_IN} characters")
        return held


def _is_separator(token: str) -> bool:
    return bool(token) and set(token) <= _SEPARATORS


def _bounded(words: list[str]) -> list[str]:
    if len(words) > MOST_WORDS:
        raise _refused("too_large", f"a command has more than {MOST_WORDS} words")
    return words


def _refused(code: str, message: str) -> InvalidInput:
    return InvalidInput(("content",), code, message)
