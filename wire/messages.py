"""The closed vocabulary of the wire: every message that may cross between processes.

A message is a msgpack array whose first element is its tag, typed and validated by msgspec. Fields
are only ever appended, with defaults, so that neighbouring versions understand each other. Identity
(run, stream, rank) is said once, in `Hello`; it never rides on ZeroMQ's routing ids.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from ..sketch.exact_counts import MAX_NUMBERS
from ..sketch.matrices import MAX_QUANTITY_NAME, MAX_SIZE, Form, Merge
from ..sketch.spectra import Statistic

PROTOCOL = 5
"""The version of this vocabulary."""

TRAINING_ENDED, PROCESS_ENDED = "Training ended in step ", "The process ended in step "
"""What a report begins with that tells that a rank left its block, or its process, in the
middle."""
MAX_NAME = 1024
MAX_SITES = 100_000
MAX_ENTRIES = 4096
MAX_RANKS = 1_000_000
MAX_MEMBERS = 1 << 20
"""Streams that a relay may begin on one connection, one after another."""
MAX_LEVELS = 16
"""Relays, one above the other, whose names are told."""
MAX_EXACT_COUNTS = 4096
"""Of one rank, all sites together."""
MAX_SERIES = 4096
"""Of one rank."""
MAX_READ = 1 << 18
"""Numbers that are read off all series of a rank, or of a run."""
MAX_JOINED = 4096
"""Frames that one joined frame stands for."""
MAX_JOINED_ROWS = 4_000_000
MAX_GAPS = 256
"""As many as one message may tell; more are joined into the last."""
MAX_PEERS = 64
"""Coordinates on the mesh axis `tp` of which the distribution over ranks is kept."""
MAX_GROUPS = 64
"""Groups of ranks whose numbers are kept of a record: as many as single ranks."""
LEAST_BUDGET = 1e-4
"""A smaller share of step time cannot be measured."""
MAX_STRETCH = 1024
"""Times by which schedules are stretched at most."""
MAX_ALERTS = 16
"""Of one record, that agents are told of."""
MAX_BLAMED = 64
"""Ranks of one alert that agents are told of."""
MAX_DETAIL = 1024
"""Steps that alerts can ask for in full."""

LONGEST_NAME = 128
"""Characters of a run's name."""
RUN_NAME = re.compile(
    rf"[A-Za-z0-9_](?:[A-Za-z0-9._+=@ -]{{0,{LONGEST_NAME - 2}}}[A-Za-z0-9_+=@-])?"
)
"""What a run may be called: it becomes the name of a folder."""

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Step = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Of training; bounded to int64, in which the store keeps it."""
Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
Numbers = Annotated[dict[Name, float], msgspec.Meta(max_length=MAX_ENTRIES)]
Texts = Annotated[list[Name], msgspec.Meta(max_length=MAX_ENTRIES)]

Kind = Literal[
    "input",
    "local_activation",
    "activation",
    "activation_gradient",
    "input_gradient",
    "local_input_gradient",
    "weight",
    "unsharded_weight",
    "weight_gradient",
    "local_weight_gradient",
    "optimizer_state",
    "update",
    "tap",
]
"""What is observed, see the table of words in README."""

Placement = Literal["shard", "replicate", "partial"]
"""How a rank's piece relates to the whole along one mesh axis."""

MergeOperation = Literal["sum", "minimum", "maximum", "moments", "histogram"]


class Message(
    msgspec.Struct, frozen=True, array_like=True, kw_only=True, forbid_unknown_fields=False
):
    """What all messages share."""


class MeshAxis(Message, frozen=True):
    """One axis of the device mesh, and where this rank stands on it."""

    name: Name
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    coordinate: Rank


