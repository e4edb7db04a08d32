"""Inference servers: registering them, choosing one for a call, watching them, talking to them."""
