"""Which controller a client connects to: as given, as in the environment, or as in `hansa.toml`."""

import os
from pathlib import Path

from hansa.common.process.settings import defaults
from hansa.common.rpc.channel import DEFAULT_CONTROLLER, Endpoint, parse_address
from hansa.common.values.errors import InvalidInput


def endpoint_of(controller: Endpoint | str | None = None, tls: str | Path | None = None) -> Endpoint:
    """Return the controller's address and the folder with the operator's certificate.

    Like the options of commands, each of the two is taken from the environment or the settings file if it is
    not given.
    """
    if isinstance(controller, Endpoint):
        return controller
    settings = defaults(os.environ.get("HANSA_CONFIG")).get("job", {}).get("show", {})
    address = controller or os.environ.get("HANSA_CONTROLLER") or settings.get("controller")
    folder = tls or os.environ.get("HANSA_TLS") or settings.get("tls")
    if folder and not Path(folder).is_dir():
        raise InvalidInput(f"tls {folder}: there is no such folder; `hansa pki issue` makes one")
    return Endpoint(parse_address(str(address or DEFAULT_CONTROLLER)), Path(folder) if folder else None)
