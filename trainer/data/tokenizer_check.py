"""Are the logged tokens of this model's tokenizer? A cheap look at every batch, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.data.samples import Turn
from trainer.errors import TokenizerMismatch


def check_tokenizer(turns: Sequence[Turn], vocabulary: int) -> None:
    """Raises ``TokenizerMismatch`` if a token id is not in the model's vocabulary.

    An engine that serves another model with a vocabulary that happens to fit is found by the parity gate.
    """
    for turn in turns:
        for tokens in (turn.prompt, turn.completion):
            if len(tokens) and (int(tokens.max()) >= vocabulary or int(tokens.min()) < 0):
                raise TokenizerMismatch(
                    f"span {turn.id} has token id {int(tokens.max())}, but the model has {vocabulary} tokens: the engine "
                    "serves another model than the recipe's model.path"
                )
