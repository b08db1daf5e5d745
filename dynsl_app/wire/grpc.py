"""The data plane over gRPC: one bidirectional stream of raw chunks per link, TLS unless it is off.

Threads, not an event loop: on two cores, with a prototype of each, an exchange of 4 KB took three quarters of the
time over ``grpc.aio``, and large ones the same. A stream costs the server three threads, all of them waiting.
"""

import contextlib
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

import grpc

from dynsl_app.errors import LinkClosed, WireError
from dynsl_app.settings import WireSettings
from dynsl_app.wire import address, description, security
from dynsl_app.wire.base import Accept, Endpoint, Pacer
from dynsl_app.wire.protocol import VERSION, check_version
from dynsl_app.wire.serving import serve
from dynsl_app.wire.stream import LINGER_S, StreamLink

SCHEME = "grpc"
SERVICE, METHOD = "dynsl.DataPlane", "Stream"
VERSION_KEY = "dynsl-wire"
"""Initial metadata of both sides: the version of the layout, in decimal."""

MAX_STREAMS = 4096
"""Streams that one server holds open; more are refused."""

_RECONNECT_MS = 200
_LOOKAHEAD_BYTES = 2**22


class GrpcTransport:
    """Makes listeners and links over gRPC.

    Parameters
    ----------
    connect_timeout
        Seconds in which :meth:`connect` waits for the server to answer.
    """

    def __init__(self, settings: WireSettings, connect_timeout: float = 20.0) -> None:
        self._settings = settings
        self._connect_timeout = connect_timeout
        self._identity: security.Identity | None = None

    def listen(self, accept: Accept) -> "GrpcListener":
        host, _ = address.split(self._settings.bind, "wire.bind")
        if self._settings.tls == "off":
            security.check_plaintext(host)
            return GrpcListener(self._settings, None, accept)
        if self._identity is None:
            self._identity = self._make_identity(host)
        return GrpcListener(self._settings, self._identity, accept)

    def _make_identity(self, host: str) -> security.Identity:
        if self._settings.certificate is None and self._settings.key is None:
            return security.run_identity({host, "localhost"})
        return security.load_identity(self._settings.certificate, self._settings.key)

    def connect(self, endpoint: Endpoint, pacer: Pacer | None = None) -> StreamLink:
        if endpoint.scheme != SCHEME:
            raise LinkClosed(
                f"the server listens on {endpoint.scheme}:{endpoint.address}: set wire={endpoint.scheme} here"
            )
        channel = _open_channel(endpoint, self._settings)
        try:
            grpc.channel_ready_future(channel).result(self._connect_timeout)
        except grpc.FutureTimeoutError:
            reason = _why_not(channel)
            channel.close()
            raise LinkClosed(
                f"nobody answered at {endpoint.address} ({_tls(endpoint)}) within {self._connect_timeout:g} s "
                f"({reason}); check that the server runs, that wire.advertise is its address as seen from here, that "
                "wire.tls is the same on both sides, and this machine's clock"
            ) from None
        return _open_stream(channel, endpoint, self._settings, self._connect_timeout, pacer)


class GrpcListener:
    """A gRPC server with one method; each stream becomes a link, served by ``accept`` in a thread of its own."""

    def __init__(self, settings: WireSettings, identity: security.Identity | None, accept: Accept) -> None:
        address.check_free(settings.bind, "wire.bind")
        self._settings = settings
        self._accept = accept
        self._links: set[StreamLink] = set()
        self._lock = threading.Lock()
        self._server = grpc.server(
            _ThreadPerStream(), options=_server_options(settings), maximum_concurrent_rpcs=MAX_STREAMS
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})])
        try:
            if identity is None:
                port = self._server.add_insecure_port(settings.bind)
            else:
                pair = [(identity.key, identity.certificate)]
                port = self._server.add_secure_port(settings.bind, grpc.ssl_server_credentials(pair))
        except RuntimeError as error:  # taken since it was looked at
            self._server.stop(None)
            raise address.unusable(settings.bind, "wire.bind", str(error)) from error
        certificate = identity.certificate if identity else None
        self._endpoint = Endpoint(SCHEME, address.advertised(settings.bind, settings.advertise, port), certificate)
        self._server.start()

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def close(self) -> None:
        with self._lock:
            links = list(self._links)
        for link in links:
            link.begin_close()
        self._server.stop(LINGER_S).wait()

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        peer = f"client at {urllib.parse.unquote(context.peer())}"
        link = StreamLink(peer, self._settings, trusted=False, cancel=context.cancel)
        context.send_initial_metadata(((VERSION_KEY, str(VERSION)),))
        with self._lock:
            self._links.add(link)
        _start(f"read {peer}", lambda: link.read(_received(requests, peer)))
        serve(link, self._accept, self._forget)
        return link.outgoing()

    def _forget(self, link: StreamLink) -> None:
        with self._lock:
            self._links.discard(link)


