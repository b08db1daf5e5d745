"""Choose cuts from costs. Sees no sockets, tensors or clocks."""
