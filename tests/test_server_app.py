"""What Flower's log shows of a ServerApp that ended early."""

import logging
import re

import pytest

from dynsl_app.compose import compose
from dynsl_app.errors import SettingsError
from dynsl_app.server_app import refuse_other_ways  # importing it is enough for the log, too


def logged(caplog: pytest.LogCaptureFixture, error: Exception) -> str:
    """The text of Flower's record of an error that its caller raised."""
    flower = logging.getLogger("flwr")
    flower.addHandler(caplog.handler)  # it does not propagate
    try:
        raise error
    except Exception as raised:
        flower.error("%s raised an exception", "ServerApp", exc_info=raised)
    finally:
        flower.removeHandler(caplog.handler)
    return caplog.text


def test_a_refusal_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    text = logged(caplog, SettingsError("rounds=0: must be greater"))
    assert "ServerApp raised an exception: rounds=0: must be greater" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("override", "remedy"), [("wire=inprocess", "use wire=grpc"), ("runtime=testbed", "use `dynsl runtime=testbed")]
)
def test_other_ways_to_run_are_refused(override: str, remedy: str) -> None:
    """They would train in real time under a false name."""
    with pytest.raises(SettingsError, match=re.escape(remedy)):
        refuse_other_ways(compose([override]))
    refuse_other_ways(compose([]))


def test_a_fault_of_ours_keeps_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    text = logged(caplog, KeyError("lost"))
    assert "Traceback" in text
    assert "KeyError: 'lost'" in text
