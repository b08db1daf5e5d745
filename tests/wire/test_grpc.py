"""gRPC's own: addresses, certificates, other versions, peers that die, frames that are none."""

import contextlib
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
import torch
from cryptography import x509

from dynsl_app.errors import LinkClosed, SettingsError, WireError
from dynsl_app.settings import WireSettings
from dynsl_app.wire.base import Endpoint, Frame, Kind, Link, Listener
from dynsl_app.wire.grpc import METHOD, SERVICE, VERSION_KEY, GrpcTransport
from dynsl_app.wire.protocol import Decoder, encode
from dynsl_app.wire.security import run_identity

Listen, Connect = Callable[..., Listener], Callable[..., Link]

PLAIN = WireSettings(tls="off", chunk_bytes=2**16)
SECURE = WireSettings(tls="on", chunk_bytes=2**16)
HELLO = Frame(Kind.HELLO, 0, 0)
LARGE = Frame(Kind.ACTIVATION, 1, 2, 3, tensors={"activation": torch.zeros(2**20)})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def raw_call(listener: Listener, chunks: Iterator[bytes]) -> Iterator[Frame]:
    """What the server answers to these chunks, sent as they are."""
    decoder = Decoder(2**30)
    with grpc.insecure_channel(listener.endpoint.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        for chunk in channel.stream_stream(f"/{SERVICE}/{METHOD}")(chunks):
            frame = decoder.feed(chunk)
            if frame is not None and frame.kind is not Kind.PING:
                yield frame


# Certificates and addresses


def test_tls_is_on_by_default(listen: Listen, connect: Connect) -> None:
    listener = listen(WireSettings())
    certificate = listener.endpoint.certificate
    assert certificate is not None
    assert b"BEGIN CERTIFICATE" in certificate
    assert b"PRIVATE" not in certificate
    connect(WireSettings(), listener)


def test_no_tls_beyond_this_machine() -> None:
    with pytest.raises(SettingsError, match=r"wire\.tls=off would send .* on 0\.0\.0\.0"):
        GrpcTransport(WireSettings(tls="off", bind="0.0.0.0:0")).listen(lambda link: None)


def test_a_taken_port_is_named(listen: Listen) -> None:
    listener = listen(PLAIN)
    with pytest.raises(SettingsError, match=f"wire.bind={listener.endpoint.address}: cannot listen there"):
        listen(WireSettings(tls="off", bind=listener.endpoint.address))


def test_a_taken_port_is_one_error_and_nothing_in_grpcs_words(capfd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        for settings in (WireSettings(bind=bind), WireSettings(tls="off", bind=bind)):
            with pytest.raises(SettingsError, match=rf"wire\.bind={bind}: .* \(Address already in use"):
                GrpcTransport(settings).listen(lambda link: None)
    with pytest.raises(SettingsError, match=r"wire\.bind=192\.0\.2\.1:0: cannot listen there"):
        GrpcTransport(WireSettings(bind="192.0.2.1:0")).listen(lambda link: None)
    assert capfd.readouterr().err == ""


def test_the_port_is_free_after_closing(listen: Listen) -> None:
    first = listen(SECURE)
    first.close()
    again = listen(WireSettings(bind=first.endpoint.address))
    assert again.endpoint.address == first.endpoint.address


def test_users_certificate_is_used(listen: Listen, connect: Connect, user_certificate) -> None:
    """Clients trust it alone, without its authority, and whatever address they connect to."""
    certificate, key = user_certificate(names=[x509.DNSName("lab.example")])
    settings = WireSettings(certificate=certificate, key=key)
    listener = listen(settings)
    assert listener.endpoint.certificate == Path(certificate).read_bytes()
    connect(settings, listener)


@pytest.mark.parametrize("certificate", [None, run_identity([]).certificate], ids=["none", "another"])
def test_whoever_lacks_the_certificate_stays_out(listen: Listen, certificate: bytes | None) -> None:
    listener = listen(SECURE)
    endpoint = Endpoint("grpc", listener.endpoint.address, certificate)
    with pytest.raises(LinkClosed, match=r"nobody answered at 127\.0\.0\.1:\d+ \(with.* TLS\) within 0\.5 s"):
        GrpcTransport(SECURE, connect_timeout=0.5).connect(endpoint)


def test_nobody_there() -> None:
    address = f"127.0.0.1:{free_port()}"
    begin = time.monotonic()
    with pytest.raises(LinkClosed, match=rf"{address} \(without TLS\) within 0\.5 s .*refused.*wire\.advertise"):
        GrpcTransport(PLAIN, connect_timeout=0.5).connect(Endpoint("grpc", address))
    assert time.monotonic() - begin < 5


def test_another_transports_endpoint() -> None:
    with pytest.raises(LinkClosed, match="set wire=inprocess"):
        GrpcTransport(PLAIN).connect(Endpoint("inprocess", "listener-0"))


def test_proxies_of_the_environment_are_not_used(listen: Listen, connect: Connect, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("no_grpc_proxy", "")
    connect(SECURE, listen(SECURE))


# Other programs and other versions


@contextlib.contextmanager
def foreign_server(metadata: tuple[tuple[str, str], ...], answer: bool = True) -> Iterator[Endpoint]:
    """A gRPC server that opens streams with this metadata and then waits for the client to leave."""
    left = threading.Event()

    def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(left.set)
        if answer:
            context.send_initial_metadata(metadata)
        left.wait(20)
        return iter(())

    server = grpc.server(futures.ThreadPoolExecutor(2))
    handler = grpc.stream_stream_rpc_method_handler(serve)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Endpoint("grpc", f"127.0.0.1:{port}")
    left.set()
    server.stop(None).wait()


@pytest.mark.parametrize("version", ["2", "0", "new"])
def test_a_server_of_another_version(version: str) -> None:
    with (
        foreign_server(((VERSION_KEY, version),)) as endpoint,
        pytest.raises(
            WireError, match=f"wire version {version}, this side version 1: install the same release"
        ) as refused,
    ):
        GrpcTransport(PLAIN).connect(endpoint)
    assert not isinstance(refused.value, LinkClosed), "trying again would not help"


def test_a_server_of_another_program() -> None:
    with foreign_server(()) as endpoint, pytest.raises(WireError, match="not a DynSL server"):
        GrpcTransport(PLAIN).connect(endpoint)


def test_a_server_without_our_service() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(WireError, match="not a DynSL server"):
        GrpcTransport(PLAIN).connect(Endpoint("grpc", f"127.0.0.1:{port}"))
    server.stop(None).wait()


def test_a_server_that_never_opens_the_stream() -> None:
    with (
        foreign_server((), answer=False) as endpoint,
        pytest.raises(LinkClosed, match=r"did not open .* within 0\.3 s"),
    ):
        GrpcTransport(PLAIN, connect_timeout=0.3).connect(endpoint)


def test_a_client_of_another_version(listen: Listen, connect: Connect) -> None:
    """Its frames are refused with a reason, and nobody else notices."""
    listener = listen(PLAIN)
    good = connect(PLAIN, listener)
    chunk = bytearray(next(iter(encode(HELLO, 4096))))
    chunk[4] = 2
    (answer,) = raw_call(listener, iter([bytes(chunk)]))
    assert answer.kind is Kind.ERROR
    assert "the peer speaks wire version 2, this side version 1" in str(answer.meta["message"])
    good.send(LARGE)
    assert good.receive(20).batch == 3


# Bad frames


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda chunks: [pickle.dumps("a frame")], "not a DynSL frame"),
        (lambda chunks: [chunks[0], chunks[2]], "is missing"),
        (lambda chunks: [chunks[0][:30]], "truncated"),
        (lambda chunks: [chunks[0], chunks[1] + bytes(2**22)], "trail"),
        (lambda chunks: [chunks[0].replace(b"float32", b"pickle!"), *chunks[1:]], "'pickle!'"),
    ],
    ids=["pickle", "missing chunk", "truncated", "too long", "dtype"],
)
def test_a_corrupt_frame_ends_its_own_link_only(listen: Listen, connect: Connect, spoil, message: str) -> None:
    """The server's link raises, the peer is told why, other links go on."""
    settings = WireSettings(tls="off", chunk_bytes=2**23)
    raised: list[WireError] = []
    trusted = threading.Event()

    def accept(link: Link) -> None:
        hello = link.receive(20)
        link.trust()
        link.send(hello)
        try:
            while True:
                link.send(link.receive(20))
        except LinkClosed:
            raise
        except WireError as error:
            raised.append(error)
            trusted.set()
            raise

    listener = listen(settings, accept)
    good = connect(settings, listener)
    answered = threading.Event()

    def chunks() -> Iterator[bytes]:
        yield from encode(HELLO, 4096)
        answered.wait(20)
        yield from spoil(list(encode(LARGE, 2**20)))
        trusted.wait(20)

    answers = raw_call(listener, chunks())
    assert next(answers).kind is Kind.HELLO
    answered.set()
    last = next(answers)
    assert last.kind is Kind.ERROR
    assert message in str(last.meta["message"])
    assert list(answers) == []
    assert trusted.wait(20)
    assert message in str(raised[0])
    good.send(LARGE)
    assert good.receive(20).batch == 3


