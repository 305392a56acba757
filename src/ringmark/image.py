"""The image: who builds it, in which words, from which files. It starts nothing and loads no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ringmark import schema
from ringmark.errors import UserError

Builder = Literal["docker", "podman", "buildah"]
Target = Literal["runtime", "cpu"]
BUILDERS: tuple[Builder, ...] = get_args(Builder)
TARGETS: tuple[Target, ...] = get_args(Target)
BASE_ARGUMENT: dict[Target, str] = {"runtime": "BASE_IMAGE", "cpu": "CPU_BASE_IMAGE"}
PINS = Path("envs/image.digest")
RESULT = Path("build/image.json")
# What a cluster's runtime runs: the builder's own store, or a file of this kind.
SIF, SQSH = ".sif", ".sqsh"
ARCHIVES = {"docker": None, "podman": None, "apptainer": SIF, "enroot": SQSH, "pyxis": SQSH}


@dataclass(frozen=True)
class Image:
    """An image that was built; records carry its id."""

    target: Target
    reference: str
    image_id: str
    base: str
    builder: Builder
    revision: str | None
    created: str | None
    attestations: str
    packages: str
    archive: str | None = None

    @property
    def name(self) -> str:
        """What a launcher gives to the runtime: the file made for it, or the name in the builder's store."""
        return str(Path(self.archive).resolve()) if self.archive else self.reference


def read(path: Path = RESULT) -> Image:
    """The image that `ringmark image` wrote down."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(
            f"{path} does not say what image was built: run 'ringmark image', or name one in the cluster file"
        ) from None
    return schema.load(Image, data, str(path))


def inputs(root: Path = Path(".")) -> list[str]:
    """The files that decide what is in the image; a change of any other file rebuilds nothing."""
    names = ["Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", str(PINS)]
    names += ["envs/image.lock", "envs/image-build.lock", "envs/image-cpu.lock"]
    names += ["envs/flash-attn/opt_bwd.patch", "envs/docker/user.sh"]
    sources = [path for path in (root / "src").rglob("*") if path.is_file()]
    kept = [path for path in sources if not re.search(r"__pycache__|\.egg-info|\.tmp$", str(path))]
    return names + sorted(str(path.relative_to(root)) for path in kept)


def choose_builder(asked: str, usable: Callable[[str], bool]) -> Builder:
    """The builder that was asked for, or the first one that can be used here."""
    there = [name for name in BUILDERS if usable(name)]
    if asked == "auto" and there:
        return there[0]
    if asked == "auto":
        raise UserError(
            "no docker, podman or buildah works here to build the image: install one (or start docker's "
            "daemon), or use runtime: bare"
        )
    for name in there:
        if name == asked:
            return name
    other = f", or choose --builder {' or '.join(there)}" if there else ""
    raise UserError(f"{asked} does not work here: install or start it{other}")


def builder_to_show(asked: str, installed: Callable[[str], object]) -> Builder:
    """The builder whose commands are only printed: it need not be here."""
    meant = [name for name in BUILDERS if name == asked or (asked == "auto" and installed(name))]
    return meant[0] if meant else BUILDERS[0]


def default_base(dockerfile: str, target: Target) -> str:
    """The reference that the Dockerfile names as the target's base."""
    argument = BASE_ARGUMENT[target]
    match = re.search(rf"^ARG {argument}=(\S+)$", dockerfile, re.MULTILINE)
    if match is None:
        raise UserError(f"the Dockerfile has no default for {argument}: give --base")
    return match[1]


def needs_pin(reference: str) -> bool:
    """Whether a tag could move: what has a digest, or was made on this machine, cannot."""
    return "@sha256:" not in reference and not reference.startswith("localhost/")


def read_pins(text: str) -> dict[str, str]:
    """Reference -> digest, from the lines of envs/image.digest."""
    pins = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+)@(sha256:[0-9a-f]{64})", line.strip())
        if match is None:
            raise UserError(f"{PINS} line {number} is no REFERENCE@sha256:DIGEST: correct or delete it")
        pins[match[1]] = match[2]
    return pins


def pull_argv(builder: Builder, reference: str) -> list[str]:
    return [builder, "pull", reference]


