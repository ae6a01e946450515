"""The swarm's own token and TLS authority, as secrets and configs that the stack mounts. No I/O.

The token proves to the coordinator that a worker belongs to the swarm; the authority signs the coordinator's
certificate, so that a worker knows whom it sends its gradients to. May import: ``actions``.
"""

import hashlib
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .actions import Action, Discard, Store

TOKEN = "fdtc-token"  # noqa: S105  # the secret's name
CA_CERTIFICATE = "fdtc-ca-cert"
CA_KEY = "fdtc-ca-key"
CERTIFICATE = "fdtc-coordinator-cert"
KEY = "fdtc-coordinator-key"
TLS_SECRETS = (CA_KEY, CERTIFICATE, KEY)

FINGERPRINT = "fdtc.fingerprint"
EXPIRES = "fdtc.expires"
COORDINATOR_NAMES = ("coordinator", "tasks.coordinator", "localhost")
_LIFETIME = timedelta(days=3650)
_TOKEN_BYTES = 32
# A machine whose clock runs behind must not refuse a certificate that was made just now.
_BACKDATED = timedelta(days=1)


def plan(
    stored_secrets: Mapping[str, Mapping[str, str]], stored_configs: Mapping[str, Mapping[str, str]]
) -> list[Action]:
    """What is missing of token and authority; none when the swarm has all of it.

    A part of the authority that is gone can't be made again alone, since what is stored can't be read back: then all
    of it is made anew.
    """
    actions: list[Action] = []
    if TOKEN not in stored_secrets:
        token = secrets.token_hex(_TOKEN_BYTES).encode()
        actions.append(Store(TOKEN, token, {FINGERPRINT: _digest(token)}))
    present = [name for name in TLS_SECRETS if name in stored_secrets]
    has_certificate = CA_CERTIFICATE in stored_configs
    if len(present) == len(TLS_SECRETS) and has_certificate:
        return actions
    why = "the authority is not whole, and is made anew"
    actions += [Discard(name, secret=True, why=why) for name in present]
    actions += [Discard(CA_CERTIFICATE, secret=False, why=why)] if has_certificate else []
    return actions + _make(datetime.now(UTC))


def _make(now: datetime) -> list[Action]:
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "swarmctl training authority")])
    ca = (
        _certificate(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, COORDINATOR_NAMES[0])])
    certificate = (
        _certificate(name, ca_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in COORDINATOR_NAMES]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    labels = {
        FINGERPRINT: ca.fingerprint(hashes.SHA256()).hex(),
        EXPIRES: ca.not_valid_after_utc.isoformat(timespec="seconds"),
    }
    return [
        Store(CA_KEY, _pem(ca_key), labels),
        Store(KEY, _pem(key), labels),
        Store(CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM), labels),
        # Last: it is what says that the authority is whole.
        Store(CA_CERTIFICATE, ca.public_bytes(serialization.Encoding.PEM), labels, secret=False),
    ]


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _digest(data: bytes) -> str:
    """A secret's fingerprint: tells two apart, and does not give it away."""
    return hashlib.sha256(b"fdtc-token-fingerprint:" + data).hexdigest()[:16]
