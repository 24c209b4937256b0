"""Tracing: one run of forward and loss, recorded as a ``torch.fx.Graph`` beside autograd's own."""
