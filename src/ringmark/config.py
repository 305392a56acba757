"""The config of a campaign: YAML -> cells -> jobs. The only reader of config files.

Everything that a campaign is, is a dataclass, so that the file's schema (`ringmark schema config`),
its errors and config/README.md speak of the same keys.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from ringmark import catalog, fabric, job, schema, yamlfile
from ringmark import cluster as clusters
from ringmark.cell import BOUND, Cell, MeshShape, Phase, Shape, parse_row
from ringmark.cluster import Cluster
from ringmark.errors import UserError, nearest
from ringmark.record import Asked, Measure, record_path

# Folders and pages under results/ and paper_tables/ that are no campaign's.
TAKEN = ("published", "opt_bwd", "templates", "readme")


@dataclass(frozen=True)
class Grid:
    """Every combination of these is a cell; the bound is added for each kernel."""

    methods: list[str]
    seqlen_global: list[int]
    shapes: list[Shape]
    phases: list[Phase] = field(default_factory=lambda: ["fwd", "fwd_bwd"])
    kernels: list[str] = field(default_factory=lambda: ["auto"])

    def __post_init__(self) -> None:
        for name in ("methods", "seqlen_global", "shapes", "phases", "kernels"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty: list at least one")
        for shape, seqlen in product(self.shapes, self.seqlen_global):
            if reason := shape.reason_not(seqlen):
                raise ValueError(reason)
        for kernel in self.kernels:
            if reason := catalog.unknown_kernel(kernel):
                raise ValueError(reason)
        named = {parse_row(row)[0] for row in rows(self)}  # what no method can be asked is refused here
        catalog.check_labels(named)


@dataclass(frozen=True)
class Config:
    """A campaign: a named set of cells run on one cluster with one image on one date."""

    campaign: str
    mesh: MeshShape
    grids: list[Grid]
    title: str = ""
    device: job.Device = "auto"
    virtual_nodes: bool = False
    fabric: str | None = None
    cluster: str | None = None
    preflight: bool = True
    allow_slow: bool = False
    repeats: int = 1
    seed: int = 0
    measure: Measure = field(default_factory=Measure)
    cells_per_job: int = 32
    cell_limit_s: float = 600.0
    start_limit_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.campaign.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ValueError(f"campaign {self.campaign!r} names a folder: use letters, digits, - _ and .")
        if self.campaign.lower() in TAKEN:
            raise ValueError(f"campaign {self.campaign!r} is taken by another folder: choose another name")
        if not self.grids:
            raise ValueError("grids is empty: list at least one")
        if self.repeats < 1 or self.cells_per_job < 1:
            raise ValueError("repeats and cells_per_job are at least 1")
        for name in ("cell_limit_s", "start_limit_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give seconds, more than 0")


def read(path: Path) -> Config:
    """The config in a YAML file; what does not fit is told with the key and the nearest valid one."""
    return from_data(yamlfile.read(path, "config"), str(path))


def from_data(data: object, where: str) -> Config:
    """A config from plain data, as Snakemake hands it over."""
    return schema.load(Config, data, where)


def rows(grid: Grid) -> list[str]:
    """The table rows of a grid: methods with options; 'native' and 'peers' mean all there are."""
    known = catalog.method_names()
    named: list[str] = []
    for entry in grid.methods:
        if entry in catalog.EVERY:
            named += all_of(entry)
        else:
            method, options = parse_row(entry)
            catalog.check_named(method)
            if method not in known:
                close = nearest(method, [*known, *catalog.EVERY])
                raise UserError(f"methods: there is no method {method!r}; {close}")
            stated = catalog.options(method)
            reason = stated.reason_not(method, options) if stated else None
            if reason:
                raise UserError(f"methods: {entry}: {reason}")
            named.append(Cell(method, 1, options=options).row)
    return list(dict.fromkeys([BOUND, *named]))  # the bound is measured in every campaign


def all_of(entry: str) -> list[str]:
    """What 'native' or 'peers' means; a file that is none for its name alone is told, not left out."""
    kind = catalog.EVERY[entry]
    if reasons := catalog.misnamed(kind):
        raise UserError(f"methods: {entry}: {next(iter(reasons.values()))}")
    return catalog.named(kind)


def unread(config: Config) -> list[str]:
    """What a plan has to say of options that it could not hold against their methods."""
    given = {parse_row(row)[0] for grid in config.grids for row in rows(grid) if parse_row(row)[1]}
    return [
        f"note: the options of {method} are not literals in its file: only a run tells whether they are right"
        for method in sorted(given)
        if catalog.options(method) is None
    ]


def blocks(config: Config) -> list[list[Cell]]:
    """Cells that a reader compares, together: same shape, length and phase, over all grids and kernels."""
    found: dict[tuple[Shape, int, Phase], dict[Cell, None]] = {}
    for grid in config.grids:
        for shape, seqlen, phase in product(grid.shapes, grid.seqlen_global, grid.phases):
            block = found.setdefault((shape, seqlen, phase), {})
            for row, kernel in product(rows(grid), grid.kernels):
                method, options = parse_row(row)
                block[Cell(method, seqlen, shape, phase, config.mesh, kernel, options)] = None
    return [list(block) for block in found.values()]


def cells(config: Config) -> list[Cell]:
    """Every cell of a campaign, in the order of the config."""
    return [cell for block in blocks(config) for cell in block]


def asked(config: Config, repeat: int) -> Asked:
    """What every cell of a repeat is asked: the campaign's `measure` with its repeat and seed."""
    return Asked(repeat=repeat, seed=config.seed, **vars(config.measure))