class Hello(Message, tag="hello", frozen=True):
    """An agent introduces its stream of frames; answered by `Welcome` or `Reject`."""

    protocol_min: int
    protocol_max: int
    run: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    launch: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    """Token that rank 0 mints for each start of the job: one attempt of the run."""
    stream: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    """Unique name of this agent process's stream."""
    rank: Rank
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    mesh: Annotated[list[MeshAxis], msgspec.Meta(max_length=16)]
    host: Name = ""
    process: Count = 0
    device: Name = ""
    facts: Annotated[dict[Name, Name], msgspec.Meta(max_length=64)] = {}
    """Versions and settings worth keeping with the run."""
    budget: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of step time that the agent may take; below `LEAST_BUDGET`: any."""
    keeps_back: bool = False
    """Whether its schedules leave something out, or a ring keeps it: more can be asked of it."""
    durable: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] = -1
    """Highest sequence number of the stream that the agent was told is durable; what of it is not
    here lies in the spool of a relay."""


class Welcome(Message, tag="welcome", frozen=True):
    """The collector accepts a stream."""

    protocol: int
    attempt: Count
    """Number of this start of the job within the run, from 0."""
    committed: int
    """Sequence number of the last frame of this stream that is durable, -1 for none."""
    credit_frames: Annotated[int, msgspec.Meta(ge=1)]
    credit_bytes: Annotated[int, msgspec.Meta(ge=1)]
    """How much may be under way without an `Ack` that says it was received."""
    received: int = -1
    """Sequence number of the last frame that is here already, durable or not: what comes after it
    is to be sent."""
    joins: bool = False
    """Whether frames of the stream may be joined with others; what is joined already is taken."""


class Reject(Message, tag="reject", frozen=True):
    """The collector refuses a message, and says why in one sentence."""

    code: Literal["protocol", "run", "malformed", "oversized", "stream", "schema", "full"]
    reason: Name
    retry_s: float | None = None
    """Seconds after which trying again makes sense; None: never."""


class Column(Message, frozen=True):
    """One column of a frame's blob."""

    name: Name
    dtype: Name
    width: Annotated[int, msgspec.Meta(ge=0, le=65536)]
    """Values a row; 0 where it varies (the windows of the histogram)."""
    merge: MergeOperation


class Site(Message, frozen=True):
    """One observed thing: (kind, name, slot, occurrence), and facts about it."""

    kind: Kind
    name: Name
    slot: Name = ""
    """Element path of a nested output, or the optimizer's key."""
    occurrence: Count = 0
    """Number of the call within one forward of the observed root."""
    dtype: Name = ""
    shape: Annotated[list[Count], msgspec.Meta(max_length=64)] = []
    """Of the rank's local tensor, when first seen."""
    module: Name = ""
    """Type of the module, where there is one."""
    order: Count = 0
    """Place in the order of first execution within a step."""
    placement: Annotated[dict[Name, Placement], msgspec.Meta(max_length=16)] = {}
    """By mesh axis; an axis that is not named is `replicate`."""
    aliases: Texts = []
    """Other names of the same tensor (tied weights)."""
    checked: bool = True
    """Whether its copies are compared, and its sums checked."""
    whole: Annotated[list[Count], msgspec.Meta(max_length=64)] = []
    """Shape of the whole that it is a piece of; empty where it is none."""
    cuts: Annotated[
        list[tuple[Name, Annotated[int, msgspec.Meta(ge=0, lt=64)]]], msgspec.Meta(max_length=16)
    ] = []
    """(mesh axis, axis of the tensor) in the order in which the whole is cut; see
    `sketch.regions`. Empty where nobody knows."""
    group: Count = 0
    """Of a parameter: the number of its group over all optimizers, whose learning rate is the
    training statistic `lr.` and this number, or `lr` where there is none of that name."""


class SiteExactCount(Message, frozen=True):
    """What is counted of a site's tensor beside its sketch."""

    site: Annotated[int, msgspec.Meta(ge=0, lt=MAX_SITES)]
    """Index into the schema's sites."""
    name: Name
    """As of `sketch.exact_counts`: it says what is counted, and in which shape."""


class Reading(Message, frozen=True):
    """One quantity that is read off a series."""

    quantity: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_QUANTITY_NAME)]
    statistic: Statistic = "values"
    bound: float = 0.0
    """Of `share_at_most`."""


class Series(Message, frozen=True):
    """What is derived from one module's or parameter's tensors in a step: an array of float64."""

    of: Name
    """The module or parameter, and `#n` for call n, from 1 on, within one forward of the root."""
    form: Form
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
    """Of `values` how many there are; of a covariance or Gram matrix how many features."""
    readings: Annotated[list[Reading], msgspec.Meta(min_length=1, max_length=64)]
    merge: Merge = "mean"
    """How `values` of ranks that hold different samples become one; a mean goes by weight."""
    axes: Annotated[dict[Name, Literal["merge", "own"]], msgspec.Meta(max_length=16)] = {}
    """By mesh axis: ranks hold different samples, which are merged, or different features, which
    are kept apart; along an axis that is not named they hold copies."""


class SeriesValues(Message, frozen=True):
    """The array of one series of a frame, which lies in the blob as little-endian float64."""

    series: Annotated[int, msgspec.Meta(ge=0, lt=MAX_SERIES)]
    """Index into the schema's series."""
    weight: Annotated[float, msgspec.Meta(ge=0)]
    """Samples that it is of."""


