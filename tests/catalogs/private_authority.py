"""Certificates of an authority of one's own, as a company has it."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class PrivateAuthority:
    """An authority, and a server at 127.0.0.1 with a certificate of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Private authority")
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        self.bundle = folder / "authority.pem"
        own = self._sign(self._name, self._key, constraints)
        self.bundle.write_bytes(own.public_bytes(serialization.Encoding.PEM))
        key = ec.generate_private_key(ec.SECP256R1())
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        signed = self._sign(_name("Server"), key, here)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        chain = folder / "server.pem"
        chain.write_bytes(pem + signed.public_bytes(serialization.Encoding.PEM))
        self.server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server_context.load_cert_chain(chain)

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(extension, critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
