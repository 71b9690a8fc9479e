"""What a checkpoint is, as numbers: everything the shared layers need to be built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from psd_core.config import AttentionName, attention_name


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture-of-experts MLP. Sizes are features per expert.

    scoring           "softmax": scores over all experts; "sigmoid": one score per expert, with groups and a bias that
                      counts for the choice only (DeepSeek-V3's router, arXiv 2412.19437)
    num_groups        experts are chosen from the `top_groups` best of so many groups; 1: no groups
    renormalizes      the chosen scores are divided by their sum
    """

    num_experts: int
    num_chosen: int
    expert_size: int
    shared_size: int  # of the expert that every token passes through; 0: there is none
    scoring: Literal["softmax", "sigmoid"]
    renormalizes: bool
    scale: float
    has_bias: bool
    num_groups: int
    top_groups: int
    num_dense_layers: int  # leading layers with an ordinary MLP


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape and constants of one model. Sizes are counts of features, heads, layers or tokens."""

    architecture: str  # `architectures[0]` of config.json
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int  # of dense layers
    rope_theta: float
    norm_eps: float
    max_positions: int  # context limit, prompt and canvas together
    has_tied_head: bool
    has_qkv_bias: bool
    mask_id: int
    eos_ids: tuple[int, ...]
    rotary_dim: int | None = None  # leading features of each head that are rotated; None: all
    has_qk_norm: bool = False  # queries and keys are normed per head before rotation
    is_shifted: bool = False  # the logits at a position predict the next one
    block_length: int | None = None  # of a causal attention; None: everything sees everything
    is_context_causal: bool = False  # of the causal attentions: context-causal, not block-causal
    has_out_bias: bool = False  # the projection behind the attention has a bias
    experts: ExpertsSpec | None = None

    @property
    def attention(self) -> AttentionName:
        """What its tokens see."""
        return attention_name(self.block_length, self.is_context_causal)

    @property
    def num_parameters(self) -> int:
        """Weights in the checkpoint, biases and norms included; a tied head counts once."""
        qkv = self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        attention = self.hidden_size * qkv + self.num_heads * self.head_dim * self.hidden_size
        attention += (qkv if self.has_qkv_bias else 0) + (2 * self.head_dim if self.has_qk_norm else 0)
        attention += self.hidden_size if self.has_out_bias else 0
        dense, experts, num_dense = 3 * self.hidden_size * self.mlp_size, 0, self.num_layers
        if self.experts is not None:
            num_dense = self.experts.num_dense_layers
            features = self.experts.num_experts * self.experts.expert_size + self.experts.shared_size
            experts = 3 * self.hidden_size * features + self.experts.num_experts * self.hidden_size
            experts += self.experts.num_experts if self.experts.has_bias else 0
        mlps = num_dense * dense + (self.num_layers - num_dense) * experts
        embeddings = self.vocab_size * self.hidden_size * (1 if self.has_tied_head else 2)
        norms = (2 * self.num_layers + 1) * self.hidden_size
        return self.num_layers * attention + mlps + embeddings + norms
