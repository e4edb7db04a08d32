"""The endpoints: ``chat`` and ``models`` are the data plane, thin ASGI; the rest is the control plane, FastAPI."""
