"""Profiles that the server has of its clients before any of them has trained: of files, or of counted operations."""

from dynsl_app.data.source import DataSpec
from dynsl_app.errors import SettingsError
from dynsl_app.model.chain import Chain
from dynsl_app.settings import Settings
from dynsl_app.telemetry.profile import Profile, load_profile
from dynsl_app.telemetry.profiling import from_flops, identity_of


def known_profiles(settings: Settings, chain: Chain, spec: DataSpec) -> dict[int, Profile]:
    """What ``telemetry.profile`` says of each client, by client id; those that tell their own are left out.

    Raises
    ------
    SettingsError
        A file cannot be read, is damaged, or is of another model, data or batch; naming the clients and the remedy.
    """
    telemetry, clients = settings.telemetry, range(settings.clients)
    model, batch = settings.model.label, settings.data.batch
    if telemetry.profile == "flops":
        # It depends on the device by its speed only, which is guessed, so that one serves all.
        counted = from_flops(chain, spec, batch, settings.optimizer, telemetry.flops_per_s, model=model)
        return dict.fromkeys(clients, counted)
    if telemetry.profile == "warmup":
        return {}
    identity = identity_of(chain, spec, batch, model)
    files: dict[str, Profile] = {}
    profiles: dict[int, Profile] = {}
    for client in clients:
        file = telemetry.file_of(client)
        if file is None:
            continue
        if file not in files:
            try:
                files[file] = load_profile(file)
                files[file].require(identity)
            except SettingsError as error:
                raise SettingsError(f"client {client}: telemetry.profile_file={file}: {error}") from None
        profiles[client] = files[file]
    return profiles
