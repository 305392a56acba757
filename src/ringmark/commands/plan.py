"""ringmark plan: write a campaign's job files, and the config that they come from."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ringmark import aside, record, schema
from ringmark import config as configs
from ringmark import job as jobs
from ringmark.errors import UserError

HELP = "write the job files of a campaign's config (the workflow calls this)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, nargs="?", help="a config file, like config/local.yaml")
    parser.add_argument("--from-json", metavar="TEXT", help="the config itself, instead of a file")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where campaigns live")
    parser.add_argument(
        "--again",
        action="store_true",
        help="first move aside what was asked for otherwise, or measured by another state of ringmark",
    )


def run(args: argparse.Namespace) -> int:
    if (args.config is None) == (args.from_json is None):
        raise UserError("name a config file, or give the config with --from-json")
    if args.config is not None:
        config = configs.read(args.config)
    else:
        config = configs.from_data(parsed(args.from_json), "--from-json")
    for note in configs.unread(config):
        print(note, file=sys.stderr)
    planned = write(config, args.results, configs.jobs(config, args.results), args.again)
    print(f"{len(configs.cells(config)) * config.repeats} cells in {len(planned)} jobs of {config.campaign}")
    return 0


def parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--from-json is no valid JSON: {error}") from None


def check_name(config: configs.Config, folder: Path) -> None:
    """A campaign with records keeps its name: on another mesh or device it is another one."""
    if not any((folder / "records").rglob("*.json")):
        return
    try:
        there = json.loads((folder / "campaign.json").read_text(encoding="utf-8"))
        before = (there["mesh"], there["device"])
    except (OSError, ValueError, LookupError, TypeError):
        return  # records without a plan
    asked = schema.dump(config)
    if before != (asked["mesh"], asked["device"]):
        mesh, device = before
        raise UserError(
            f"{folder} holds a campaign on {device}, mesh {mesh['nodes']}x{mesh['gpus']}, and this config "
            f"asks for {config.device}, mesh {config.mesh}: give it another name with 'campaign:'"
        )


def write(
    config: configs.Config,
    results: Path,
    wanted: list[jobs.Job],
    again: bool = False,
    part: jobs.Job | None = None,
) -> list[tuple[jobs.Job, Path]]:
    """The jobs with the files that they were written to.

    `again` moves aside the records of another question, and those that another state of ringmark measured: of
    these only the ones of `part`, where no more than that will be measured.
    """
    folder = results / config.campaign
    check_name(config, folder)
    items = [item for job in wanted for item in job.items]
    meant = wanted if part is None else [part]
    if again:
        old = [item for item, _ in (*aside.asked_otherwise(items), *aside.by_another_state(meant))]
        if moved := aside.move(folder, old):
            print(f"records that were asked for otherwise, or measured by another ringmark, are in {moved}")
    aside.check(config.campaign, items)
    if sentence := aside.told(meant):
        print(sentence)
    record.write_atomic(folder / "campaign.json", json.dumps(schema.dump(config), indent=1) + "\n")
    planned = []
    for job in wanted:
        path = folder / "jobs" / f"{job.id}.job.json"
        jobs.save(job, path)
        planned.append((job, path))
    return planned
