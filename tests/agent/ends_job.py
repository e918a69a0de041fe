"""The jobs of test_ends.py: each trains for some steps, and then ends, or goes on, in its own way.

Usage: ends_job.py FOLDER, with a line of JSON for each job on its input. To load torch takes
seconds, so that this process does it once and forks each job before anything else has happened. It
prints a line of JSON for each that has ended. What a job says is in FOLDER/NAME.txt, what it
counted in FOLDER/NAME.json.
"""

import atexit
import ctypes
import faulthandler
import gc
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING or __name__ == "__main__":  # and not in processes that are spawned
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from rankscope.agent.kernel import warm
    from rankscope.agent.torch import observe
    from rankscope.sketch.errors import SettingError

BEFORE = 3
"""Steps that are durable before it ends."""
BETWEEN = 100
"""Steps of a job that is disturbed all the time."""
BOUND_S = 60.0
"""A job that takes longer hangs, however busy the machine."""
AT_ONCE = 8
"""Most of the time they wait for the collector."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One job."""

    name: str
    """Of its run."""
    way: str
    """In which it ends."""
    to: str | None
    """A collector's address; None: it has its own."""
    observed: bool


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What the zygote saw of one job."""

    name: str
    code: int
    """As of subprocess: the signal's number, negative, if one has ended it."""
    seconds: float
    left: int
    """Processes of its session that were still there some seconds later."""


class Scoped(Protocol):
    """What a job uses of a scope."""

    def step(self) -> None: ...
    def tap(self, name: str, tensor: Any) -> Any: ...
    def statistics(self) -> Any: ...


class Unobserved:
    """A scope of a job that nobody observes, for comparison."""

    class Counts:
        """All is well."""

        acknowledged = BEFORE

    def __enter__(self) -> "Unobserved":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self) -> None:
        """Nothing."""

    def tap(self, name: str, tensor: Any) -> Any:
        """Nothing."""

    def statistics(self) -> Counts:
        """Nothing is awaited."""
        return self.Counts()


class Preempted(Exception):
    """What a user's handler of a signal may raise."""


def preempt(*_: object) -> None:
    """A user's handler of a signal."""
    raise Preempted("time is up")


# The zygote --------------------------------------------------------------------------------------


def forked(requests: list[Request], folder: Path) -> Request | None:
    """Fork a child for each request; which it is in the child, None in the zygote at last."""
    running: dict[int, tuple[str, float]] = {}
    for request in requests:
        while len(running) >= AT_ONCE:
            reap(running)
        child = os.fork()
        if child == 0:
            begin(folder / f"{request.name}.txt")
            return request
        running[child] = request.name, time.monotonic()
    while running:
        reap(running)
    return None


def load_all() -> None:
    """Load what torch and the agent load when they are used first."""
    warm()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    gc.freeze()  # else each child that ends copies all of it


def begin(said: Path) -> None:
    """What a process of its own would have: a session, its own output, a signal of its own."""
    os.setsid()
    with said.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    random.seed(os.getpid())
    faulthandler.register(signal.SIGUSR1)


def reap(running: dict[int, tuple[str, float]]) -> None:
    """Tell which children have ended, and end those that hang."""
    for child, (name, begun) in list(running.items()):
        ended, status = os.waitpid(child, os.WNOHANG)
        seconds = time.monotonic() - begun
        if ended:
            del running[child]
            code = os.waitstatus_to_exitcode(status)
            one = Ended(name=name, code=code, seconds=seconds, left=left_of(child))
            print(json.dumps(asdict(one)), flush=True)
        elif seconds > BOUND_S:
            os.kill(child, signal.SIGUSR1)  # it says where it is
            time.sleep(1.0)
            os.killpg(child, signal.SIGKILL)
    time.sleep(0.02)


def left_of(session: int) -> int:
    """How many processes of a session are there and do not end; they are killed."""
    until = time.monotonic() + 10.0
    while (members := members_of(session)) and time.monotonic() < until:
        time.sleep(0.05)
    for process in members:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return len(members)


