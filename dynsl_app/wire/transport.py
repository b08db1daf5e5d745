"""Which transport the settings ask for."""

from dynsl_app.settings import WireSettings
from dynsl_app.wire.base import Transport


def make_transport(settings: WireSettings) -> Transport:
    """The transport named by ``wire.name``; gRPC is imported only where it is used."""
    if settings.name == "inprocess":
        from dynsl_app.wire.inprocess import InprocessTransport

        return InprocessTransport(settings)
    from dynsl_app.wire.grpc import GrpcTransport

    return GrpcTransport(settings)
