"""The terminal's side: `psd generate` and `psd chat`, against a server or an engine in this process."""
