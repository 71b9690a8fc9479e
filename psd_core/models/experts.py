"""Mixture-of-experts MLP: each token goes through its few chosen experts; a forward visits each expert once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from psd_core.config import QuantizationName
from psd_core.models.parameters import new_matrix, new_weight
from psd_core.models.quantized import product
from psd_core.models.shapes import has_kernels_per_shape, pad_rows
from psd_core.models.shard import Shard
from psd_core.models.spec import ExpertsSpec


class Router(nn.Module):
    """Which experts each token goes to, and with which weight. Float32 whatever the model's dtype is."""

    def __init__(self, spec: ExpertsSpec, hidden_size: int, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        self.weight = new_weight((spec.num_experts, hidden_size), torch.float32, device)
        self.bias = new_weight((spec.num_experts,), torch.float32, device) if spec.has_bias else None

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[T, d] -> (experts [T, K] int64, weights [T, K] float32)."""
        logits = F.linear(hidden.float(), self.weight)
        scores = torch.softmax(logits, dim=-1) if self.spec.scoring == "softmax" else torch.sigmoid(logits)
        preference = scores if self.bias is None else scores + self.bias
        if self.spec.num_groups > 1:
            preference = self._keep_best_groups(preference)
        experts = torch.topk(preference, self.spec.num_chosen, dim=-1).indices
        weights = scores.gather(1, experts)
        if self.spec.renormalizes:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return experts, weights * self.spec.scale

    def _keep_best_groups(self, preference: Tensor) -> Tensor:
        """[T, E] with the experts of all but the best groups at -inf; a group counts by its two best experts."""
        grouped = preference.view(preference.shape[0], self.spec.num_groups, -1)
        group_scores = grouped.topk(2, dim=-1).values.sum(dim=-1)
        kept = torch.topk(group_scores, self.spec.top_groups, dim=-1).indices
        is_dropped = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, kept, False)
        return grouped.masked_fill(is_dropped[:, :, None], -torch.inf).view_as(preference)


class Experts(nn.Module):
    """Routed experts, and the shared one if there is one. A rank's part are some of the experts, all of the router."""

    def __init__(
        self,
        spec: ExpertsSpec,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard,
        quantization: QuantizationName = "none",
    ) -> None:
        super().__init__()
        self.router = Router(spec, hidden_size, device)
        self.own = shard.part(spec.num_experts)

        def matrix(*shape: int) -> tuple[nn.Parameter, nn.Parameter | None]:
            return new_matrix(shape, dtype, device, quantization)

        self.gate_up, self.gate_up_scale = matrix(len(self.own), 2 * spec.expert_size, hidden_size)
        self.down, self.down_scale = matrix(len(self.own), hidden_size, spec.expert_size)
        self.shared_gate_up = self.shared_down = self.shared_gate_up_scale = self.shared_down_scale = None
        if spec.shared_size:
            self.shared_gate_up, self.shared_gate_up_scale = matrix(2 * spec.shared_size, hidden_size)
            self.shared_down, self.shared_down_scale = matrix(hidden_size, spec.shared_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, d] -> [T, d], a partial sum if other ranks have experts too."""
        experts, weights = self.router(hidden)
        output = torch.zeros_like(hidden)
        # Tokens sorted by expert: one pair of products per expert that anybody chose.
        order = torch.argsort(experts.flatten(), stable=True)
        counts = torch.bincount(experts.flatten(), minlength=self.router.spec.num_experts).tolist()
        start, pads_rows = 0, has_kernels_per_shape(hidden.dtype, hidden.device)
        for expert, count in enumerate(counts):
            if count and expert in self.own:
                entries = order[start : start + count]
                tokens = entries // experts.shape[1]
                chosen = pad_rows(hidden[tokens]) if pads_rows else hidden[tokens]
                result = self._expert(expert - self.own.start, chosen)[:count]
                scale = weights.flatten()[entries, None].to(hidden.dtype)
                output.index_add_(0, tokens, result * scale)
            start += count
        if self.shared_gate_up is not None and self.shared_down is not None:
            output = output + gated(
                hidden, self.shared_gate_up, self.shared_down, self.shared_gate_up_scale, self.shared_down_scale
            )
        return output

    def _expert(self, index: int, hidden: Tensor) -> Tensor:
        """[T, d] -> [T, d] by the expert at `index` of this rank's own."""
        if self.gate_up_scale is None or self.down_scale is None:
            return gated(hidden, self.gate_up[index], self.down[index])
        scales = self.gate_up_scale[index], self.down_scale[index]
        return gated(hidden, self.gate_up[index], self.down[index], *scales)


def gated(
    hidden: Tensor, gate_up: Tensor, down: Tensor, gate_up_scale: Tensor | None = None, down_scale: Tensor | None = None
) -> Tensor:
    """SwiGLU: [T, d] -> [T, d] with `gate_up` [2 m, d] (gate first) and `down` [d, m], both quantised or neither."""
    gate, up = product(hidden, gate_up, gate_up_scale).chunk(2, dim=-1)
    return product(F.silu(gate) * up, down, down_scale)
