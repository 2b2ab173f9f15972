"""APIs of other vendors over this server's services: a folder each, loaded if it is served.

A vendor's requests pass the same keys, limits, audit and metrics as OpenAI's. `requests.py` turns
its way to present a key into ours, and our errors into its format.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from izwi_api.vendors.vendor import Vendor

_MODULES = {
    "elevenlabs": "izwi_api.vendors.elevenlabs.vendor",
    "deepgram": "izwi_api.vendors.deepgram.vendor",
    "twilio": "izwi_api.vendors.telephony.twilio",
    "vonage": "izwi_api.vendors.telephony.vonage",
}


def load_vendors(names: Iterable[str]) -> list[Vendor]:
    """Import the vendors of these names, of `izwi_api.settings.APIS`; the others cost nothing."""
    return [import_module(_MODULES[name]).VENDOR for name in names]
