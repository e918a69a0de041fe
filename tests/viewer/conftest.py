"""A run to look at, written through the store's own writer, and a browser to look with."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from bokeh.document import Document
from bokeh.io import curdoc
from bokeh.io.doc import set_curdoc

from rankscope.merge import Derived
from rankscope.rules import Watch, rule_book
from rankscope.sketch import COUNTS, SketchTable, main_statistics, sketch_array
from rankscope.sketch.derive import MAIN
from rankscope.sketch.distribution import RANKED, RankDistribution
from rankscope.sketch.reference import glance_at
from rankscope.store import (
    Alert,
    Event,
    QuantityInfo,
    RankFrame,
    RankFrames,
    RankInfo,
    Record,
    RunWriter,
    SiteInfo,
)
from rankscope.wire import Frame, Site, make_schema, open_frame, pack_frame

from ..required import do_without

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

MODULES = {
    "norm1": ("RMSNorm", 1.0),
    "attn.qkv": ("Linear", 0.6),
    "attn.proj": ("Linear", 0.12),
    "norm2": ("RMSNorm", 1.0),
    "mlp.up": ("Linear", 0.9),
    "mlp.act": ("GELU", 0.5),
}
"""Of a transformer's block: type and the scale of its output."""
BLOCKS = 4
ELEMENTS = 512
RANKS = 4
START_NS = 1_760_000_000_000_000_000

Values = dict[tuple[int, int], np.ndarray]


