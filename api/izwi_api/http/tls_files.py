"""The certificate with which the server proves its name, and that it can be used."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from izwi.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificate is.

    Attributes:
        cert: PEM: the certificate, and those between it and its root.
        key: PEM of its private key, without a password; None: it is in the certificate's file.
    """

    cert: Path
    key: Path | None = None


def read_tls_files(cert: Path | None, key: Path | None) -> TlsFiles | None:
    """Check the files of `--tls-cert` and `--tls-key`; None where neither is given.

    Raises:
        InvalidRequest: A file cannot be read or used, the key is not the certificate's or has a
            password, or there is a key and no certificate.
    """
    if cert is None:
        if key is not None:
            raise InvalidRequest("--tls-key needs --tls-cert", param="tls_cert")
        return None
    for option, path in (("--tls-cert", cert), ("--tls-key", key)):
        if path is not None and not path.is_file():
            raise InvalidRequest(f"{option}: there is no file {str(path)!r}", param="tls_cert")
    try:
        # An empty password, so that nobody is asked for one at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:  # ssl.SSLError is one
        names = str(cert) if key is None else f"{cert} and {key}"
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidRequest(
            f"{names} cannot be used for TLS ({reason or error}): they must be PEM, the key that "
            "of the certificate and without a password",
            param="tls_cert",
        ) from error
    return TlsFiles(cert, key)
