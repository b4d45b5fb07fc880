"""Text as tokens: its characters, its bytes in UTF-8, or what the owner's tokenizer makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdf_market.errors import UsageError, ensure
from gdf_market.train.source_columns import Text, Tokenizer, Tokens, as_array

BETWEEN = "\n"  # documents of one file
BYTES = 256


def tokenize(texts: list[Text], tokenizer: Tokenizer) -> list[Tokens]:
    """Return the tokens of each text.

    The vocabulary of ``characters`` is the sorted set of the characters of all texts, that of ``bytes`` has 256.
    A callable gets one document at a time.  Raises UsageError for an empty text or a tokenizer that gives no integers.
    """
    for text in texts:
        ensure(
            any(text.documents),
            UsageError("data is an empty text; give the text to train on, or the path of a .txt file"),
        )
    if callable(tokenizer):
        return [_apply(text, tokenizer) for text in texts]
    if tokenizer == "bytes":
        joined = [BETWEEN.join(text.documents).encode("utf-8", errors="surrogatepass") for text in texts]
        return [Tokens(np.frombuffer(data, np.uint8), BYTES) for data in joined]
    points = [
        np.frombuffer(BETWEEN.join(text.documents).encode("utf-32-le", errors="surrogatepass"), "<u4") for text in texts
    ]
    characters = np.unique(np.concatenate([np.unique(part) for part in points]))
    return [Tokens(np.searchsorted(characters, part), len(characters)) for part in points]


def _apply(text: Text, tokenizer: Any) -> Tokens:
    parts = []
    for document in text.documents:
        found = tokenizer(document)
        if hasattr(found, "keys"):  # what a Hugging Face tokenizer returns
            found = found["input_ids"]
        array = as_array(found, "tokenizer")
        ensure(
            array.ndim == 1 and (array.dtype.kind in "iu" or array.size == 0),
            UsageError(
                f"the tokenizer gave {array.dtype.name}{list(array.shape)} for a document; it has to return a flat "
                "list of integers"
            ),
        )
        parts.append(array.astype(np.int64))
    return Tokens(np.concatenate(parts))
