"""DynSL: split learning that measures unlike devices and moves layers between client and server."""

__version__ = "0.1.0"