def jobs(config: Config, results: Path) -> list[job.Job]:
    """The campaign as jobs: blocks stay whole and in one run, methods shuffled inside them by the seed."""
    folder = results / config.campaign
    site = cluster_of(config)
    made: list[job.Job] = []
    for repeat in range(config.repeats):
        shuffle = random.Random(f"{config.seed}/{repeat}")
        batch: list[job.Item] = []
        for block in blocks(config):
            shuffle.shuffle(block)
            if batch and len(batch) + len(block) > config.cells_per_job:
                made.append(_job(config, site, repeat, len(made), batch, folder))
                batch = []
            batch += [
                job.Item(cell, asked(config, repeat), str(folder / record_path(cell, repeat)))
                for cell in block
            ]
        made.append(_job(config, site, repeat, len(made), batch, folder))
    return made


def cluster_of(config: Config) -> Cluster | None:
    """The cluster that a config names, large enough for its mesh."""
    if config.cluster is None:
        return None
    site = clusters.read(Path(config.cluster))
    site.check_fits(config.mesh, config.virtual_nodes)
    return site


def variables_of(config: Config, site: Cluster | None) -> dict[str, str]:
    """What every rank finds in its environment: the fabric's variables, and over them the cluster file's own.

    The config's fabric wins over the cluster's; nodes that are only a view have a fabric of their own.
    """
    named = config.fabric or (fabric.VIRTUAL if config.virtual_nodes else None)
    if named is None and site is not None:
        named = site.fabric
    return {**fabric.variables(named), **(site.env if site is not None else {})}


def _job(
    config: Config, site: Cluster | None, repeat: int, index: int, items: list[job.Item], folder: Path
) -> job.Job:
    name = f"{index:03d}-r{repeat}-{job.digest(items)}"
    return job.Job(
        id=name,
        campaign=config.campaign,
        mesh=config.mesh,
        items=items,
        folder=str(folder / "jobs" / name),
        device=config.device,
        virtual_nodes=config.virtual_nodes,
        env=variables_of(config, site),
        cluster=site,
        preflight=str(folder / "preflight.json") if config.preflight else None,
        allow_slow=config.allow_slow,
        cell_limit_s=config.cell_limit_s,
        start_limit_s=config.start_limit_s,
    )
