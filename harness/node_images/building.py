"""Whether node images are up to date, and building them.

The operating-system layer comes `FROM debian:bookworm-slim` where the engine reaches a registry, and otherwise from
debootstrap with the mirror that this machine's own apt uses. Python packages come as wheels
(`harness.node_images.wheels`) in the build context, in the versions installed here, and are installed there without an
index. Java archives (`harness.node_images.jars`) come in the build context, too; further Debian packages of a system
are installed in a build stage, on this machine's own network.

An image is rebuilt only when its inputs changed: its tag is made of the hash of its recipe and of the id of the image
it stands on. So several source trees can use one engine side by side, and going back to an earlier tree builds nothing;
`faultline images prune` removes those of other trees. A run refuses an image that is missing or *stale*, there only as
built from other inputs than those of this source tree: so a verdict is about the code in this tree.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

from harness.node_images.debian import bootstrapped
from harness.node_images.jars import JarsError, jars
from harness.node_images.recipes import JARS_LIST, OS, RELEASE, ImageError, Recipe, image_of, packages, recipes
from harness.node_images.wheels import Target, WheelsError, wheels
from images.system import System

INPUTS_LABEL: Final = "faultline.inputs"
ORIGIN_LABEL: Final = "faultline.origin"
"""On the operating-system layer: `registry` or `debootstrap`."""

_PYTHON, _GLIBC_MINOR = (3, 11), 36
"""As bookworm has them."""


class Origin(StrEnum):
    """Where the operating-system layer comes from."""

    REGISTRY = "registry"
    DEBOOTSTRAP = "debootstrap"


class ImageState(StrEnum):
    """How an image stands to the source tree."""

    READY = "ready"
    MISSING = "missing"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Image:
    """One image, as it is now."""

    name: str
    condition: ImageState
    tag: str
    """The engine's name of it: faultline/…:hash."""
    digest: str = ""
    """The engine's id of it, sha256:…; empty unless it is ready."""
    origin: str = ""
    """Of the operating-system layer: where it came from."""


def states(client: Any, systems: Sequence[System]) -> list[Image]:
    """The operating-system layer, the base and the image of each system, as they are now."""
    images: dict[str, Image] = {}
    for recipe in recipes(systems):
        images[recipe.name] = _state(client, recipe, images.get(recipe.parent))
    return list(images.values())


def ready(client: Any, system: System) -> Image:
    """The image of `system`, up to date. Raises ImageError when it, or what it stands on, is missing or stale."""
    images = states(client, [system])
    for image in reversed(images):
        if image.condition is ImageState.MISSING:
            raise ImageError(f"there is no image {image.name}; build it: {build_command(system)}")
    for image in images:
        if image.condition is ImageState.STALE:
            raise ImageError(f"image {image.name} is not of this source tree; build it anew: {build_command(system)}")
    return images[-1]


def build_command(system: System) -> str:
    """The command that builds the images of `system`."""
    release = f" --system {system.name} --version {system.version}" if system.version else ""
    return f"faultline images build{release}"


def build(
    client: Any,
    systems: Sequence[System],
    *,
    origin: Origin | None = None,
    mirror: str = "",
    report: Callable[[str], None] = lambda line: None,
) -> list[Image]:
    """Build what is not up to date, reporting a line for each image. Without an `origin`, the registry is tried first.

    One build at a time on this machine: two at once would make the ground under each other's layers anew. Raises
    ImageError.
    """
    with _one_build_at_a_time():
        return _build(client, systems, origin, mirror, report)


def _build(
    client: Any, systems: Sequence[System], origin: Origin | None, mirror: str, report: Callable[[str], None]
) -> list[Image]:
    built: dict[str, Image] = {}
    for recipe in recipes(systems):
        parent = built.get(recipe.parent)
        now = _state(client, recipe, parent)
        other_origin = origin is not None and now.origin not in ("", origin)
        if now.condition is ImageState.READY and not other_origin:
            report(f"{recipe.name}: up to date, {now.digest}")
        else:
            report(f"{recipe.name}: building, since it is {'of another origin' if other_origin else now.condition}")
            if parent is None:
                _build_os(client, recipe, now.tag, origin, mirror, report)
            else:
                _build_layer(client, recipe, now.tag, parent, built[OS])
            now = _state(client, recipe, parent)
            report(f"{recipe.name}: built, {now.digest}")
        built[recipe.name] = now
    return list(built.values())


def prune(client: Any, systems: Sequence[System], report: Callable[[str], None] = lambda line: None) -> None:
    """Remove the images of ours that this source tree does not run on, except those a container still uses. Those of
    other releases of `systems` stay, too."""
    from docker.errors import APIError

    ours = client.images.list(filters={"label": INPUTS_LABEL})
    names = {tag.partition(":")[0] for image in ours for tag in image.tags}
    releases = [release for system in systems for release in _releases(system, names)]
    kept = {image.tag for image in states(client, releases)}
    for image in ours:
        for tag in image.tags:
            if tag.startswith("faultline/") and tag not in kept:
                try:
                    client.images.remove(tag)
                    report(f"{tag}: removed")
                except APIError as error:
                    report(f"{tag}: kept, {' '.join(str(error.explanation or error).split())}")


