"""Sentence polarity (Pang and Lee 2005): 10,662 sentences of film reviews, good or bad."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from tersify.lab.data.roots import check_file
from tersify.lab.data.types import Data, Split
from tersify.lab.data.wordpiece import WordPiece

ARCHIVE = "sentence_polarity.zip"
VOCABULARY = "minilm/vocab.txt"
TOKENS = 48
TEST_EVERY = 10  # every tenth sentence of each kind is for the test
WINDOW = 64  # bytes


def polarity(root: Path) -> Data:
    """Each sentence as tokens of MiniLM's vocabulary; class 0 is bad, 1 good."""
    words = WordPiece(root / VOCABULARY)
    kinds = [[words.encode(text, TOKENS) for text in kind] for kind in _sentences(root)]
    parts = []
    for for_test in (False, True):
        chosen = [
            (row, label)
            for label, rows in enumerate(kinds)
            for index, row in enumerate(rows)
            if (index % TEST_EVERY == 0) == for_test
        ]
        # Mixed, so that the first so many of them hold both kinds.
        order = torch.randperm(
            len(chosen), generator=torch.Generator().manual_seed(0)
        ).tolist()
        rows, labels = zip(*(chosen[i] for i in order), strict=True)
        parts.append(Split(torch.tensor(rows), torch.tensor(labels)))
    train, test = parts
    return Data(
        "polarity",
        train,
        test,
        classes=2,
        mean=(0.0,),
        std=(1.0,),
        class_names=("bad", "good"),
    )


def polarity_bytes(root: Path) -> Data:
    """The same text for a language model: windows of bytes, each labelled with the byte
    that follows.
    """
    parts = []
    for for_test in (False, True):
        kept = [
            text
            for kind in _sentences(root)
            for i, text in enumerate(kind)
            if (i % TEST_EVERY == 0) == for_test
        ]
        stream = torch.tensor(list("\n".join(kept).encode()))
        count = (len(stream) - 1) // WINDOW
        # The label of each byte is the next one: the same stream, shifted by one.
        inputs, following = (
            stream[start:][: count * WINDOW].view(count, WINDOW) for start in (0, 1)
        )
        parts.append(Split(inputs, following))
    train, test = parts
    return Data("polarity-bytes", train, test, classes=256, mean=(0.0,), std=(1.0,))


def _sentences(root: Path) -> list[list[str]]:
    path = next(
        (p for p in (root / ARCHIVE, root / "text" / ARCHIVE) if p.is_file()),
        root / ARCHIVE,
    )
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            texts = [
                archive.read(f"sentence_polarity/rt-polarity.{kind}").decode("latin-1")
                for kind in ("neg", "pos")
            ]
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(
            f"{str(path)!r} is not the sentence polarity archive: {error}; fetch it again"
        ) from None
    return [
        [line.strip() for line in text.split("\n") if line.strip()] for text in texts
    ]