def test_a_corrupt_frame_of_the_server(connect: Connect) -> None:
    """A client refuses as a server does, and tells the server why."""
    told: list[Frame] = []
    done = threading.Event()

    def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.send_initial_metadata(((VERSION_KEY, "1"),))
        yield pickle.dumps("a frame")
        decoder = Decoder(2**20)
        told.extend(frame for chunk in requests if (frame := decoder.feed(chunk)))
        done.set()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    handler = grpc.stream_stream_rpc_method_handler(serve)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    link = GrpcTransport(PLAIN).connect(Endpoint("grpc", f"127.0.0.1:{port}"))
    with pytest.raises(WireError, match=r"refused what the server at 127\.0\.0\.1:\d+ sent: not a DynSL frame"):
        link.receive(20)
    assert done.wait(20)
    assert told[-1].kind is Kind.ERROR
    assert "not a DynSL frame" in str(told[-1].meta["message"])
    link.close()
    server.stop(None).wait()


def test_chunks_beyond_the_bound_do_not_get_in(listen: Listen, connect: Connect) -> None:
    """gRPC itself refuses a message larger than chunks are, before it is in memory."""
    listener = listen(PLAIN)
    good = connect(PLAIN, listener)
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        list(raw_call(listener, iter([bytes(2**23)])))
    good.send(LARGE)
    assert good.receive(20).batch == 3


