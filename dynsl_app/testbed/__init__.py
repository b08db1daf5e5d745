"""A fleet in virtual time: the real allocators, estimators and policies over simulated devices, links and server."""