class Job:
    """A small made-up training job: its numbers are random, its story is not.

    From `bad_step` on, rank `bad_rank` has infinities in the MLP activation of block 2, after its
    magnitude has grown for a while; everything after it in the same step follows. All sites are
    sketched every `every` steps, and left to the sentinel in between; samples left `unseen`
    elements of each out. If it is `watched`, its records are judged as a collector judges them.
    Where it is `all_nan`, no element is a number. Where it is `ranked` its records hold the
    distribution over ranks.
    """

    def __init__(
        self,
        path: Path,
        *,
        ranks: int = RANKS,
        bad_step: int | None = 40,
        bad_rank: int = 2,
        run: str = "gpt-small",
        hold: int = 6,
        every: int = 1,
        unseen: int = 0,
        start_ns: int = START_NS,
        watched: bool = False,
        all_nan: bool = False,
        ranked: bool = False,
    ) -> None:
        self.path, self.ranks, self.bad_step, self.bad_rank = path, ranks, bad_step, bad_rank
        self.random = np.random.default_rng(7)
        # Making a sketch takes half a millisecond: sound tensors are made once in `hold` steps.
        self.hold, self.every, self.start_ns = hold, every, start_ns
        self.unseen, self.all_nan, self.ranked = unseen, all_nan, ranked
        self.kept: dict[tuple[str, int, int, bool], SketchTable] = {}
        self.sites = [
            SiteInfo(
                kind=kind, name=f"blocks.{block}.{name}", dtype=dtype, shape=(8, 64), module=module,
                order=order,
            )
            for kind, dtype in (("activation", "float16"), ("weight_gradient", "float32"))
            for order, (block, name, module) in enumerate(
                (block, name, module)
                for block in range(BLOCKS)
                for name, (module, _) in MODULES.items()
            )
            if kind == "activation" or module == "Linear"
        ]  # fmt: skip
        self.writer = RunWriter.open(path, run=run)
        self.attempt = self.writer.catalog.attempt_of("launch-1")
        mesh = [
            RankInfo(rank=rank, host="node-0", device=f"cuda:{rank}", coordinates={"dp": rank})
            for rank in range(ranks)
        ]
        self.writer.catalog.set_attempt(self.attempt, ranks, {"dp": ranks}, mesh)
        self.index = np.array(self.writer.catalog.add_sites(self.sites), np.intp)
        self.watch: Watch | None = None
        if watched:
            self.watch = Watch(self.attempt, self._stored_site, rule_book())

    def _stored_site(self, index: int) -> SiteInfo:
        return self.writer.catalog.meta.sites[index]

    def site(self, name: str, kind: str = "activation") -> str:
        """The label of a site."""
        return next(s.label for s in self.sites if s.name == name and s.kind == kind)

    def commit(
        self,
        steps: range,
        *,
        without: tuple[int, ...] = (),
        events: tuple[Event, ...] = (),
        alerts: tuple[Alert, ...] = (),
        spike: Mapping[tuple[int, str], float] | None = None,
        kept: tuple[int, ...] = (),
    ) -> None:
        """Write steps in one transaction; of the ranks in `kept` all that they said."""
        first = self.writer.next_record
        records = [
            self.record(first + i, step, without=without, spike=spike or {})
            for i, step in enumerate(steps)
        ]  # fmt: skip
        frames = [
            RankFrames(record=one.index, frames={rank: self.frame(one.step, rank) for rank in kept})
            for one in records
        ]
        told, judged = list(alerts), None
        if self.watch is not None:
            for one in records:
                told += self.watch.judge(one, {}, world_size=self.ranks)
            judged, self.watch.judged = self.watch.judged, Counter[str]()
        self.writer.commit(
            records,
            streams={},
            events=events,
            alerts=told,
            rank_frames=frames if kept else (),
            judged=judged,
        )

    def frame(self, step: int, rank: int) -> RankFrame:
        """What a rank said about a sound step."""
        schema = make_schema(
            [
                Site(kind=cast("Any", s.kind), name=s.name, placement={"dp": "shard"})
                for s in self.sites
            ]
        )
        sites = np.arange(len(self.sites), dtype=np.uint32)
        table = self.table(step, rank, {})
        header, blob = pack_frame(
            Frame(step=step, time_ns=1, sites=sites, table=table), schema.hash
        )
        return RankFrame(open_frame(header, blob, schema), schema)

    def record(
        self,
        index: int,
        step: int,
        *,
        without: tuple[int, ...],
        spike: Mapping[tuple[int, str], float],
    ) -> Record:
        ranks = [rank for rank in range(self.ranks) if rank not in without]
        tables = {rank: self.table(step, rank, spike) for rank in ranks}
        numbers = {rank: main_statistics(table) for rank, table in tables.items()}
        stacked = np.stack([numbers[rank] for rank in ranks])
        with np.errstate(all="ignore"), warnings.catch_warnings():
            lost = np.isnan(stacked).all(axis=0)
            least = np.where(np.isnan(stacked), np.inf, stacked)
            most = np.where(np.isnan(stacked), -np.inf, stacked)
            names = np.array(ranks, float)
            spread = np.stack(
                [least.min(0), most.max(0), names[least.argmin(0)], names[most.argmax(0)]], axis=-1
            )
        spread[lost] = np.nan
        ranked = stacked[:, :, [MAIN.index(name) for name in RANKED]].astype(np.float32)
        over_ranks = RankDistribution.of(ranked.reshape(len(ranks), -1), ranks).summary()
        distribution = over_ranks.reshape(1, *ranked.shape[1:], -1)
        merged = tables[ranks[0]]
        for rank in ranks[1:]:
            merged = merged.merge(tables[rank])
        # `Any`: facts of a record are of many types.
        told: dict[str, Any] = {"distribution": distribution} if self.ranked else {}
        return Record(
            index=index, step=step, attempt=self.attempt, time_ns=self.start_ns + step * 10**9,
            ranks=tuple(ranks), complete=not without, partial=False, final=False, sites=self.index,
            merged=merged, spread=spread.astype(np.float32),
            **told,
            by_rank={rank: table.astype(np.float32) for rank, table in numbers.items()},
            training={rank: self.training(step, rank) for rank in ranks},
            health={rank: {} for rank in ranks},
        )  # fmt: skip

    def table(self, step: int, rank: int, spike: Mapping[tuple[int, str], float]) -> SketchTable:
        return SketchTable.concatenate(
            [self.sketch(site, step, rank, spike) for site in self.sites]
        )

    def sketch(
        self, site: SiteInfo, step: int, rank: int, spike: Mapping[tuple[int, str], float]
    ) -> SketchTable:
        """One tensor of one rank: sound, or hurt on the bad rank, or with a planted spike."""
        origin = site.label == self.site("blocks.2.mlp.act")
        grown = lost = 0
        if self.bad_step is not None and rank == self.bad_rank:
            grown = max(0, step - self.bad_step + 14) if origin else 0
            lost = 3 + step - self.bad_step if step >= self.bad_step and self.after(site) else 0
        growth = 2.0 ** (0.9 * grown) * spike.get((step, site.label), 1.0)
        if growth != 1 or lost:
            return self.measured(site, step, growth=growth, lost=lost)
        key = (site.label, step // self.hold, rank, step % self.every == 0)
        if key not in self.kept:
            self.kept[key] = self.measured(site, step)
        return self.kept[key]

    def measured(
        self, site: SiteInfo, step: int, *, growth: float = 1.0, lost: int = 0
    ) -> SketchTable:
        """A sketch of random numbers of the site's scale, `lost` of them infinite."""
        block, name = int(site.name.split(".")[1]), site.name.split(".", 2)[2]
        scale = MODULES[name][1] * (1 + 0.3 * block) * growth
        if site.kind == "weight_gradient":
            scale *= 2.0**-9 * 0.985**step
        x = self.random.standard_normal(ELEMENTS) * (np.nan if self.all_nan else scale)
        if name == "mlp.act":
            x = np.maximum(x, 0) * np.exp(np.abs(self.random.standard_normal(ELEMENTS)))
        if site.dtype == "float16":
            x = np.clip(x, -65504, 65504)
        sound = x.astype(site.dtype)
        sound[:lost] = np.inf
        sketch = glance_at(sound) if step % self.every else sketch_array(sound)
        sketch.counts[0, COUNTS.index("unseen")] = self.unseen
        return sketch

    def after(self, site: SiteInfo) -> bool:
        """Whether a site comes at or after the one that goes wrong."""
        return site.kind == "activation" and site.order >= 2 * len(MODULES) + 5

    def training(self, step: int, rank: int) -> dict[str, float]:
        loss = 2.2 + 3.4 * np.exp(-step / 22) + 0.06 * self.random.standard_normal()
        if self.bad_step is not None and step >= self.bad_step - 4:
            loss += 0.18 * (step - self.bad_step + 5) * (1.6 if rank == self.bad_rank else 0.7)
        return {"loss": float(loss), "learning_rate": 3e-4 * min(1, (step + 1) / 10)}

    def close(self) -> None:
        self.writer.close()


@pytest.fixture(scope="session")
def broken_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose rank 2 breaks at step 40 of 60."""
    path = tmp_path_factory.mktemp("runs") / "broken"
    job = Job(path)
    lost = Event(
        kind="gap", attempt=0, rank=3, step=52, text="Rank 3 dropped 2 frames before this one."
    )
    job.commit(range(60), events=(lost,))
    job.close()
    return path


@pytest.fixture(scope="session")
def judged_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, judged as it was stored."""
    path = tmp_path_factory.mktemp("runs") / "judged"
    job = Job(path, watched=True)
    job.commit(range(60))
    job.close()
    return path


@pytest.fixture
def new_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes jobs that a test writes itself."""
    jobs: list[Job] = []

    # `Any`: what a `Job` takes.
    def make(name: str = "job", **settings: Any) -> Job:
        jobs.append(Job(tmp_path / name, **settings))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium of the system; without one the tests skip, or fail if it is required."""
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        reason = "no chromium was found; install it with: apt-get install chromium"
        do_without(reason, "RANKSCOPE_REQUIRE_BROWSER")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def derived_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 30 steps with quantities of modules every other step: numbers, and a spectrum.

    Of `blocks.1.mlp.act` the dead neurons rise, and a bound on them is passed in step 20; in step
    10 its spectrum could not be known.
    """
    path = tmp_path_factory.mktemp("runs") / "derived"
    job = Job(path, bad_step=None)
    act, up = "blocks.1.mlp.act", "blocks.1.mlp.up"
    infos = [
        QuantityInfo(name="dead_neurons", of=act, width=1, start=0),
        QuantityInfo(name="dead_neurons", of=up, part="tp=0", width=1, start=1),
        QuantityInfo(name="input_cov_spectrum", of=act, width=6, is_vector=True, start=2),
    ]
    indices = job.writer.catalog.add_quantities(infos)
    assert indices == [0, 1, 2]
    text = f"dead_neurons of {act} is 0.95, above 0.9."
    alert = Alert(
        rule="dead_neurons above", attempt=0, site=job.site(act), ranks=(), first_step=20,
        last_step=None, value=0.95, threshold=0.9, text=text, time_ns=1,
    )  # fmt: skip
    records = [job.record(step, step, without=(), spike={}) for step in range(30)]
    for step in range(0, 30, 2):
        spectrum = 4.0 ** -np.arange(6) * (1 + step)
        told: dict[int, np.ndarray] = {
            0: np.array([0.45 + step / 40]),
            1: np.array([0.25]),
            2: np.full(6, np.nan) if step == 10 else spectrum,
        }
        records[step] = replace(records[step], derived=Derived.known(told))
    job.writer.commit(records, streams={}, alerts=[alert])
    job.close()
    return path


@pytest.fixture
def closed_page() -> Iterator[None]:
    """A page that a server closed is what Bokeh holds to be the process's current document."""
    before, page, session = curdoc(), Document(), object()
    page.on_change_dispatch_to(session)
    page.destroy(session)
    set_curdoc(page)
    yield
    set_curdoc(before)
