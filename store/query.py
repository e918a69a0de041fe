"""Questions about a run: what was observed, labelled, from one snapshot at a time.

Steps are chosen inclusively; a single one must have been recorded. Of a step that was recorded by
several attempts the last counts, unless `attempt` says otherwise. Numbers that were not observed
are NaN.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
import xarray as xr
import zarr

from ..sketch.derive import MAIN, SENTINEL
from ..sketch.errors import SettingError, StoreError
from ..sketch.exact_counts import ExactCount, exact_count_named
from ..sketch.formats import FORMATS
from ..sketch.table import BINS, COUNTS, FIRST_EXPONENT, LAST_EXPONENT, SketchTable
from .agreement import BATCH, HALF_LIFE, agreement_frame, noise_frame
from .badness import Badness
from .columns import in_columns
from .compare import Comparison, compare, ratios
from .counted import counts_at, exact_count_array, exact_counts_frame, fit_blocks
from .describe import attributes
from .ending import Ending, ending_of
from .fit import fit_formats
from .format_table import Question, Scale, format_table
from .frames import (
    alerts_frame,
    attempts_frame,
    events_frame,
    gaps_frame,
    health_frame,
    hosts_frame,
    records_frame,
    regions_frame,
    sites_frame,
)
from .incidents import Incident, by_identity, incidents_of
from .labels import by_column, by_site, by_step, exponents_dataset, texts
from .logframe import Part, logframe
from .origin import FirstBad, first_bad
from .outliers import By, rank_outliers
from .place import Place
from .pooling import Heatmap, Pool
from .quantities import quantities_frame, quantity_frame
from .rank_ratios import RankRatios, rank_ratios
from .reader import Reader, open_reader
from .record import Alert, QuantityInfo, Record, SiteInfo
from .replay import replay
from .scales import (
    exponents_without_scale,
    main_without_scale,
    reductions_frame,
    without_scale,
)
from .selection import (
    Chosen,
    Indices,
    Steps,
    check_attempt,
    is_counted,
    lengths_of,
)
from .state import alert_from_json
from .tallies import has_histogram
from .updates import updates_frame
from .values import heatmap, main_column, newest_counters, numbers, silent_records, summed, values
from .views import View, exact, observed

Labels = str | Collection[str] | None

NARROW_FORMATS = ("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
"""Those of which people ask first, the narrowest before the others."""
LOOK_S = 0.1
"""Who waits for a run to be finished looks this often."""
ROWS_AT_ONCE = 1 << 15
"""Histograms that are read at a time for a LogFrame."""


def open_run(path: str | Place) -> Run:
    """Open a run for reading, while it is written or later.

    Args:
        path: a folder, or a URL into an object store: `s3://`, `gs://` or `az://`.

    Raises:
        NotARunError: the path holds no run; the message says what it holds.
        StoreError: it cannot be read.
    """
    return Run(open_reader(path))


class Run:
    """A run as of one snapshot; `refresh` moves to the newest.

    Threads may share one: each question reads from the snapshot that was current when it began.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __repr__(self) -> str:
        attempts, only = len(self._reader.meta.attempts), self._reader.attempt
        several = f", {attempts} attempts" if attempts > 1 else ""
        if only is not None:
            several = f" in {attempts} attempts, of which attempt {only}"
        return f"<Run {self.name!r} at {self.path}, {self._reader.state.records} records{several}>"

    def of_attempt(self, attempt: int) -> Run:
        """The same run as one attempt, that is one start of the job, recorded it.

        Whatever takes a run takes this: `compare` and the plots, say, with one attempt of a run
        beside another. What is asked of records, sites, alerts, incidents, events, gaps and hosts
        is that of the attempt; what is of the run as a whole (`attempts`, `ending`, `finished`,
        `health`, `judged`) stays so.

        Raises:
            SettingError: there is no such attempt, or these are the records of another.
        """
        return Run(self._reader.of_attempt(attempt))

    @property
    def name(self) -> str:
        """Name of the run."""
        return self._reader.snapshot.run

    @property
    def path(self) -> Place:
        """Where it lies."""
        return self._reader.path

    @property
    def finished(self) -> bool:
        """Whether its collector closed it, however the job ended, of which `ending` tells.

        A later attempt begins it again.
        """
        return self._reader.state.finished

    @property
    def ending(self) -> Ending:
        """How the latest attempt goes, or how it ended: well, early, or with ranks lost.

        Its `earlier` has the attempts before that ended early, or with ranks lost.
        """
        return ending_of(self._reader)

    @property
    def snapshot(self) -> str:
        """The snapshot that all answers are from."""
        return self._reader.snapshot.id

    @property
    def attempts(self) -> pd.DataFrame:
        """By attempt: launch, world_size, mesh, ranks, records, first and last step, times.

        `left` has the ranks that said goodbye and have not come back, as far as it is stored.
        """
        reader = self._reader
        if "attempts" not in reader.kept:
            reader.kept["attempts"] = attempts_frame(reader.facts(), reader.meta.attempts)
        frame: pd.DataFrame = reader.kept["attempts"]
        return frame.copy()

    def hosts(self, attempt: int | None = None) -> pd.DataFrame:
        """By rank of an attempt, by default the last: host, process, device, place on the mesh.

        Raises:
            SettingError: there is no such attempt.
        """
        reader = self._reader
        return hosts_frame(reader.meta.attempts, reader.attempt_of(attempt))

    @property
    def is_imported(self) -> bool:
        """Whether it was made of a LogFrame, which does not hold all that a run does."""
        return self._reader.is_imported

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of ranks that can be seen: by coordinate on some mesh axes, and by host.

        Each as merged over its ranks, "dp=0", "tp=1", "dp=0,tp=1", "host=node-3", where it is more
        than one rank and not all.
        """
        return self._reader.meta.groups

    def refresh(self) -> bool:
        """Move to the newest snapshot; whether there was a newer one."""
        newest = self._reader.newest()
        moved = newest is not self._reader
        self._reader = newest
        return moved

    def wait(self, timeout_s: float = 60.0) -> Self:
        """Wait until the run is finished, and move to the newest snapshot; the run itself.

        A collector finishes a run a moment after its last rank has left, and one that was started
        with the job then ends.

        Args:
            timeout_s: how long to wait, in seconds.

        Raises:
            StoreError: it is not finished by then.
        """
        until = time.monotonic() + timeout_s
        self.refresh()
        while not self.finished:
            if time.monotonic() >= until:
                raise StoreError(
                    f"{self.path} is not finished after {timeout_s:g} s: {self.ending.text}. Its "
                    "ranks have not left, or its collector has ended before they did."
                )
            time.sleep(LOOK_S)
            self.refresh()
        return self

    def records(self, *, all_attempts: bool = False) -> pd.DataFrame:
        """By record: step, attempt, time (UTC), complete, partial, final, and what it holds.

        `sites` is how many sites were observed; of them `sketched` have elements in a histogram,
        `glanced` were left to the sentinel, and `nonfinite` have NaN or infinity. `ranks` is how
        many ranks it holds, `missing` lists the others of its attempt. Of one that is `deleted`
        retention has left this row, training statistics and counters.

        Args:
            all_attempts: all there are. By default one of each step: of the latest attempt that
                recorded it; a final one, of weights alone, where none recorded the step itself.
        """
        reader = self._reader
        facts, only = reader.facts(), reader.attempt
        if "records" not in reader.kept:
            every = records_frame(facts, reader.meta.attempts, deleted=reader.state.deleted)
            reader.kept["records"] = every
        frame: pd.DataFrame = reader.kept["records"]
        found = frame if only is None else frame.loc[frame["attempt"] == only]
        if len(found) and not all_attempts:
            found = frame.iloc[reader.choose(deleted=0).records]
        return found.copy()

    def sites(
        self,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        *,
        attempt: int | None = None,
    ) -> pd.DataFrame:
        """By label, in the order of execution: kind, name, slot, occurrence, dtype, shape, …

        `shape` is that of the tensor as the first rank had it, `whole` that of all pieces together,
        where ranks hold pieces of a DTensor.

        Args:
            kind, name: of the sites.
            attempt: as they were in it, or in the next that saw them; by default each site is as
                it was in the latest attempt that saw it.

        Raises:
            SettingError: nothing matches, or there is no such attempt.
        """
        reader = self._reader
        if attempt is not None:
            check_attempt(attempt, reader.meta.attempts)
            places = reader.choose_sites(kind=kind, name=name)
            return sites_frame(reader.sites(places, attempt))
        if "sites" not in reader.of_meta:
            reader.of_meta["sites"] = sites_frame(reader.sites(reader.choose_sites()))
        frame: pd.DataFrame = reader.of_meta["sites"]
        if kind is None and name is None:
            return frame.copy()
        places = reader.choose_sites(kind=kind, name=name)
        return frame.loc[reader.labels(places)]

    def regions(
        self,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        *,
        attempt: int | None = None,
    ) -> pd.DataFrame:
        """Which pieces of DTensors ranks hold: site, cell, offset, shape, and shape of the whole.

        `cell` is where such a rank is on the mesh axes along which the tensor is cut, as
        "fsdp=1,tp=0"; `offset` and `shape` have an entry an axis, in elements.

        Args:
            kind, name: of the sites.
            attempt: of which one; by default the last.

        Raises:
            SettingError: nothing matches, or there is no such attempt.
        """
        attempts, attempt = self._reader.meta.attempts, self._reader.attempt_of(attempt)
        places = self._reader.choose_sites(kind=kind, name=name)
        number = len(attempts) - 1 if attempt is None else attempt
        if attempt is not None:
            check_attempt(attempt, attempts)
        mesh = attempts[number].mesh if attempts else {}
        return regions_frame(self._reader.sites(places, number), mesh)

    def scalar(
        self,
        statistic: str,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        site: str | None = None,
        sites: Labels = None,
        steps: Steps = None,
        view: View = "merged",
        attempt: int | None = None,
        unscaled: bool = False,
    ) -> xr.DataArray:
        """One statistic over (step, site), NaN where it was not observed.

        Those of `rankscope.sketch.derive.SENTINEL` are there at every step of a run whose agents
        had a sentinel; for others the steps are those in which some site was sketched, or was not
        finite.

        Main statistics are float32 and come in every view; the others are derived from the exact
        columns, as float64: for the merged view, and for ranks in steps of which their frames are
        kept, see `kept_ranks`.

        Args:
            statistic: A name of `rankscope.sketch.STATISTICS`.
            kind: Only sites of this kind, or these.
            name: Only sites in whose name this regular expression is found.
            site: Only the site of this label.
            sites: Only these labels, in this order.
            steps: Which steps, both ends included.
            view: `merged`, a rank, or `min`, `max`, `argmin`, `argmax` over ranks; or one of
                `groups`: what the ranks with a coordinate make up, as "tp=1" or "host=node-3".
                Where frames are kept, any coordinates on the mesh, as "dp=0,pp=1,tp=1".
            attempt: Only records of this attempt.
            unscaled: Gradients as they were without the loss scale, in runs that kept it.

        Raises:
            SettingError: there is no such statistic, site, step, view or attempt, or no loss scale.
        """
        reader = self._reader
        places = reader.choose_sites(kind=kind, name=name, site=site, sites=sites)
        chosen = _records_with(reader, statistic, steps, attempt)
        found = values(reader, statistic, chosen.records, places, view)
        if unscaled and view not in ("argmin", "argmax"):
            found = without_scale(reader, found, statistic, chosen, places)
        return xr.DataArray(
            found,
            dims=("step", "site"),
            coords=by_step(chosen) | by_site(reader.sites(places)),
            name=statistic,
            attrs=attributes(statistic, view, reader.attempt_of(attempt)),
        )

    def main(
        self,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        site: str | None = None,
        sites: Labels = None,
        steps: Steps = None,
        attempt: int | None = None,
        unscaled: bool = False,
    ) -> xr.DataArray:
        """All main statistics over (step, site, statistic), float32: quickest for one step.

        Raises:
            SettingError: there is no such site, step or attempt, or no loss scale.
        """
        reader = self._reader
        places = reader.choose_sites(kind=kind, name=name, site=site, sites=sites)
        chosen = reader.choose(steps=steps, attempt=attempt)
        found = reader.read("scalars", chosen.records, places)
        if unscaled:
            found = main_without_scale(reader, found, chosen, places)
        return xr.DataArray(
            found,
            dims=("step", "site", "statistic"),
            coords=by_step(chosen) | by_site(reader.sites(places)) | {"statistic": list(MAIN)},
            name="main",
        )

    def ranks(
        self,
        statistic: str,
        *,
        site: str,
        steps: Steps = None,
        attempt: int | None = None,
        unscaled: bool = False,
    ) -> xr.DataArray:
        """One main statistic of one site over (step, rank); NaN for ranks that are not kept.

        Args:
            statistic, site, steps, attempt, unscaled: as of `scalar`.

        Raises:
            SettingError: it is no main statistic, or there is no such site, or no loss scale.
        """
        reader = self._reader
        column = main_column(reader, statistic, "ranks")
        places = reader.choose_sites(site=site)
        chosen = _records_with(reader, statistic, steps, attempt)
        found = reader.read("ranks", chosen.records, slice(None), int(places[0]), column)
        if unscaled:
            found = without_scale(reader, found, statistic, chosen, places)
        return xr.DataArray(
            found,
            dims=("step", "rank"),
            coords=by_step(chosen) | {"rank": np.arange(found.shape[1]), "site": site},
            name=statistic,
            attrs=attributes(statistic, "by rank", reader.attempt_of(attempt)),
        )

    def exponents(
        self,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        site: str | None = None,
        sites: Labels = None,
        steps: Steps = None,
        width: int | None = None,
        view: View = "merged",
        attempt: int | None = None,
        unscaled: bool = False,
    ) -> xr.Dataset:
        """Histograms of exponents: `count` over (step, site, exponent), and what is in no bin.

        Bin n counts the elements with 2^n <= |x| < 2^(n+1). By (step, site) there are zero, nan,
        pos_inf, neg_inf, under, over, total, `unseen`, which a sample left out, and `observed`,
        without which all counts are 0.

        Args:
            kind, name, site, sites: which sites, see `scalar`.
            steps: which steps, both ends included.
            width: sums over neighbouring steps, at most so many: `step` is the first of each,
                `last_step` the last. Of a long run they are read from sums that are kept.
            view: `merged`; or a rank, or coordinates on the mesh as "dp=0,tp=1", in steps of which
                the frames of these ranks are kept, see `kept_ranks`; not with `width`.
            attempt: only records of this attempt.
            unscaled: gradients as they were without the loss scale, in runs that kept it; not with
                `width`. Bins move by the exponent of the scale, exactly; what leaves them is in
                `under` or `over`, and what was in these stays there. Steps whose loss scale is not
                known are not `observed`.

        Raises:
            SettingError: there is no such site, step or view, or no exact columns of it; or
                no loss scale, or one that is no power of two.
        """
        reader = self._reader
        places = reader.choose_sites(kind=kind, name=name, site=site, sites=sites)
        chosen = reader.choose(steps=steps, attempt=attempt, sketched=True)
        if width is not None:
            if unscaled:
                raise SettingError(
                    "Sums over steps may mix loss scales: ask for `unscaled`, or for `width`."
                )
            if view != "merged":
                raise SettingError(f"Sums over steps are of all ranks, not of view {view!r}.")
            silent = silent_records(reader, "rms")
            columns = in_columns(chosen, width, reader.state, silent=silent)
            sums = summed(reader, columns, places)
            return exponents_dataset(by_column(columns), reader.sites(places), *sums)
        table, shape = exact(reader, view, chosen.records, places), (len(chosen), len(places))
        counts = table.counts.reshape(*shape, len(COUNTS))
        histograms = table.histogram.reshape(*shape, BINS)
        if unscaled:
            counts, histograms = exponents_without_scale(reader, counts, histograms, chosen, places)
        return exponents_dataset(by_step(chosen), reader.sites(places), counts, histograms)

    def table(
        self,
        step: int,
        sites: Labels = None,
        *,
        site: str | None = None,
        view: View = "merged",
        attempt: int | None = None,
    ) -> tuple[list[str], SketchTable]:
        """The exact columns of one step: labels of the sites observed in it, and a row for each.

        They come in the order of execution, or of `sites`; `site` chooses one. For a rank, or the
        ranks at coordinates on the mesh, as "dp=0,tp=1", the frames of these must be kept, see
        `kept_ranks`.

        Raises:
            SettingError: the step was not recorded, there is no such site or view, or there are no
                exact columns of it.
        """
        reader = self._reader
        record = reader.choose_step(step, attempt)
        places = reader.choose_sites(site=site, sites=sites)
        here, table = observed(reader, view, record, places)
        return reader.labels(here), table

    def formats(
        self,
        *,
        site: str,
        step: int,
        formats: str | Sequence[str] = FORMATS,
        view: View = "merged",
        attempt: int | None = None,
    ) -> pd.DataFrame:
        """How one tensor would fit number formats: by format the shares that overflow, underflow, …

        Each share comes with the bounds that the histogram guarantees, or what was counted beside
        the sketch: most answers from `FineExponents` are exact, all from `CastCounts`. Of single
        ranks (`view`, see `table`) it is what the histogram guarantees.

        Raises:
            SettingError: the site was not observed in that step, there is no such format or view,
                or there are no exact columns of it.
        """
        labels, table = self.table(step, site=site, view=view, attempt=attempt)
        if not labels:
            raise SettingError(f"{site} was not observed in step {step}.")
        if table.is_glance()[0]:
            raise SettingError(
                f"{site} was left to the sentinel in step {step}, which takes no histogram; "
                "`scalar` without NaN tells the steps in which it was sketched."
            )
        if not has_histogram(table)[0]:
            raise SettingError(
                f"{site} is added up over ranks: what its addends come to has no histogram. Ask "
                "for the sum's own site, or with `view` for a rank whose frames are kept."
            )
        counts = counts_at(self._reader, site, step, attempt) if view == "merged" else {}
        return fit_formats(table, counts, formats)

    def format_table(
        self,
        steps: Steps = None,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        site: str | None = None,
        sites: Labels = None,
        formats: str | Sequence[str] = NARROW_FORMATS,
        scale: Scale = 0,
        most_overflow: float = 0.0,
        most_underflow: float = 0.01,
        width: int | None = None,
        attempt: int | None = None,
    ) -> xr.Dataset:
        """How all sites would fit number formats, over (site, format): which ones would break.

        `overflow`, `underflow` (to zero) and `subnormal` are shares of the finite elements that
        are not zero, of several steps the worst one's, each with `_low` and `_high`, between which
        it is sure to lie, and `_step`, where the estimate is largest. They meet where the answer
        is exact. `verdict` is "fits", "breaks", "may break" where the bounds leave it open, or
        "not known" where there is no histogram; of formats with a scale by block where no
        `BlockExponents` were counted. `shift` is the power of two by which the tensor was taken
        to be multiplied. By site there are `steps` with a histogram, `nonfinite`, `seen_share`.

        Args:
            steps: a step, or first and last; the worst of them counts.
            kind, name, site, sites: which sites, see `scalar`.
            formats: a name, or several, as float8_e4m3fn, or e4m3; and those with a scale by
                block: mxfp8_e5m2, mxfp8_e4m3, mxfp6_e3m2, mxfp6_e2m3, mxfp4_e2m1, nvfp4,
                which scale themselves.
            scale: the exponent of a power of two by which all are multiplied, or one for each
                kind; "site": the best of each site, or "kind": of each kind as a whole. The best
                is one with which nothing overflows in any of the steps; of these one with which
                fewest elements may become zero, then fewest are subnormal; of these the one
                nearest to 0. Where it is not known how large elements are it is 0.
            most_overflow: the share of a tensor that may overflow, or be clipped, where it fits;
                of formats with a scale by block it is not asked: what the rounding of a block's
                scale clips is told, and is no reason to say that the format breaks.
            most_underflow: the share that may become zero.
            width: take neighbouring steps together, so that there are at most so many stretches:
                of a long run quick, but a step that is bad may be lost among good ones. What was
                counted beside the sketches is not asked then.
            attempt: only records of this attempt.

        Raises:
            SettingError: there is no such site, step, format, scale or attempt.
        """
        reader = self._reader
        places = reader.choose_sites(kind=kind, name=name, site=site, sites=sites)
        chosen = reader.choose(steps=steps, attempt=attempt, sketched=True)
        asked = Question(
            formats=formats,
            scale=scale,
            most_overflow=most_overflow,
            most_underflow=most_underflow,
            width=width,
        )
        return format_table(reader, chosen, places, asked)

    def exact_counts(
        self, kind: str | Collection[str] | None = None, name: str | None = None
    ) -> pd.DataFrame:
        """What was counted of tensors beside their sketches: site, exact count, its shape.

        Raises:
            SettingError: no site matches.
        """
        reader = self._reader
        return exact_counts_frame(reader, reader.choose_sites(kind=kind, name=name))

    def exact_count(
        self,
        exact_count: ExactCount | str,
        *,
        site: str,
        steps: Steps = None,
        attempt: int | None = None,
    ) -> xr.DataArray:
        """An exact count of one site, int64, over step and its own axes.

        There are only the steps in which it was counted. Of `FineExponents` and `BlockExponents`
        the axes are `exponent`, `part` (where in its binade a part begins, from 1) and `at`
        (inside, edge); the lowest exponent holds all below, too. Of `CastCounts` it is `lost`. A
        step of `FineExponents()` takes 71 kB: choose steps in a long run.

        Args:
            exact_count: as it was given to `observe`, or its name.
            site: label of the site.
            steps: which steps, both ends included.
            attempt: only records of this attempt.

        Raises:
            SettingError: there is no such exact count or site, or it was not counted there.
        """
        reader = self._reader
        wanted = exact_count_named(exact_count) if isinstance(exact_count, str) else exact_count
        chosen = reader.choose(steps=steps, attempt=attempt, sketched=True)
        return exact_count_array(reader, wanted, site, chosen)

    def block_formats(
        self,
        *,
        site: str,
        step: int,
        formats: str | Sequence[str] | None = None,
        attempt: int | None = None,
    ) -> pd.DataFrame:
        """How one tensor would fit formats whose elements share a scale by block.

        By exact count (each `BlockExponents` that was counted of it) and format of the elements:
        shares that overflow (are clipped), become zero, or are subnormal, with their bounds; and
        `counted_share`, below 1 where some ranks or parts did not count.
        Blocks of 32 with `scale="power"` are those of MX, of 16 with "amax" those of NVFP4.

        Raises:
            SettingError: the step was not recorded, there is no such site or format, or no blocks
                were counted of it in that step.
        """
        labels, table = self.table(step, site=site, attempt=attempt)
        counts = counts_at(self._reader, site, step, attempt) if labels else {}
        found = fit_blocks(table, counts, formats)
        if not len(found):
            [place] = self._reader.choose_sites(site=site)
            pattern = self.site_infos[place].name
            raise SettingError(
                f"No blocks of {site} were counted in step {step}: they are counted on request, as "
                f"by observe(…, exact_counts={{{pattern!r}: BlockExponents()}})."
            )
        return found

    def heatmap(
        self,
        statistic: str,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        rows: Sequence[Sequence[str]] | None = None,
        view: View = "merged",
        steps: Steps = None,
        width: int | None = None,
        height: int | None = None,
        pool: Pool = "max",
        attempt: int | None = None,
    ) -> Heatmap:
        """One statistic over all chosen sites (rows) and steps (columns), at most height x width.

        What falls into one cell is pooled so that the worst is kept: the largest number (or the
        smallest, by `pool`), and whether there was any NaN or infinity. Of a long run the merged
        view of a main statistic is read from extremes that are kept; the answer is the same.

        Args:
            statistic, view, attempt: see `scalar`.
            kind, name: which sites, a row each.
            rows: in their place the labels of the sites of each row, of which the worst is kept,
                too: as those of a module.
            steps: which steps, both ends included.
            width, height: at most so many columns and rows; neighbours are taken together.
            pool: which number is the worst: `max` or `min`.

        Raises:
            SettingError: there is no such statistic, site or view, or a row without a site.
        """
        reader = self._reader
        if rows is None:
            places = reader.choose_sites(kind=kind, name=name)
            lengths = [1] * len(places)
        else:
            if kind is not None or name is not None:
                raise SettingError("Choose sites by `rows`, or by `kind` and `name`, not by both.")
            lengths = lengths_of(rows)
            places = reader.choose_sites(sites=[label for row in rows for label in row])
        return heatmap(
            reader,
            statistic,
            _records_with(reader, statistic, steps, attempt),
            places,
            view=view,
            lengths=lengths,
            sizes=(width, height),
            pool=pool,
            kind=kind if isinstance(kind, str) else None,
        )

    def compare(
        self,
        other: Run,
        statistic: str = "rms",
        *,
        kind: str | None = None,
        name: str | None = None,
        steps: Steps = None,
        tolerance: float = 0.01,
    ) -> Comparison:
        """Where this run and another part: in which step, at which site, and how far.

        Sites are matched by label, steps by number, each as its last attempt recorded it. Bits are
        compared by checksums, where both trained on the same mesh. Training statistics are compared
        on each rank.

        Args:
            other: the run to compare with.
            statistic: a main statistic, whose numbers are compared over all ranks.
            kind: only sites of this kind.
            name: only sites in whose name this regular expression is found.
            steps: which steps, both ends included.
            tolerance: by which share of the larger number they may differ.

        Raises:
            SettingError: there is no such statistic, or nothing that both runs have.
        """
        return compare(
            self._reader,
            _reader_of(other),
            statistic=statistic,
            kind=kind,
            name=name,
            steps=steps,
            tolerance=tolerance,
            training=(self.training(steps=steps), other.training(steps=steps)),
        )

    def ratios(
        self,
        other: Run,
        statistic: str = "rms",
        *,
        kind: str | None = None,
        name: str | None = None,
        steps: Steps = None,
        width: int | None = None,
        height: int | None = None,
    ) -> Heatmap:
        """log2 of a statistic of another run over that of this one, over sites and steps.

        Of several in one cell the one that is farthest from 0 is kept; `nonfinite` is of either.

        Args:
            other: the run to compare with.
            statistic, kind, name, steps: see `compare`.
            width, height: at most so many columns and rows.

        Raises:
            SettingError: there is no such statistic, nothing that both runs have, or more than
                2^26 numbers of each would have to be read.
        """
        return ratios(
            self._reader,
            _reader_of(other),
            statistic=statistic,
            kind=kind,
            name=name,
            steps=steps,
            sizes=(width, height),
        )

    def training(self, *, steps: Steps = None, attempt: int | None = None) -> xr.DataArray:
        """Training statistics over (step, rank, name), float64."""
        reader = self._reader
        names = reader.meta.training
        chosen = reader.choose(steps=steps, attempt=attempt, deleted=0)
        found = numbers(reader, "training", names, chosen.records)
        ranks = np.arange(found.shape[1])
        return xr.DataArray(
            found,
            dims=("step", "rank", "name"),
            coords=by_step(chosen) | {"rank": ranks, "name": texts("name", names)},
            name="training",
        )

    def health(self) -> pd.DataFrame:
        """The agents' counters, by rank: columns (counter, latest | total over attempts)."""
        return health_frame(newest_counters(self._reader), self._reader.meta.health)

    def events(self) -> pd.DataFrame:
        """What happened to the pipeline: kind, attempt, rank, step, text, time (UTC)."""
        return self._told("events", lambda: events_frame(self._events()))

    def gaps(self) -> pd.DataFrame:
        """What was measured, or was to be, and is not here: attempt, rank, first_step, last_step.

        `frames` is how many steps of that rank between these two are missing, and `cause` says
        why, as its agent told. They were not observed: no number of them is stored, and the
        records of these steps lack the rank (`missing` in `records`) or are not there.
        """
        return self._told("gaps", lambda: gaps_frame(self._events()))

    def _told(self, what: str, ask: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A table of logs, which a viewer asks for with every snapshot."""
        reader = self._reader
        return reader.told(f"{what} of {reader.attempt}", ask).copy()

    def _events(self) -> list[Mapping[str, Any]]:
        only = self._reader.attempt
        return [one for one in self._reader.log("events") if only in (None, one["attempt"])]

    def kept_ranks(self, *, steps: Steps = None, attempt: int | None = None) -> pd.Series:
        """By step the ranks whose frames are kept as they came, where some are.

        Of these all that is known of the merged tensors is known of each, and of what any of them
        make up: see `view` of `scalar`, `exponents`, `table` and `formats`. Which they are is for
        the collector's `--keep-per-rank` to say.
        """
        reader = self._reader
        chosen = reader.choose(steps=steps, attempt=attempt)
        kept = {
            int(step): reader.rank_frames[record].ranks
            for step, record in zip(chosen.steps, chosen.records.tolist(), strict=True)
            if record in reader.rank_frames
        }
        index = pd.Index(list(kept), dtype=np.int64, name="step")
        return pd.Series(list(kept.values()), index=index, name="ranks", dtype=object)

    def rank_outliers(
        self,
        statistic: str = "rms",
        *,
        kind: str | Collection[str] | None = ("activation", "activation_gradient"),
        name: str | None = None,
        steps: Steps = None,
        attempt: int | None = None,
        by: By = "rank",
        worst: bool = False,
        most: int = 20,
    ) -> pd.DataFrame:
        """Which ranks, hosts or devices differ from the others, and at which sites: a ranking.

        `score` is how far log2 of the statistic is from the median of the ranks that hold the same
        part of the model, in units of their usual spread (1.4826 times the median absolute
        deviation): the median over steps; beyond 5 is worth a look. `ratio` is by how much that is.
        `worst_score`, `worst_ratio` and `worst_step` are of the step in which it was largest.

        Of fewer than four such ranks (`peers` says how many there are) the numbers of one step
        cannot tell which is odd: scores are NaN, and rows come by ratio, which of two ranks is that
        to the other. The past may tell: `own_ratio` is the number in that step over the rank's own,
        the median of the last 16 records before in which ranks were alike. It is about
        `worst_ratio` where the rank itself left its past, and NaN where there is no such past.

        In each step the four lowest and the four highest ranks are known by name, of up to eight
        all; where one is not among them it counts as the median. So where many ranks are odd alike
        ask by host, for which its most extreme rank speaks in each step, or with `worst`.

        Args:
            statistic: one of `rankscope.sketch.RANKED`, which are `rms` and `abs_max`.
            kind: kinds whose tensors are alike on all ranks but for their samples; pieces of
                sharded weights need not be.
            name: only sites in whose name this regular expression is found.
            steps: which steps, both ends included.
            attempt: only records of this attempt.
            by: what is told apart, over all attempts: `rank`, `host`, or `device` by its UUID.
            worst: rank by the worst step, and not by the usual one: finds what does not last.
            most: how many rows.

        Raises:
            SettingError: it is not kept of that statistic, or there is no such site.
        """
        reader = self._reader
        places = reader.choose_sites(kind=kind, name=name)
        chosen = _records_with(reader, statistic, steps, attempt)
        return rank_outliers(reader, statistic, chosen, places, by, worst=worst, most=most)

    def rank_ratios(
        self,
        statistic: str = "rms",
        *,
        site: str,
        steps: Steps = None,
        width: int | None = None,
        attempt: int | None = None,
    ) -> RankRatios:
        """How far each rank is from its peers, over steps: log2 of the ratio to their median.

        Peers are the ranks that hold the same part of the model. They have other coordinates only
        on mesh axes along which the site is not cut, or, of what ranks make of their own samples,
        on axes other than `tp` and `pp`. Their numbers should be equal, or alike. Of two ranks each
        is over the other. Ranks come in the order of the mesh of the last attempt.

        Args:
            statistic: a main statistic.
            site: label of the site.
            steps: which steps, both ends included.
            width: at most so many columns; of several steps in one the worst of each rank counts.
            attempt: only records of this attempt.

        Raises:
            SettingError: it is no main statistic, or there is no such site or attempt.
        """
        reader = self._reader
        [place] = reader.choose_sites(site=site)
        chosen = _records_with(reader, statistic, steps, attempt)
        return rank_ratios(reader, statistic, chosen, int(place), width=width)

    def gradient_agreement(
        self,
        *,
        name: str | None = None,
        steps: Steps = None,
        attempt: int | None = None,
    ) -> pd.DataFrame:
        """Each rank's own gradients beside the reduced ones, by step and parameter.

        A rank has a gradient for each of its `micro_batches`. `local` is the root of the mean
        square of the norms of all of them, `reduced` the norm of what the optimizer took.
        `agreement` is the norm of their mean over `local`: 1 where all say the same, 1 over the
        root of their number where they have nothing in common. `largest` is the largest rank's
        own, in the mean over its micro-batches, over `local`; `largest_rank` is which one it is.
        NaN where `reductions` does not know the factor.

        Args:
            name: only parameters in whose name this regular expression is found.
            steps: which steps, both ends included.
            attempt: only records of this attempt.

        Raises:
            SettingError: the run has no gradients from before their reduction, or no such attempt.
        """
        reader = self._reader
        places = reader.choose_sites(name=name)
        chosen = reader.choose(steps=steps, attempt=attempt, sketched=True)
        return agreement_frame(reader, chosen, places)

    def noise_scale(
        self,
        *,
        batch: float = BATCH,
        half_life: float = HALF_LIFE,
        name: str | None = None,
        steps: Steps = None,
        attempt: int | None = None,
    ) -> pd.DataFrame:
        """The gradient noise scale, by step: the batch size beyond which larger ones hardly help.

        It is tr(S) / |G|^2, where G is the true gradient and S the covariance of that of one
        sample (McCandlish et al. 2018, An Empirical Model of Large-Batch Training, appendix A). The
        ranks' own gradients are those of small batches, their mean is that of a large one: so it
        costs nothing beside them. `gradient_square` estimates |G|^2 and `trace` tr(S), each from
        one step alone, unbiased and noisy, of gradients as backward makes them, without the loss
        scale: a loss that is divided by k micro-batches makes both k^2 times as small, and leaves
        their ratio as it is. `noise_scale` is the ratio of their means over the steps up to this
        one, `error` its standard error: NaN where the gradient cannot be told from noise, or too
        little is known.

        Args:
            batch: samples, or tokens, in one micro-batch of one rank; the noise scale is in the
                same unit. By default it is in micro-batches.
            half_life: after so many records one counts half as much; infinity: all count alike.
            name: only parameters in whose name this regular expression is found.
            steps: which steps, both ends included.
            attempt: only records of this attempt.

        Raises:
            SettingError: an argument is no positive number; the run has no gradients from before
                their reduction; or there is no such attempt or parameter.
        """
        reader = self._reader
        places = reader.choose_sites(name=name)
        chosen = reader.choose(steps=steps, attempt=attempt, sketched=True)
        return noise_frame(reader, chosen, places, batch=batch, half_life=half_life)

    def quantities(self, of: str | None = None) -> pd.DataFrame:
        """What was derived of modules and parameters: quantity, of, part, and how many numbers.

        Those that every sketch tells are among them, see `sketch.quantities.SKETCHED`, and, where
        the run has what they follow from, `update_ratio`, `trust_ratio` and `unchanged_share` of
        parameters, see `updates`, and `noise_scale` of the whole model, which is called (root). A
        `part` says that a quantity is of some ranks alone, as `tp=1`: where features are split over
        ranks.

        Args:
            of: only modules and parameters in whose name this regular expression is found.

        Raises:
            SettingError: `of` is no regular expression.
        """
        return quantities_frame(self._reader, of)

    def quantity(
        self,
        name: str,
        *,
        of: str | None = None,
        steps: Steps = None,
        attempt: int | None = None,
    ) -> pd.DataFrame:
        """The numbers of a derived quantity: step, attempt, of, part, index and value.

        One row a number, in the steps in which it was measured; `index` counts within vectors, as
        spectra. A value is NaN where it was asked for and cannot be known: an event of the kind
        `quantity-unknown` has the reason. Of what follows from `updates` it may be infinite, or
        NaN, as it is there; `noise_scale` is the method's of that name with what that has by
        default, and the mean up to each step, whichever steps are asked for.

        Args:
            name: of the quantity, as `input_cov_max_eig`; docs/quantities.md has them all.
            of: only modules and parameters in whose name this regular expression is found.
            steps: which steps, both ends included.
            attempt: only records of this attempt.

        Raises:
            SettingError: the run has no such quantity, or not of that; or no such attempt.
        """
        reader = self._reader
        chosen = reader.choose(steps=steps, attempt=attempt)
        return quantity_frame(reader, name, of, chosen, attempt)

    def updates(
        self,
        *,
        name: str | None = None,
        steps: Steps = None,
        attempt: int | None = None,
    ) -> pd.DataFrame:
        """What steps changed of weights, by step and parameter, where `update` is observed.

        `weight` and `update` are norms: of the weight before the update, and of new less old;
        `ratio` is the second over the first. `unchanged` is the share of elements that the update
        left as they were: it was zero, or was lost in rounding. `lr` is the learning rate of the
        parameter's group, and `trust_ratio` = lr x weight / update what LARS would multiply the
        learning rate by (You et al. 2017, Large Batch Training of Convolutional Networks, eq. 6,
        with the optimizer's own direction in place of the gradient): infinite where nothing
        changed, NaN where the learning rate is not known.

        Args:
            name: only parameters in whose name this regular expression is found.
            steps: which steps, both ends included.
            attempt: only records of this attempt.

        Raises:
            SettingError: the run has no updates, or no such attempt or parameter.
        """
        reader = self._reader
        places = reader.choose_sites(name=name)
        chosen = reader.choose(steps=steps, attempt=attempt, sketched=True)
        return updates_frame(reader, chosen, places)

    def reductions(self, *, steps: Steps = None, attempt: int | None = None) -> pd.DataFrame:
        """What the reduction over ranks, the GradScaler and clipping did to gradients, by step.

        `factor` is what the sums of the ranks' own gradients were multiplied by until the
        optimizer took them, from projections of all parameters; `ranks` is how many there are;
        `loss_scale` what the GradScaler's was, or was told with the step; and `clip` = factor x
        ranks x loss scale is 1 where gradients are averaged and not clipped. NaN where it is not
        known: of steps that lack a rank, overflowed, or whose own gradients are not all that one
        update took; and of those in which half of the gradients are no multiple of the sum: they
        were not reduced.

        Raises:
            SettingError: the run has no gradients from before their reduction, or no such attempt.
        """
        reader = self._reader
        chosen = reader.choose(steps=steps, attempt=attempt, sketched=True)
        return reductions_frame(reader, chosen)

    def alerts(self) -> pd.DataFrame:
        """What rules found wrong, in the order in which it began; see `docs/rules.md`.

        Columns: `rule`, `severity` (error, warning, notice), attempt, site (empty where it is of no
        single one), `ranks` (those that are to blame; of divergence all holders where none has a
        majority; empty where nobody can know), `first_step`, `last_step` (the last in which it was
        found; none while it goes on), `value` and its `threshold`, text, `evidence` (numbers by
        name), `undetermined` (whether only some of `ranks` are to blame, and nobody can know
        which), time (UTC).
        """
        return self._told("alerts", lambda: alerts_frame(self.alert_log()))

    def incidents(self, attempt: int | None = None) -> list[Incident]:
        """Alerts that have one cause, as one: what is wrong now and worst first.

        Args:
            attempt: of which start of the job; by default of all.
        """
        attempt = self._reader.attempt_of(attempt)
        found = incidents_of(by_identity(self.alert_log()).values(), self.site_infos)
        return [one for one in found if attempt in (None, one.attempt)]

    def judged(self) -> dict[str, int]:
        """By rule, of how many records it could judge something: what was looked for at all."""
        return dict(self._reader.state.judged)

    def alert_log(self) -> list[Alert]:
        """Every entry of the log of alerts: one when an alert begins, and one when it has ended."""
        only = self._reader.attempt
        entries = [alert_from_json(one) for one in self._reader.log("alerts")]
        return [one for one in entries if only in (None, one.attempt)]

    @property
    def quantity_infos(self) -> Sequence[QuantityInfo]:
        """All derived quantities, in the order of their indices."""
        return self._reader.meta.quantities

    @property
    def site_infos(self) -> Sequence[SiteInfo]:
        """The sites of the run, in the order of their index."""
        reader = self._reader
        if reader.attempt is None:
            return reader.meta.sites
        return reader.sites(np.arange(len(reader.meta.sites)))

    def site_infos_of(self, attempt: int) -> Sequence[SiteInfo]:
        """The same as they were in an attempt, or in the next that saw them.

        Raises:
            SettingError: there is no such attempt.
        """
        check_attempt(attempt, self._reader.meta.attempts)
        return self._reader.sites(np.arange(len(self.site_infos)), attempt)

    def replay(self, attempt: int) -> Iterator[Record]:
        """The records of an attempt, one after the other, as they were when they were made.

        Without what is kept apart from them: frames of single ranks, exact counts, groups of ranks.
        Those of which retention has deleted the detail are left out.
        """
        return replay(self._reader, attempt)

    def first_bad(
        self,
        overflow: str = "",
        *,
        above: float = 0.0,
        steps: Steps = None,
        attempt: int | None = None,
    ) -> FirstBad | None:
        """Where the first NaN or infinity began: the site, the ranks, the step and the cause.

        Of the first step in which there is any it is the first site in the order of cause and
        effect, before reductions spread it. `cause` tells a site that made it of good inputs and
        weights from one that read bad ones, and `text` says all in a sentence. Where steps were not
        observed in between, `first_step` and `last_step` are the range in which it began. None
        where all that was observed was good.

        Args:
            overflow: a number format, as "float8_e4m3fn": ask for tensors with numbers beyond it
                instead.
            above: the share of a tensor's finite numbers other than 0 that may be.
            steps: which steps, both ends included: as those after a skipped step of a GradScaler.
            attempt: only records of this attempt.

        Raises:
            SettingError: there is no such format or attempt.
        """
        badness = Badness(format=overflow, above=above)
        return first_bad(self._reader, badness, steps=steps, attempt=attempt)

    def zarr(self) -> zarr.Group:
        """The snapshot as plain Zarr, read only; `docs/store.md` says what is in it."""
        return self._reader.group

    def logframe(
        self,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        steps: Steps = None,
        exponents: tuple[int, int] = (FIRST_EXPONENT, LAST_EXPONENT),
    ) -> pd.DataFrame:
        """Rows by (step, site) in the schema of Track & Visualize; see docs/logframe.md.

        Args:
            kind, name: which sites.
            steps: which steps, both ends included.
            exponents: the first and the last that have a column of their own; what is below and
                above is in the columns -inf and +inf. tandv's own are (-17, 15).

        Raises:
            SettingError: there is no such site, or no such exponent.
        """
        reader = self._reader
        places = reader.choose_sites(kind=kind, name=name)
        chosen = reader.choose(steps=steps, sketched=True)
        return logframe(_parts(reader, chosen, places), exponents=exponents)


def _reader_of(other: Run) -> Reader:
    """That of a run to compare with.

    Raises:
        SettingError: it is no run.
    """
    # Users without a type checker may pass anything.
    if not isinstance(other, Run):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingError(
            f"`other` must be a run, as open_run({str(other)!r}) gives it, got {other!r}."
        )
    return other._reader  # pyright: ignore[reportPrivateUsage]


def _records_with(reader: Reader, statistic: str, steps: Steps, attempt: int | None) -> Chosen:
    """The records that may hold a statistic: not all do where a sentinel looks at every step.

    Raises:
        SettingError: it is no name, or there is no such step or attempt.
    """
    # Users without a type checker may pass anything.
    if not isinstance(statistic, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingError(
            f"A statistic is one name, as 'rms', got {statistic!r}; ask for each by itself."
        )
    sketched = statistic not in SENTINEL
    return reader.choose(steps=steps, attempt=attempt, sketched=sketched)


def _parts(reader: Reader, chosen: Chosen, places: Indices) -> Iterator[Part]:
    """By step what was observed of these sites, and not left to the sentinel."""
    count = len(places)
    at_once = max(ROWS_AT_ONCE // max(count, 1), 1)
    for start in range(0, len(chosen), at_once):
        records = chosen.records[start : start + at_once]
        table = exact(reader, "merged", records, places)
        stored = reader.read("scalars", records, places)
        kept = is_counted(table.counts)
        for at, step in enumerate(chosen.steps[start : start + at_once].tolist()):
            here = np.flatnonzero(kept[at * count : (at + 1) * count])
            rows = table.take(at * count + here)
            yield step, reader.sites(places[here]), rows, stored[at, here]