class Schema(Message, tag="schema", frozen=True, weakref=True):
    """What the frames that carry `hash` hold; sent before the first of them."""

    hash: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    columns: Annotated[list[Column], msgspec.Meta(max_length=64)]
    sites: Annotated[list[Site], msgspec.Meta(max_length=MAX_SITES)]
    exact_counts: Annotated[list[SiteExactCount], msgspec.Meta(max_length=MAX_EXACT_COUNTS)] = []
    series: Annotated[list[Series], msgspec.Meta(max_length=MAX_SERIES)] = []


class Gap(Message, frozen=True):
    """Steps of a stream that will never come, and why."""

    first_step: Step
    last_step: Step
    frames: Count
    cause: Name


class CountWindow(Message, frozen=True):
    """The counts of one exact count from the first to the last that is not zero, in C order."""

    exact_count: Annotated[int, msgspec.Meta(ge=0, lt=MAX_EXACT_COUNTS)]
    """Index into the schema's exact counts."""
    first: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBERS)]
    length: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBERS)]
    dtype: Literal["u1", "u2", "u4", "u8"]


class FrameHeader(Message, tag="frame", frozen=True):
    """What one rank says about one step; the columns follow in the second part."""

    sequence: Count
    schema: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    step: Step
    time_ns: Count
    """Wall clock at the step's end, nanoseconds since 1970."""
    rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_SITES)]
    bins: Annotated[int, msgspec.Meta(ge=0)]
    """Length of the last column: the histogram windows of all rows, back to back."""
    bin_dtype: Literal["u1", "u2", "u4", "u8"]
    crc32: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    partial: bool = False
    """The step had not ended: a hang, a crash, or the block was left."""
    final: bool = False
    """The state at the end of the run: weights after the last update."""
    training: Numbers = {}
    """Loss, learning rate and the like, as given to `scope.step`."""
    health: Numbers = {}
    """The agent's own counters and cost."""
    reports: Texts = []
    """Sentences about what went wrong inside the agent."""
    gaps: Annotated[list[Gap], msgspec.Meta(max_length=MAX_GAPS)] = []
    exact_counts: Annotated[list[CountWindow], msgspec.Meta(max_length=MAX_EXACT_COUNTS)] = []
    """Their counts follow the columns in the blob, in order."""
    unmatched: bool = False
    """The rank's own gradients are not what the reduced ones of the step were made of."""
    kept: bool = False
    """It was kept back, and is sent because something went wrong since: after later steps."""
    alarming: bool = False
    """Some site has values that are not finite, or overflow, and had none in the steps before."""
    series: Annotated[list[SeriesValues], msgspec.Meta(max_length=MAX_SERIES)] = []
    """Their arrays follow the exact counts in the blob, in order."""


class JoinedMember(Message, frozen=True):
    """Of one of the frames that a joined one stands for what is not merged."""

    stream: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    """As of its `Hello`, said on the same connection."""
    sequence: Count
    time_ns: Count
    training: Numbers = {}
    health: Numbers = {}
    gaps: Annotated[list[Gap], msgspec.Meta(max_length=MAX_GAPS)] = []
    """What was lost before it, at a relay that held joined frames."""


class CellWindow(CountWindow, frozen=True):
    """The counts of one exact count of one cell."""

    cell: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class JoinedHeader(Message, tag="joined", frozen=True):
    """What several ranks say about one step, merged by a relay; the columns follow in the second
    part. It stands for one frame of each member, and is sent on the stream of the first."""

    schema: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    """Of the sites of all members."""
    step: Step
    members: Annotated[list[JoinedMember], msgspec.Meta(min_length=1, max_length=MAX_JOINED)]
    rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_JOINED_ROWS)]
    """Sketches, by site and cell."""
    sites: Annotated[int, msgspec.Meta(ge=0, le=MAX_SITES)]
    """How many different sites these are of."""
    bins: Annotated[int, msgspec.Meta(ge=0)]
    bin_dtype: Literal["u1", "u2", "u4", "u8"]
    crc32: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    copies: Annotated[int, msgspec.Meta(ge=0, le=MAX_JOINED_ROWS)] = 0
    """Checksums of single cells that have been united, see `wire.joined`."""
    peers: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, le=MAX_JOINED_ROWS)]],
        msgspec.Meta(max_length=MAX_PEERS),
    ] = []
    """Levels of the distribution over the ranks at each coordinate of the mesh axis `tp`."""
    by_rank: bool = False
    """Whether it holds the main statistics of each member."""
    groups: Annotated[list[Name], msgspec.Meta(max_length=MAX_GROUPS)] = []
    """Groups of ranks whose main statistics it holds."""
    exact_counts: Annotated[list[CellWindow], msgspec.Meta(max_length=MAX_EXACT_COUNTS)] = []
    final: bool = False
    unmatched: bool = False


