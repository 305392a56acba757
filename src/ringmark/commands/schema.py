"""ringmark schema: the JSON Schema of a config or a record, from the one definition that reads them."""

from __future__ import annotations

import argparse
import json

from ringmark import config, record, schema

HELP = "print the JSON Schema of a config or a record"
KINDS = {"config": config.Config, "record": record.Record}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=sorted(KINDS))


def run(args: argparse.Namespace) -> int:
    print(json.dumps(schema.json_schema(KINDS[args.kind], f"ringmark {args.kind}"), indent=2))
    return 0
