"""BERT's uncased tokens: words and marks, then the longest pieces of the vocabulary
(Devlin et al. 2018).
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

from tersify.lab.data.roots import check_file

LONGEST_WORD = 100
# First and last of the characters that are words of their own, as BERT has it: marks of
# ASCII, also those that Unicode calls symbols, and Chinese characters.
_ALONE = (
    ("!", "/"),
    (":", "@"),
    ("[", "`"),
    ("{", "~"),
    ("\u4e00", "\u9fff"),
    ("\u3400", "\u4dbf"),
    ("\uf900", "\ufaff"),
)


class WordPiece:
    """Text → token numbers, as the checkpoint with this vocab.txt was trained on."""

    def __init__(self, vocabulary: Path) -> None:
        check_file(vocabulary)
        pieces = vocabulary.read_text(encoding="utf-8").splitlines()
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        for needed in ("[PAD]", "[UNK]", "[CLS]", "[SEP]"):
            if needed not in self._numbers:
                raise ValueError(
                    f"{str(vocabulary)!r} holds no {needed}; give the vocab.txt of an uncased BERT"
                )

    def encode(self, text: str, length: int) -> list[int]:
        """[CLS], the pieces, [SEP], padded or cut to `length`."""
        pieces = [number for word in _words(text) for number in self._pieces(word)][
            : length - 2
        ]
        row = [self._numbers["[CLS]"], *pieces, self._numbers["[SEP]"]]
        return row + [self._numbers["[PAD]"]] * (length - len(row))

    def _pieces(self, word: str) -> list[int]:
        found: list[int] = []
        start = 0
        # Greedy, longest piece first, as BERT's own tokenizer does it.
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next(
                (end for end in ends if mark + word[start:end] in self._numbers), None
            )
            if end is None or len(word) > LONGEST_WORD:
                return [self._numbers["[UNK]"]]
            found.append(self._numbers[mark + word[start:end]])
            start = end
        return found


def _words(text: str) -> list[str]:
    """Lower case without accents, split at white space and around every mark and every
    Chinese character.
    """
    # NFD splits a letter from its accents, which are marks of the category Mn.
    plain = "".join(
        c
        for c in unicodedata.normalize("NFD", text.lower())
        if unicodedata.category(c) != "Mn"
    )
    spaced = "".join(
        f" {c} " if _stands_alone(c) else "" if _is_control(c) else c for c in plain
    )
    return spaced.split()


def _stands_alone(c: str) -> bool:
    """Whether the character is a word of its own: marks and Chinese characters."""
    if any(first <= c <= last for first, last in _ALONE):
        return True
    return unicodedata.category(c).startswith("P")


def _is_control(c: str) -> bool:
    return c not in "\t\n\r" and unicodedata.category(c).startswith("C")
