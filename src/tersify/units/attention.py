"""Attention whose heads can go one by one, in place of nn.MultiheadAttention's one
packed weight.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class HeadAttention(nn.Module):
    """What nn.MultiheadAttention computes, from four linear layers, with any number of
    heads of `head_dim`.
    """

    # nn.TransformerEncoderLayer asks for these before it takes its fast path, which
    # needs the packed weight.
    in_proj_bias = None
    _qkv_same_embed_dim = False
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    def __init__(self, of: nn.MultiheadAttention) -> None:
        super().__init__()
        self.head_dim = of.head_dim
        self.batch_first = of.batch_first
        self.dropout = of.dropout
        packed = of.in_proj_bias is not None
        # in_proj_weight [3 · embed_dim, embed_dim] holds queries, keys and values in
        # this order.
        weight, like = (
            of.in_proj_weight,
            {"device": of.in_proj_weight.device, "dtype": of.in_proj_weight.dtype},
        )
        for i, name in enumerate(("q_proj", "k_proj", "v_proj")):
            layer = nn.Linear(of.embed_dim, of.embed_dim, packed, **like)
            rows = slice(i * of.embed_dim, (i + 1) * of.embed_dim)
            layer.weight = nn.Parameter(weight[rows].detach().clone())
            if packed:
                layer.bias = nn.Parameter(of.in_proj_bias[rows].detach().clone())
            self.add_module(name, layer)
        self.out_proj = nn.Linear(
            of.embed_dim, of.embed_dim, of.out_proj.bias is not None, **like
        )
        self.out_proj.load_state_dict(of.out_proj.state_dict())
        self.train(of.training)

    @staticmethod
    def can_replace(module: nn.Module) -> bool:
        return (
            # Keys and values of other widths, extra bias rows and an added zero token
            # have no counterpart in the four linear layers.
            isinstance(module, nn.MultiheadAttention)
            and module._qkv_same_embed_dim
            and module.bias_k is None
            and not module.add_zero_attn
        )

    @torch.no_grad()
    def merged(self, like: nn.MultiheadAttention) -> nn.MultiheadAttention:
        """The packed form again, as long as no head is gone."""
        # Copied for its settings; all its weights are overwritten.
        whole = copy.deepcopy(like)
        parts = (self.q_proj, self.k_proj, self.v_proj)
        whole.in_proj_weight.copy_(torch.cat([layer.weight for layer in parts]))
        if whole.in_proj_bias is not None:
            whole.in_proj_bias.copy_(torch.cat([layer.bias for layer in parts]))
        whole.out_proj.load_state_dict(self.out_proj.state_dict())
        return whole.train(self.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        # Brought to [N, L, E] whatever the caller's layout is.
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        # [N, L, heads · head_dim] → [N, heads, L, head_dim]. The number of heads is
        # left open, because some of them may be gone.
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer, x in (
                (self.q_proj, query),
                (self.k_proj, key),
                (self.v_proj, value),
            )
        )
        bias = _additive(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        out = (
            F.scaled_dot_product_attention(q, k, v, bias, dropout)
            .transpose(1, 2)
            .flatten(-2)
        )
        out = self.out_proj(out)
        weights = None
        if need_weights:
            # The fused attention does not return its weights, so they are computed
            # again.
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            weights = (scores if bias is None else scores + bias).softmax(-1)
            weights = weights.mean(1) if average_attn_weights else weights
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights


def _additive(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor
) -> Tensor | None:
    """Both masks as one summand of the scores (N, heads, L, S); True means 'do not
    look'.
    """
    if attn_mask is not None and attn_mask.dim() != 2:
        raise ValueError(
            f"attn_mask has {attn_mask.dim()} dimensions; attention that may lose heads takes one mask (L, S) for all"
        )
    padding = (
        None
        if key_padding_mask is None
        else key_padding_mask.reshape(-1, 1, 1, key_padding_mask.shape[-1])
    )
    bias = None
    for mask in (attn_mask, padding):
        if mask is not None:
            if mask.dtype == torch.bool:
                # True becomes −∞, which softmax turns into a weight of 0.
                mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(
                    mask, float("-inf")
                )
            bias = mask if bias is None else bias + mask
    return bias
