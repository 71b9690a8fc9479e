"""The key-value cache: modes (what is computed), slots (who owns what), store (the tensors)."""