def members_of(session: int) -> list[int]:
    """The processes of a session, without those that have ended and wait to be looked at."""
    members = list[int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, sid, *_ = stat.read_text().rpartition(")")[2].split()
            if int(sid) == session and state not in "ZX":
                members.append(int(stat.parent.name))
    return members


# Jobs --------------------------------------------------------------------------------------------


class Fate:
    """What happens in the forward of a module, in a hook of the user's, or in backward."""

    def __init__(self) -> None:
        self.of: dict[str, Callable[[], object]] = {}

    def strike(self, where: str) -> None:
        """Here it happens, once."""
        if where in self.of:
            self.of.pop(where)()


class Struck(dict[str, Any]):
    """An output of a module; something happens while it is walked through, by the agent first."""

    def items(self) -> Any:
        FATE.strike("agent")
        return super().items()


def model_of(fate: Fate) -> Any:
    """A small model that meets its fate."""

    class Layer(nn.Module):
        def forward(self, x: Any) -> Any:
            fate.strike("forward")
            return Struck(y=x.relu())

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Any) -> Any:
            return self.layer(dict(x.items())["y"])

    def hook(*_: object) -> None:
        fate.strike("hook")

    model = nn.Sequential(nn.Linear(4, 4), Layer(), Last())
    model[0].register_forward_hook(hook)
    return model


def train(scope: Scoped, steps: int = 1) -> None:
    """So many steps."""
    for _ in range(steps):
        output = MODEL(torch.ones(2, 4))
        output.register_hook(lambda _: FATE.strike("backward"))
        output.sum().backward()
        OPTIMIZER.step()
        scope.step()
        OPTIMIZER.zero_grad()


def begun(scope: Scoped) -> None:
    """The steps before, which are durable then."""
    train(scope, BEFORE)
    while scope.statistics().acknowledged < BEFORE:
        time.sleep(0.01)


def after_them(act: Callable[[], object], where: str = "") -> Callable[[], None]:
    """A job that does something after some steps; in the forward, backward, … of the next, or not
    in a step."""

    def job() -> None:
        with SCOPE as scope:
            begun(scope)
            if where:
                FATE.of[where] = act
            else:
                act()
            train(scope)

    return job


def error() -> None:
    raise ValueError("of the user's own")


def signalled(number: int, *, sleeps: bool = True) -> Callable[[], None]:
    """The process gets a signal."""

    def act() -> None:
        os.kill(os.getpid(), number)
        if sleeps:
            time.sleep(60)

    return act


def interrupted_at_work() -> None:
    """SIGINT comes from another thread while tensors are read on the agent's."""
    timer = threading.Timer(0.3, signalled(signal.SIGINT, sleeps=False))
    with SCOPE as scope:
        begun(scope)
        timer.start()
        large = torch.ones(1 << 22)
        while True:
            scope.tap("large", large)
            train(scope)


def interrupted_at_the_end() -> None:
    """Leaving the block waits for a collector that is not there, and is interrupted."""
    with SCOPE as scope:
        train(scope, BEFORE)
        threading.Timer(0.5, signalled(signal.SIGINT, sleeps=False)).start()
        if isinstance(scope, Unobserved):
            time.sleep(60)


def send_to_nobody() -> None:
    """Leaving the block waits for a collector that is not there."""
    with SCOPE as scope:
        train(scope, BEFORE)


def handled(act: Callable[..., object], where: str) -> Callable[[], None]:
    """SIGTERM has a handler."""

    def job() -> None:
        signal.signal(signal.SIGTERM, act)
        after_them(signalled(signal.SIGTERM, sleeps=where != "agent"), where)()

    return job


def disturbed() -> None:
    """A handler raises at random moments, and the loop goes on with the next step."""
    signal.signal(signal.SIGALRM, preempt)
    with SCOPE as scope:
        begun(scope)
        for _ in range(BETWEEN):
            torch.set_grad_enabled(True)  # what interrupts torch's own `no_grad` leaves it off
            with suppress(Preempted):
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 4e-3))
                train(scope)
                signal.setitimer(signal.ITIMER_REAL, 0)
        with suppress(Preempted):  # of the last signal, which another thread may have been given
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(0.1)
        torch.set_grad_enabled(True)
        train(scope, 2)  # the first of these goes on with a step that was interrupted


