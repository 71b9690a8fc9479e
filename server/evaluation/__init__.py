"""`psd eval` and `psd calibrate`: decoders measured over tasks, against an engine in this process or a server.

Not part of the server: nothing that serves imports this package.
"""
