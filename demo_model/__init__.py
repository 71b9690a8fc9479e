"""The built-in model `psd-demo`: procedural data, tokenizer, training, export, grading. Not imported by the server."""