# Peers that die


SERVER = """
import sys
from dynsl_app.settings import WireSettings
from dynsl_app.wire.base import Frame
from dynsl_app.wire.grpc import GrpcTransport

def echo(link):
    first = link.receive()
    link.trust()
    link.send(first)
    while True:
        frame = link.receive()
        link.send(frame)

bind, certificate, key = sys.argv[1:]
listener = GrpcTransport(WireSettings(bind=bind, certificate=certificate, key=key)).listen(echo)
print(listener.endpoint.address, flush=True)
sys.stdin.read()
"""

CLIENT = """
import os, signal, sys
import grpc, torch
from dynsl_app.wire.base import Frame, Kind
from dynsl_app.wire.grpc import METHOD, SERVICE
from dynsl_app.wire.protocol import encode

def chunks():
    yield from encode(Frame(Kind.HELLO, 7, 0), 4096)
    sys.stdin.readline()
    upload = iter(encode(Frame(Kind.ACTIVATION, 7, 0, 5, tensors={"activation": torch.zeros(2**20)}), 2**16))
    for _ in range(10):
        yield next(upload)
    os.kill(os.getpid(), signal.SIGKILL)

for chunk in grpc.insecure_channel(sys.argv[1]).stream_stream(f"/{SERVICE}/{METHOD}")(chunks()):
    print("answered", flush=True)
"""


@contextlib.contextmanager
def process(script: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    child = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def read_line(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_a_killed_server_comes_back_under_tls(user_certificate) -> None:
    """User case 29: kill and restart under TLS, on the same port with the same certificate; clients reconnect."""
    certificate, key = user_certificate(names=[x509.DNSName("lab.example")])
    transport = GrpcTransport(SECURE)
    with process(SERVER, "127.0.0.1:0", certificate, key) as server:
        endpoint = Endpoint("grpc", read_line(server), Path(certificate).read_bytes())
        link = transport.connect(endpoint)
        link.send(HELLO)
        assert link.receive(20).kind is Kind.HELLO
        begin = time.monotonic()
        server.kill()
        with pytest.raises(LinkClosed, match=r"lost the server at 127\.0\.0\.1"):
            link.receive(20)
        assert time.monotonic() - begin < 5, "at once, not after missed heartbeats"
        link.close()
    with process(SERVER, endpoint.address, certificate, key) as server:
        # The server is still starting: connecting waits for it.
        again = transport.connect(endpoint)
        assert read_line(server) == endpoint.address
        again.send(HELLO)
        assert again.receive(20).kind is Kind.HELLO
        again.send(LARGE)
        assert again.receive(20).batch == 3
        again.close()


def test_a_client_killed_during_an_upload(listen: Listen, connect: Connect) -> None:
    """User case 30: the server's link closes at once, half a frame is never seen, other links go on."""
    got: list[Frame] = []
    closed: futures.Future[str] = futures.Future()

    def accept(link: Link) -> None:
        hello = link.receive()
        link.trust()
        link.send(hello)
        try:
            while True:
                frame = link.receive()
                if hello.client == 7:
                    got.append(frame)
                else:
                    link.send(frame)
        except LinkClosed as error:
            if hello.client == 7:
                closed.set_result(str(error))

    listener = listen(PLAIN, accept)
    good = connect(PLAIN, listener)
    with process(CLIENT, listener.endpoint.address) as client:
        while read_line(client) != "answered":
            assert client.poll() is None
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
        client.wait(20)
        begin = time.monotonic()
        assert "client at" in closed.result(20)
        assert time.monotonic() - begin < 5
    assert got == []
    good.send(LARGE)
    assert good.receive(20).batch == 3
