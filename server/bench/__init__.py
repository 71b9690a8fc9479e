"""`psd bench`: measures any server that speaks OpenAI's API, from outside. Knows nothing of engine or model."""
