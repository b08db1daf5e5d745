"""Running what serves a link, for every transport alike."""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from dynsl_app.errors import LinkClosed, WireError
from dynsl_app.wire.base import Accept, Link

AnyLink = TypeVar("AnyLink", bound=Link)

log = logging.getLogger(__name__)


def serve(link: AnyLink, accept: Accept, done: Callable[[AnyLink], None]) -> None:
    """Run ``accept`` in a thread of its own; however it ends, the link is closed and other links go on."""

    def run() -> None:
        try:
            accept(link)
        except LinkClosed as error:
            log.info("%s: %s", link.peer, error)
        except WireError as error:
            log.warning("%s: %s", link.peer, error)
        except Exception:
            log.exception("serving the %s failed", link.peer)
        finally:
            link.close()
            done(link)

    threading.Thread(target=run, name=f"serve {link.peer}", daemon=True).start()