def fork(child: Callable[[Scoped], object], *, code: int = 0) -> Callable[[], None]:
    """A child that is forked in the middle of a step, and ends with this code."""

    def job() -> None:
        with SCOPE as scope:
            begun(scope)
            FATE.of["hook"] = lambda: in_a_child(lambda: child(scope), code)
            train(scope)
            train(scope)

    return job


def in_a_child(child: Callable[[], object], code: int) -> None:
    """Fork; the child goes on from here, unless it ends itself."""
    number = os.fork()
    if number == 0:
        child()
        return
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == code


def outlive() -> None:
    """A child is forked that trains on while its parent ends."""
    with SCOPE as scope:
        begun(scope)
        if os.fork() == 0:
            parent = os.getppid()
            while os.getppid() == parent:
                train(scope)
            os._exit(0)
        train(scope)


def observe_in_a_child() -> None:
    """A forked child begins a scope of its own."""

    def child() -> None:
        with new_scope(f"{REQUEST.name}-child") as own:
            train(own, BEFORE)
        os._exit(0)

    with SCOPE as scope:
        begun(scope)
        in_a_child(child, 0)
        train(scope)


def work(kind: str) -> Callable[[], None]:
    """A process of multiprocessing."""

    def act() -> None:
        context: Any = multiprocessing.get_context(kind)
        process = context.Process(target=print, args=("at work",))
        process.start()
        process.join()
        assert process.exitcode == 0

    return act


def load(kind: str) -> Callable[[], None]:
    """Workers of a DataLoader."""

    def act() -> None:
        data = TensorDataset(torch.ones(8, 4))
        workers = 1 if kind == "spawn" else 2  # each loads torch
        loader = DataLoader(data, batch_size=2, num_workers=workers, multiprocessing_context=kind)
        assert sum(len(batch) for (batch,) in loader) == 8

    return act


def train_beside() -> None:
    """A daemon thread trains while the process ends."""
    scope = SCOPE.__enter__()
    begun(scope)
    threading.Thread(target=lambda: train(scope, 10**9), daemon=True).start()
    time.sleep(0.2)


def observe_in_a_thread() -> None:
    """All happens on a thread that is not the first."""

    def job() -> None:
        with SCOPE as scope:
            begun(scope)
            train(scope)

    thread = threading.Thread(target=job)
    thread.start()
    thread.join()


def enter_twice() -> None:
    with SCOPE as scope:
        begun(scope)
        with suppress(SettingError), SCOPE:
            pass
        train(scope)


def leave_twice() -> None:
    with SCOPE as scope:
        begun(scope)
        train(scope)
        SCOPE.__exit__(None, None, None)


def never_leave() -> None:
    scope = SCOPE.__enter__()
    begun(scope)
    train(scope)


def never_leave_with_an_error() -> None:
    never_leave()
    FATE.of["forward"] = error
    MODEL(torch.ones(2, 4))


def never_leave_several() -> None:
    """Blocks wait for a collector that is not there: all at once, not one after the other."""
    SCOPE.__enter__()
    for number in range(3):
        if REQUEST.observed:
            scope = observe(nn.Linear(4, 1), run=f"{REQUEST.name}-{number}", to=REQUEST.to)
            scope.__enter__().step()


def train_at_exit() -> None:
    """What is called at the very end trains once more, before and after the agent has ended."""
    atexit.register(lambda: train(scope))
    scope = SCOPE.__enter__()
    atexit.register(lambda: train(scope))
    begun(scope)


def forget_it() -> None:
    """Nobody holds the scope any more, nor leaves its block."""
    never_leave()
    del globals()["SCOPE"]
    gc.collect()
    train(Unobserved())


