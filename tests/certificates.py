"""A certificate authority of a test's own, made with the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.conftest import missing


class Authority:
    """Signs certificates for 127.0.0.1 and localhost. ``ca``: the file that makes them trusted."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            missing("openssl")
        self._folder = folder
        self.ca = folder / f"{name}.crt"
        self._key = folder / f"{name}.key"
        self._openssl("req", "-x509", *self._new_key(self._key), "-out", str(self.ca), "-subj", f"/CN={name}")

    def sign(self, name: str, alternative: str = "IP:127.0.0.1,DNS:localhost") -> tuple[Path, Path]:
        """A certificate and its key."""
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        request, extra = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extra.write_text(f"subjectAltName={alternative}\n")
        self._openssl("req", *self._new_key(key), "-out", str(request), "-subj", f"/CN={name}")
        signer = ("-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial", "-extfile", str(extra))
        self._openssl("x509", "-req", "-in", str(request), "-out", str(certificate), "-days", "2", *signer)
        return certificate, key

    @staticmethod
    def _new_key(path: Path) -> tuple[str, ...]:
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path))

    @staticmethod
    def _openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)