class Ack(Message, tag="ack", frozen=True):
    """The collector's word on a stream: what arrived, and what is durable."""

    received: int
    """Highest sequence number received in order; gives credit back."""
    committed: int
    """Highest sequence number that is durable; only this frees the sender's window."""
    failing: Name = ""
    """Why what arrived cannot be stored at present; empty where it can."""
    left: bool | None = None
    """Whether this answers a goodbye; None: who says it is older than this field."""


class NeedSchema(Message, tag="need-schema", frozen=True):
    """A frame named a schema that the collector does not hold: send it, then the frame again."""

    hash: bytes


class Control(Message, tag="control", frozen=True):
    """How the agents of a job are to go on, all alike."""

    stretch: Annotated[int, msgspec.Meta(ge=1, le=MAX_STRETCH)]
    """How many times as rarely as its schedule says each site is sketched, sites in turn."""
    from_step: Step
    """The first step of which that is true."""


class AlertSummary(Message, frozen=True):
    """What a rule of the collector found wrong, in short; all of it is in the store."""

    rule: Name
    severity: Literal["error", "warning", "notice"]
    site: Name
    """Its label; empty where it is of no single one."""
    ranks: Annotated[list[Rank], msgspec.Meta(max_length=MAX_BLAMED)]
    """Those to blame; empty where all are, or nobody can know."""
    step: Step
    """The first in which it was found."""
    value: float
    threshold: float
    text: Name
    """A sentence, with its numbers."""


class Alerts(Message, tag="alerts", frozen=True):
    """Something is wrong: what, and what the agents of the job do about it, all alike."""

    alerts: Annotated[list[AlertSummary], msgspec.Meta(min_length=1, max_length=MAX_ALERTS)]
    more: Count = 0
    """How many began beside these."""
    send_ring: bool = False
    """Whether steps that were kept back are to be sent."""
    detail_from: Step = 0
    detail_steps: Annotated[int, msgspec.Meta(ge=0, le=MAX_DETAIL)] = 0
    """From that step on in so many all sites are sketched, whatever schedules say."""


class State(Message, tag="state", frozen=True):
    """A sign of life between frames, with the agent's counters and its last site."""

    step: Step
    site: Name
    health: Numbers = {}
    tensors: Count = 0
    """How many of the step it has come to: of ranks that do the same, that with least is behind."""


class Goodbye(Message, tag="goodbye", frozen=True):
    """The stream has ended; answered by an `Ack` once all up to `last` is durable."""

    last: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
    """Sequence number of the last frame, -1 where there was none."""
    reason: Name = ""
    gaps: Annotated[list[Gap], msgspec.Meta(max_length=MAX_GAPS)] = []
    """What no frame could tell any more; if there is something `last` is the number of this
    message, which no frame has."""


class Via(Message, tag="via", frozen=True):
    """Before a message: it is of one stream among several that share a connection of a relay."""

    member: Annotated[int, msgspec.Meta(ge=0, lt=MAX_MEMBERS)]
    """Number that the relay gave to the stream when it said hello; each hello takes a new one."""


class Ping(Message, tag="ping", frozen=True):
    """Are you there? Needs no stream; answered by `Pong`."""

    payload: Annotated[bytes, msgspec.Meta(max_length=1 << 20)] = b""
    """Anything, to see how fast the way is; it does not come back."""


class Pong(Message, tag="pong", frozen=True):
    """The collector, or a relay, is there."""

    protocol: int
    version: Name
    """Of rankscope."""
    time_ns: Count
    """Its wall clock, nanoseconds since 1970."""
    party: Literal["collector", "relay"] = "collector"
    """Which it is."""
    lost: Name = ""
    """Why a relay has no connection upstream; empty where it has, or has not tried."""
    relays: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=32)]], msgspec.Meta(max_length=MAX_LEVELS)
    ] = []
    """Names of a relay and of those above it, as far as it knows: none may find its own."""


FromAgent = Hello | Schema | FrameHeader | JoinedHeader | State | Goodbye | Ping
FromCollector = Welcome | Reject | Ack | NeedSchema | Control | Alerts | Pong
