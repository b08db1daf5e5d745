"""Typed settings to text and back, and what refusals say."""

import re

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from dynsl_app.errors import SettingsError
from dynsl_app.settings import ModelSettings, OptimizerSettings, Settings
from dynsl_app.validate import from_json, from_yaml, is_known, known_settings, to_json, to_plain, to_yaml, validate

some_settings = st.builds(
    Settings,
    name=st.text("abc -_:#'\"{}äöü", min_size=1).map(str.strip).filter(bool),
    seed=st.integers(0, 2**63 - 1),
    run_dir=st.none() | st.sampled_from(["/runs/a b", "1", "null", "~", "on"]),
    optimizer=st.builds(
        OptimizerSettings,
        lr=st.floats(1e-12, 1e3),
        betas=st.tuples(st.floats(0, 1), st.floats(0, 1)),
        persist=st.sampled_from(["round", "run"]),
    ),
    model=st.builds(
        ModelSettings,
        params=st.dictionaries(
            st.sampled_from("abc"), st.none() | st.booleans() | st.integers() | st.lists(st.floats(-1, 1))
        ),
    ),
)


@examples(max_examples=40)
@given(some_settings)
def test_yaml_keeps_every_setting(settings):
    assert from_yaml(to_yaml(settings)) == settings


@given(some_settings)
def test_json_keeps_every_setting(settings):
    assert from_json(to_json(settings)) == settings
    assert "\n" not in to_json(settings)


def test_the_users_names_are_written():
    settings = validate({"model": {"_target_": "mine.build"}})
    assert settings.model.target == "mine.build"
    assert to_plain(settings)["model"]["_target_"] == "mine.build"


def test_on_and_off_survive_yaml():
    settings = from_yaml(to_yaml(validate({"wire": {"tls": "off"}})))
    assert settings.wire.tls == "off"


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"rounds": 0}, "rounds=0: must be greater than or equal to 1"),
        ({"rounds": "many"}, "rounds=many: must be a valid integer"),
        ({"optimizer": {"lr": -1}}, "optimizer.lr=-1: must be greater than 0"),
        ({"optimizer": {"name": "sdg"}}, "optimizer.name=sdg: must be 'sgd', 'adam' or 'adamw'"),
        ({"optimizer": {"schedule": {"every": 0}}}, "optimizer.schedule.every=0"),
        ({"optimizer": {"momentun": 0.9}}, "unknown setting optimizer.momentun; did you mean optimizer.momentum"),
        ({"optimizer": {"xyz": 1}}, "unknown setting optimizer.xyz; there are optimizer.betas"),
        ({"batch": 3}, "unknown setting batch; did you mean data.batch or evaluation.batch"),
        ({"qqqqqq": 3}, "unknown setting qqqqqq; `dynsl --help`"),
        ({"wire": {"tls": True}}, "wire.tls=True: must be 'on' or 'off' (in YAML files, quote"),
        ({"data": {"shape": [3, 32]}}, "data.shape=[3, 32]: needs more values than 2, such as [3,32,32]"),
        ({"faults": 3}, "faults=3: must be a dictionary"),
        ({"data": {"batch": 10**18}}, "data.batch=1000000000000000000: must be less than or equal to 2147483647"),
        (
            {"allocator": {"min_cut": {"a": 2}}},
            "allocator.min_cut={'a': 2}: must be a valid integer; allocator.min_cut.a=a:",
        ),
    ],
)
def test_a_refusal_names_setting_value_and_what_is_allowed(plain, says):
    with pytest.raises(SettingsError, match=re.escape(says)):
        validate(plain)


def test_all_refusals_are_told_at_once():
    with pytest.raises(SettingsError, match=r"seed=-1: .*; clients=0: "):
        validate({"seed": -1, "clients": 0})


@pytest.mark.parametrize("text", ["", "[]", "a: [", "12", "seed: ${nope}"])
def test_yaml_that_holds_no_settings_is_refused(text):
    with pytest.raises(SettingsError, match="cannot read the saved settings"):
        from_yaml(text)


@pytest.mark.parametrize("text", ["", "[]", '{"seed": ', "12"])
def test_json_that_holds_no_settings_is_refused(text):
    with pytest.raises(SettingsError):
        from_json(text)


def test_known_settings():
    assert {"seed", "optimizer", "optimizer.lr", "optimizer.schedule.by", "model._target_"} <= known_settings()
    assert "model.target" not in known_settings()
    assert is_known("model.params.width")
    assert not is_known("optimizer.params.width")