def _open_channel(endpoint: Endpoint, settings: WireSettings) -> Any:
    options: list[tuple[str, int | str]] = [
        *_options(settings),
        # Links of one process must not share a connection, a proxy must not stand between, and a server that comes
        # back must be found at once.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
        ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", 5 * _RECONNECT_MS),
    ]
    if endpoint.certificate is None:
        return grpc.insecure_channel(endpoint.address, options)
    options.append(("grpc.ssl_target_name_override", security.verified_name(endpoint.certificate)))
    credentials = grpc.ssl_channel_credentials(root_certificates=endpoint.certificate)
    return grpc.secure_channel(endpoint.address, credentials, options)


def _open_stream(
    channel: Any, endpoint: Endpoint, settings: WireSettings, timeout: float, pacer: Pacer | None
) -> StreamLink:
    peer = f"server at {endpoint.address}"
    link = StreamLink(peer, settings, trusted=True, cancel=channel.close, pacer=pacer)
    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(link.outgoing(), metadata=((VERSION_KEY, str(VERSION)),))
    opened: futures.Future[None] = futures.Future()

    def run() -> None:
        try:
            # Waits for the server's answer, which is empty where the stream was refused.
            metadata = dict(call.initial_metadata() or ())
            if VERSION_KEY not in metadata:
                call.cancel()
                raise _refusal(call, endpoint)
            version = metadata[VERSION_KEY]
            check_version(int(version) if version.isdecimal() else version)
        except WireError as error:
            opened.set_exception(error)
            channel.close()
            return
        opened.set_result(None)
        link.read(_received(call, peer))
        channel.close()

    _start(f"read {peer}", run)
    try:
        opened.result(timeout)
    except TimeoutError:
        channel.close()
        raise LinkClosed(f"the {peer} took the connection but did not open the stream within {timeout:g} s") from None
    return link


def _received(chunks: Iterable[bytes], peer: str) -> Iterator[bytes]:
    """The stream's chunks; where it breaks, LinkClosed with the reason."""
    try:
        yield from chunks
    except grpc.RpcError as error:
        reason = "the connection broke"
        with contextlib.suppress(AttributeError):
            reason = f"{error.code().name}: {error.details()}"
        raise LinkClosed(f"lost the {peer} ({reason})") from error


def _refusal(call: Any, endpoint: Endpoint) -> WireError:
    """Why a stream ended before it began."""
    if call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return LinkClosed(f"the server at {endpoint.address} takes no stream now: {call.details()}")
    return WireError(f"what answers at {endpoint.address} is not a DynSL server of any known version: {call.details()}")


def _why_not(channel: Any) -> str:
    """The reason why a channel is not ready, in gRPC's words: a call that does not wait fails with it."""
    try:
        channel.unary_unary(f"/{SERVICE}/Probe")(b"", timeout=1.0)
    except grpc.RpcError as error:
        return str(error.details())
    return "it became ready too late"


def _tls(endpoint: Endpoint) -> str:
    return "without TLS" if endpoint.certificate is None else "with TLS"


def _options(settings: WireSettings) -> list[tuple[str, int]]:
    beat = max(1, round(settings.heartbeat_s * 1000))
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", settings.chunk_bytes + description.MAX_BYTES + 2**12),
        ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
        ("grpc.keepalive_time_ms", beat),
        ("grpc.keepalive_timeout_ms", 2 * beat),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _server_options(settings: WireSettings) -> list[tuple[str, int]]:
    return [
        *_options(settings),
        # A taken port is an error, not shared; keepalive of clients is welcome at their pace.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 1),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _start(name: str, target: Callable[[], None]) -> None:
    threading.Thread(target=target, name=name, daemon=True).start()


class _ThreadPerStream(futures.Executor):
    """A stream holds its thread to its end, so a pool could only run short; none keeps the process from ending."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "futures.Future[Any]":
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        _start("send", run)
        return future
