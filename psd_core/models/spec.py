"""What a checkpoint is, as numbers: everything the shared layers need to be built."""

from __future__ import annotations

from dataclasses import dataclass


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
    mlp_size: int
    rope_theta: float
    norm_eps: float
    max_positions: int  # context limit, prompt and canvas together
    has_tied_head: bool
    has_qkv_bias: bool
    mask_id: int
    eos_ids: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Weights in the checkpoint, biases and norms included; a tied head counts once."""
        attention = self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        per_layer = (
            self.hidden_size * attention
            + (attention if self.has_qkv_bias else 0)
            + self.num_heads * self.head_dim * self.hidden_size
            + 3 * self.hidden_size * self.mlp_size
            + 2 * self.hidden_size
        )
        embeddings = self.vocab_size * self.hidden_size * (1 if self.has_tied_head else 2)
        return self.num_layers * per_layer + embeddings + self.hidden_size
