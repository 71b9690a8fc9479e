"""The engine: parallel speculative decoding of masked diffusion language models.

Works on token ids only. Knows nothing of HTTP, text, tokenizers or the environment; `server` builds on it.
"""
