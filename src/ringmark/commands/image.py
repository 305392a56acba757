"""ringmark image: build the image with docker, podman or buildah, and write down exactly what was built."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ringmark import __version__, image, schema, state
from ringmark.errors import UserError
from ringmark.record import write_atomic

HELP = "build the image and write its id to the file that every record carries"
ASK_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=image.TARGETS, default="runtime", help="runtime (GPUs) or cpu")
    parser.add_argument(
        "--builder", choices=("auto", *image.BUILDERS), default="auto", help="auto: the first that is here"
    )
    parser.add_argument("--tag", help=f"the image's name (localhost/ringmark:{__version__}-TARGET)")
    parser.add_argument("--base", help="another base image than the Dockerfile's")
    parser.add_argument(
        "--runtime", choices=tuple(image.ARCHIVES), help="also make the file that this runtime runs"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="OPTION", help="one more word for the builder"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    parser.add_argument("--out", type=Path, default=image.RESULT, help=f"what was built ({image.RESULT})")


def run(args: argparse.Namespace) -> int:
    if not Path("Dockerfile").exists():
        raise UserError("there is no Dockerfile here: run 'ringmark image' at the root of a checkout")
    if args.dry_run:
        builder = image.builder_to_show(args.builder, shutil.which)
    else:
        builder = image.choose_builder(args.builder, usable)
    suffix = image.ARCHIVES[args.runtime] if args.runtime else None
    archive = args.out.with_suffix(suffix) if suffix else None
    tag = args.tag or f"localhost/ringmark:{__version__}-{args.target}"
    which: Callable[[str], str | None] = str if args.dry_run else shutil.which  # for a dry run all is here
    converts = image.convert_argvs(builder, tag, archive, which) if archive else []
    run_command = _print if args.dry_run else _run
    base = args.base or image.default_base(Path("Dockerfile").read_text(encoding="utf-8"), args.target)
    if image.needs_pin(base):
        base = pinned(builder, base, args.dry_run)
    revision, created = source_revision()
    words = {image.BASE_ARGUMENT[args.target]: base, "VERSION": __version__}
    if revision and created:
        words.update(REVISION=revision, CREATED=created)
    driver = _docker_info("--format", "{{.DriverStatus}}") if builder == "docker" else None
    attest = image.attestation_options(builder, driver or "")
    with tempfile.TemporaryDirectory(prefix="ringmark-image-") as folder:
        id_file = Path(folder, "id")
        run_command(image.build_argv(builder, args.target, tag, words, id_file, [*attest, *args.option]))
        if args.dry_run:
            for argv in [image.listing(builder, tag, "ringmark-packages").ask, *converts]:
                _print(argv)
            return 0
        image_id = image.digest_in(id_file.read_text(encoding="utf-8"))
    packages = args.out.with_suffix(".packages.json")
    bill = image.bill_of_materials(package_list(builder, tag), image_id)
    write_atomic(packages, json.dumps(bill, indent=1) + "\n")
    if archive:
        archive.unlink(missing_ok=True)  # enroot would stop at the file of the last build
        try:
            for argv in converts:
                _run(argv)
        finally:
            image.bundle_of(archive).unlink(missing_ok=True)
    built = image.Image(
        target=args.target,
        reference=tag,
        image_id=image_id,
        base=base,
        builder=builder,
        revision=revision,
        created=created,
        attestations="sbom and provenance" if attest else f"none: {builder} here keeps none",
        packages=str(packages),
        archive=str(archive) if archive else None,
    )
    write_atomic(args.out, json.dumps(schema.dump(built), indent=1) + "\n")
    print(f"{tag} is {image_id} ({args.out})")
    return 0


def pinned(builder: image.Builder, reference: str, dry_run: bool) -> str:
    """The reference at its digest; at the first pull the digest is written to envs/image.digest."""
    text = image.PINS.read_text(encoding="utf-8") if image.PINS.exists() else ""
    if digest := image.read_pins(text).get(reference):
        return f"{reference}@{digest}"
    if dry_run:
        _print(image.pull_argv(builder, reference))
        return reference
    _run(image.pull_argv(builder, reference))
    digest = image.digest_in(_output(image.pulled_digest_argv(builder, reference)))
    pin = f"{reference}@{digest}"
    write_atomic(image.PINS, f"{text}{pin}\n")
    print(f"first pull: {pin} is now pinned in {image.PINS}; commit that file", file=sys.stderr)
    return pin


def package_list(builder: image.Builder, tag: str) -> list[dict[str, str]]:
    """What `pip list` says inside the image."""
    listing = image.listing(builder, tag, f"ringmark-packages-{os.getpid()}")
    for argv in listing.before:
        _output(argv)
    try:
        packages: list[dict[str, str]] = json.loads(_output(listing.ask))
    finally:
        for argv in listing.after:
            _output(argv)
    return packages


def source_revision() -> tuple[str | None, str | None]:
    """The commit of the checkout (with "-dirty" when it was changed) and when it was made."""
    if not Path(".git").exists():
        return None, None
    environ = state.git_environ()
    commit = _output(["git", "rev-parse", "HEAD"], environ).strip()
    dirty = _output(["git", "status", "--porcelain", "--", *image.inputs()], environ).strip()
    created = _output(["git", "show", "--no-patch", "--format=%cI", "HEAD"], environ).strip()
    return commit + ("-dirty" if dirty else ""), created


def usable(builder: str) -> bool:
    """Whether a builder is here and answers: docker's client without its daemon does not build."""
    if shutil.which(builder) is None:
        return False
    return builder != "docker" or _docker_info() is not None


def _docker_info(*words: str) -> str | None:
    """What docker's daemon says of itself; None: there is none that answers."""
    try:
        done = subprocess.run(
            ["docker", "info", *words], capture_output=True, text=True, timeout=ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _print(argv: list[str]) -> None:
    print(shlex.join(argv))


def _run(argv: list[str]) -> None:
    """Run a command whose messages the user should see."""
    print(f"+ {shlex.join(argv)}", file=sys.stderr)
    status = subprocess.run(argv, stdout=sys.stderr, check=False).returncode
    if status:
        raise UserError(f"{argv[0]} {argv[1]} ended with exit status {status}: its own words are above")


def _output(argv: list[str], environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False, env=environ)
    if done.returncode:
        raise UserError(f"'{shlex.join(argv)}' ended with exit status {done.returncode}")
    return done.stdout