def pulled_digest_argv(builder: Builder, reference: str) -> list[str]:
    """Asks the builder under which digest it pulled the reference."""
    if builder == "buildah":
        return ["buildah", "inspect", "--type", "image", "--format", "{{.FromImageDigest}}", reference]
    return [builder, "image", "inspect", "--format", "{{index .RepoDigests 0}}", reference]


def digest_in(text: str) -> str:
    """The sha256 that a builder printed."""
    match = re.search(r"sha256:[0-9a-f]{64}", text)
    if match is None:
        raise UserError(
            f"the builder told no digest of the base ({text.strip()!r}): give --base NAME@sha256:..."
        )
    return match[0]


def build_argv(
    builder: Builder,
    target: Target,
    tag: str,
    arguments: Mapping[str, str],
    id_file: Path,
    options: Sequence[str] = (),
) -> list[str]:
    """The command that builds a target from the checkout that is the current folder."""
    argv = {
        "docker": ["docker", "build"],
        "podman": ["podman", "build", "--layers"],
        "buildah": ["buildah", "bud", "--layers"],
    }[builder]
    argv += ["--file", "Dockerfile", "--target", target, "--tag", tag, "--iidfile", str(id_file)]
    for name, value in arguments.items():
        argv += ["--build-arg", f"{name}={value}"]
    return [*argv, *options, "."]


def attestation_options(builder: Builder, driver: str) -> list[str]:
    """SBOM and provenance, where the builder keeps them: docker with the containerd image store."""
    if builder == "docker" and "io.containerd.snapshotter" in driver:
        return ["--sbom=true", "--provenance=mode=max"]
    return []


@dataclass(frozen=True)
class Listing:
    """Commands around the one that prints, as JSON, what Python packages are in the image."""

    before: list[list[str]]
    ask: list[str]
    after: list[list[str]]


def listing(builder: Builder, tag: str, container: str) -> Listing:
    pip = ["-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    if builder == "buildah":  # chroot isolation needs neither an OCI runtime nor cgroups
        ask = ["buildah", "run", "--isolation", "chroot", container, "--", "python3", *pip]
        return Listing([["buildah", "from", "--name", container, tag]], ask, [["buildah", "rm", container]])
    run = [builder, "run", "--rm", "--network", "none", "--entrypoint", "python3"]
    return Listing([], [*run, tag, *pip], [])


def bill_of_materials(packages: Sequence[Mapping[str, str]], image_id: str) -> dict[str, Any]:
    """The packages as a CycloneDX document."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "ringmark", "version": image_id}},
        "components": [
            {
                "type": "library",
                "name": package["name"],
                "version": package["version"],
                "purl": f"pkg:pypi/{package['name'].lower()}@{package['version']}",
            }
            for package in packages
        ],
    }


def convert_argvs(
    builder: Builder, tag: str, archive: Path, which: Callable[[str], str | None]
) -> list[list[str]]:
    """Commands that turn the built image into a .sif (apptainer) or a .sqsh (enroot)."""
    tool = "apptainer" if archive.suffix == SIF else "enroot"
    if which(tool) is None:
        raise UserError(f"{tool} is not here to make {archive}: run this where it is, or use another runtime")
    if tool == "enroot":
        if builder != "docker" and which("podman") is None:
            raise UserError("enroot reads buildah's images through podman: install podman, or use docker")
        scheme = "dockerd" if builder == "docker" else "podman"
        return [["enroot", "import", "--output", str(archive), f"{scheme}://{tag}"]]
    if builder == "docker":
        return [["apptainer", "build", "--force", str(archive), f"docker-daemon:{tag}"]]
    bundle = bundle_of(archive)
    save = {
        "podman": ["podman", "save", "--format", "oci-archive", "--output", str(bundle), tag],
        "buildah": ["buildah", "push", tag, f"oci-archive:{bundle}"],
    }[builder]
    return [save, ["apptainer", "build", "--force", str(archive), f"oci-archive:{bundle}"]]


def bundle_of(archive: Path) -> Path:
    """The file through which an image gets from podman's or buildah's store to apptainer."""
    return archive.with_suffix(".oci.tar")
