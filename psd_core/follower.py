"""A rank of a model that is not the first: computes what rank 0 orders, decides nothing, knows no request."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from psd_core.batch import Batch
from psd_core.kvcache.store import KVStore, affordable_slots
from psd_core.models.layers import DiffusionDecoder
from psd_core.orders import receive

logger = logging.getLogger(__name__)


class Follower:
    """One rank's part of a model on one device. Owns its keys and values."""

    def __init__(self, model: DiffusionDecoder) -> None:
        """Returns once rank 0 has its runner."""
        local = model.local
        self._model = model
        model.group.least(
            affordable_slots(local.num_layers, local.num_kv_heads, local.head_dim, model.dtype, model.device)
        )
        num_slots, self._max_logit_rows = model.group.tell([0, 0])
        self._store = KVStore(
            local.num_layers, num_slots, local.num_kv_heads, local.head_dim, model.dtype, model.device
        )

    @torch.inference_mode()
    def run(self, on_order: Callable[[], object] = lambda: None) -> None:
        """Obey until rank 0 is gone; `on_order` is called after each. RuntimeError if one goes in the middle."""
        model = self._model
        while True:
            try:
                order = receive(model.group, model.dtype, model.device)
            except RuntimeError as error:
                logger.debug("rank 0 is gone: %s", error)
                return
            if isinstance(order, Batch):
                self._forward(order)
            else:
                for copy in order:
                    self._store.copy(copy.source, copy.target, copy.length)
            on_order()

    def _forward(self, batch: Batch) -> None:
        """As `Runner` does it, without the choice of tokens."""
        hidden = self._model(batch, self._store)
        for start in range(0, batch.score_index.shape[0], self._max_logit_rows):
            self._model.project(hidden[batch.score_index[start : start + self._max_logit_rows]])
