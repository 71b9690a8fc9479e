"""Models: shared layers, one short file per family, and the loader."""