def _releases(system: System, images: Collection[str]) -> Iterator[System]:
    """The releases of `system` that one of these images carries, and itself."""
    yield system
    prefix = image_of(system).removesuffix(system.version)
    for name in sorted(images):
        if system.version and name.startswith(prefix):
            yield system.release(name.removeprefix(prefix), {})


# ---- state ---------------------------------------------------------------------------------------------------


def _state(client: Any, recipe: Recipe, parent: Image | None) -> Image:
    """How `recipe`'s image stands, if it is to stand on `parent`."""
    from docker.errors import ImageNotFound

    key = hashlib.sha256(f"{recipe.hash} {parent.digest if parent is not None else ''}".encode()).hexdigest()[:12]
    tag = f"{recipe.name}:{key}"
    try:
        image = client.images.get(tag)
    except ImageNotFound:
        others = client.images.list(recipe.name)
        return Image(recipe.name, ImageState.STALE if others else ImageState.MISSING, tag)
    return Image(recipe.name, ImageState.READY, tag, image.id, image.labels.get(ORIGIN_LABEL, ""))


@contextmanager
def _one_build_at_a_time() -> Iterator[None]:
    with (Path(gettempdir()) / f"faultline-images-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- building --------------------------------------------------------------------------------------------------------


def _build_os(
    client: Any, recipe: Recipe, tag: str, origin: Origin | None, mirror: str, report: Callable[[str], None]
) -> None:
    labels = {INPUTS_LABEL: recipe.hash}
    if origin is not Origin.DEBOOTSTRAP:
        try:
            arguments = {"PACKAGES": " ".join(packages())}
            _engine_build(
                client, tag, recipe.inputs, "Dockerfile.os", arguments, {**labels, ORIGIN_LABEL: Origin.REGISTRY}
            )
            return
        except ImageError as error:
            if origin is Origin.REGISTRY:
                raise
            report(f"{OS}: no registry ({error}); trying debootstrap")
    with bootstrapped(RELEASE, packages(), mirror) as root:
        changes = [f"LABEL {label}={value}" for label, value in {**labels, ORIGIN_LABEL: Origin.DEBOOTSTRAP}.items()]
        imported = client.api.import_image_from_data(root, repository=OS, changes=changes, tag=tag.partition(":")[2])
    if "error" in imported:
        raise ImageError(f"{OS}: cannot be imported: {' '.join(imported.split())}")


def _build_layer(client: Any, recipe: Recipe, tag: str, parent: Image, os_layer: Image) -> None:
    labels = {INPUTS_LABEL: recipe.hash}
    machine = client.info().get("Architecture", "x86_64")
    target = Target(_PYTHON, {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine), _GLIBC_MINOR)
    names = [line.partition("==")[0] for line in recipe.inputs["requirements.txt"].decode().splitlines()]
    try:
        fetched = {f"wheels/{wheel.name}": wheel.read_bytes() for wheel in wheels(names, target)}
        archives = recipe.inputs.get(JARS_LIST, b"").decode().splitlines()
        if archives:
            fetched |= {f"jars/{file.name}": file.read_bytes() for file in jars(archives).iterdir()}
    except (WheelsError, JarsError) as error:
        raise ImageError(f"{recipe.name} cannot be built: {error}") from None
    arguments = {"OS": os_layer.tag} | ({} if recipe.parent == OS else {"BASE": parent.tag})
    _engine_build(client, tag, {**recipe.inputs, **fetched}, "Dockerfile", arguments, labels)


def _engine_build(
    client: Any,
    tag: str,
    inputs: Mapping[str, bytes],
    dockerfile: str,
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
) -> None:
    from docker.errors import APIError, BuildError

    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for path, contents in sorted(inputs.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(contents), 0o755 if path.endswith("faultline-node") else 0o644
            archive.addfile(entry, io.BytesIO(contents))
    context.seek(0)
    try:
        client.images.build(
            fileobj=context,
            custom_context=True,
            dockerfile=dockerfile,
            tag=tag,
            buildargs=dict(arguments),
            labels=dict(labels),
            network_mode="host",
            rm=True,
            forcerm=True,
        )
    except BuildError as error:
        raise ImageError(f"{tag} cannot be built: {' '.join(str(error).split())}{_last_output(error)}") from None
    except APIError as error:
        raise ImageError(f"{tag} cannot be built: {' '.join(str(error.explanation or error).split())}") from None


def _last_output(error: Any) -> str:
    lines = [str(part["stream"]).strip() for part in error.build_log if isinstance(part, dict) and part.get("stream")]
    output = [line for line in lines if line and not line.startswith(("Step ", "---", "Removing "))]
    return f" ({output[-1]})" if output else ""
