"""What stands in place of a token id where there is no token: a text's padding, a token to be found, the beginning."""

import torch
from torch import Tensor

PAD, MASK, BEGIN = -1, -2, -3
"""There is no token; the token is to be found; nothing is known of what comes before."""


def before(tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Texts for training on next tokens: what is before each token (B, n), and the token (B, n).

    Args:
        tokens: ids (B, n).
        valid: (B, n) bool, which of them are tokens; padding comes after them.

    Returns:
        The token before each, of the first BEGIN; and the tokens, PAD where there is none.
    """
    y = torch.where(valid, tokens, PAD)
    return torch.cat([torch.full_like(y[:, :1], BEGIN), y[:, :-1]], dim=1), y
