"""Java archives by their Maven coordinates, with all that they need at run time.

Maven fetches them once, from wherever its own configuration says, and checks them; they are kept in
`~/.cache/faultline` (XDG_CACHE_HOME) with a list of their checksums, which is compared every time.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from xml.sax.saxutils import escape

from harness.node_images.cache import keep, place_of

CHECKSUMS = "SHA256SUMS"
"""As `sha256sum --check` reads it."""
_FETCH_LIMIT_S = 600


class JarsError(Exception):
    """The archives cannot be had; the message is one line."""


def jars(coordinates: Sequence[str]) -> Path:
    """The directory with these archives, group:artefact:version each, all that they need, and CHECKSUMS. Raises
    JarsError."""
    kept = place_of("jars", coordinates)
    if not kept.is_dir():
        _fetch(coordinates, kept)
    if (kept / CHECKSUMS).read_text() != _checksums(kept):
        raise JarsError(f"the archives in {kept} are not those that Maven fetched; remove that directory")
    return kept


def are_kept(coordinates: Sequence[str]) -> bool:
    """Whether these archives are here, so that Maven is not asked."""
    return place_of("jars", coordinates).is_dir()


def _checksums(directory: Path) -> str:
    files = sorted(directory.glob("*.jar"))
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def _fetch(coordinates: Sequence[str], into: Path) -> None:
    what = ", ".join(coordinates)
    if shutil.which("mvn") is None:
        raise JarsError(f"{what} cannot be fetched: Maven is not installed (on Debian: apt-get install maven)")
    into.parent.mkdir(parents=True, exist_ok=True)
    project = Path(mkdtemp(prefix="jars-", dir=into.parent))
    partial = project / "jars"
    (project / "pom.xml").write_text(_pom(coordinates))
    options = [f"-DoutputDirectory={partial}", "-DincludeScope=runtime"]
    command = ["mvn", "--quiet", "--batch-mode", "--strict-checksums", "dependency:copy-dependencies", *options]
    try:
        done = subprocess.run(
            command,
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_LIMIT_S,
            check=False,
        )
        if done.returncode:
            errors = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")] or ["no word"]
            raise JarsError(f"{what} cannot be fetched: {errors[0].removeprefix('[ERROR]').strip()}")
        (partial / CHECKSUMS).write_text(_checksums(partial))
        keep(partial, into)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarsError(f"{what} cannot be fetched: {error}") from None
    finally:
        shutil.rmtree(project, ignore_errors=True)


def _pom(coordinates: Sequence[str]) -> str:
    dependencies = []
    for coordinate in coordinates:
        parts = zip(("groupId", "artifactId", "version"), coordinate.split(":"), strict=True)
        fields = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in parts)
        dependencies.append(f"<dependency>{fields}</dependency>")
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>faultline</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{''.join(dependencies)}</dependencies></project>\n"
    )