def become_another() -> None:
    """Another program takes the process over; nothing of the agent's is open there."""
    sockets = (
        "sum(os.path.realpath('/dev/fd/' + n).startswith('socket') for n in os.listdir('/dev/fd'))"
    )
    os.execv(sys.executable, [sys.executable, "-c", f"import os, sys; sys.exit(7 + {sockets})"])


def crash() -> None:
    """Read what is not there."""
    faulthandler.enable()
    ctypes.string_at(0)


def wait_for_children() -> None:
    """Wait until no child is left, as a job does that has started some."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def leave_early() -> None:
    """End before the agent has said hello."""
    with SCOPE:
        os._exit(6)


WAYS: dict[str, Callable[[], None]] = {
    "return": after_them(lambda: None),
    "sys.exit": after_them(lambda: sys.exit(3)),
    "error in forward": after_them(error, "forward"),
    "error in backward": after_them(error, "backward"),
    "error in a hook": after_them(error, "hook"),
    "error between steps": after_them(error),
    "SIGINT in forward": after_them(signalled(signal.SIGINT), "forward"),
    "SIGINT while the agent works": interrupted_at_work,
    "SIGINT while the block is left": interrupted_at_the_end,
    "nobody to send to": send_to_nobody,
    "SIGTERM": after_them(signalled(signal.SIGTERM), "forward"),
    "SIGTERM, sys.exit": handled(lambda *_: sys.exit(5), "forward"),
    "SIGTERM, an error": handled(preempt, "backward"),
    "SIGTERM, an error in the agent": handled(preempt, "agent"),
    "alarms at any moment": disturbed,
    "SIGKILL": after_them(signalled(signal.SIGKILL), "backward"),
    "os._exit": after_them(lambda: os._exit(4), "forward"),
    "os.abort": after_them(os.abort, "backward"),
    "a crash": after_them(crash, "forward"),
    "exec": after_them(become_another),
    "fork, os._exit": fork(lambda _: os._exit(8), code=8),
    "fork, sys.exit": fork(lambda _: sys.exit(8), code=8),
    "fork, an error": fork(lambda _: error(), code=1),
    "fork, train on": fork(lambda scope: train(scope)),
    "fork, outlive": outlive,
    "fork, observe": observe_in_a_child,
    "multiprocessing fork": after_them(work("fork"), "hook"),
    "multiprocessing spawn": after_them(work("spawn"), "hook"),
    "DataLoader fork": after_them(load("fork"), "hook"),
    "DataLoader spawn": after_them(load("spawn"), "hook"),
    "a daemon thread trains": train_beside,
    "in a thread": observe_in_a_thread,
    "entered twice": enter_twice,
    "left twice": leave_twice,
    "never left": never_leave,
    "never left, an error": never_leave_with_an_error,
    "never left, several, nobody to send to": never_leave_several,
    "never left, train at exit": train_at_exit,
    "dropped": forget_it,
    "wait for children": after_them(wait_for_children),
    "at once": leave_early,
}
"""How jobs end."""


def new_scope(run: str) -> AbstractContextManager[Any]:
    """A scope, or what stands in for it."""
    if not REQUEST.observed:
        return Unobserved()
    return observe(MODEL, OPTIMIZER, run=run, to=REQUEST.to, directory=FOLDER / "embedded")


@contextmanager
def counting() -> Generator[None]:
    """Write down what the agent counted, whichever way the job ends here."""
    process = os.getpid()
    try:
        yield
    finally:
        scope: Any = globals().get("SCOPE")
        if REQUEST.observed and scope is not None and process == os.getpid():
            (FOLDER / f"{REQUEST.name}.json").write_text(json.dumps(asdict(scope.statistics())))


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    torch.set_num_threads(1)
    load_all()
    FOUND = forked([Request(**json.loads(line)) for line in sys.stdin], FOLDER)
    if FOUND is None:
        sys.exit()
    REQUEST = FOUND
    FATE = Fate()
    MODEL = model_of(FATE)
    OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    SCOPE = new_scope(REQUEST.name)
    with counting():
        WAYS[REQUEST.way]()
