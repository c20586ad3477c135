"""One runner of several ranks: rank 0 tells each plan to the others before it runs it; they run the same.

    rank 0      plan ─► one broadcast ─► launch ─► collect ─► result, to the engine
    others              receive       ─► launch ─► collect ─► its tokens, compared with rank 0's

Every rank chooses the tokens itself, from logits that are the same bits, so none has to be told. To be sure,
each message says how many results rank 0 has read, and what the last one was: a rank reads as many, and ends
if it chose otherwise, since from there on the ranks would compute different texts. It also says which swaps
rank 0 has seen complete, for plans rely on them: each rank waits for its own.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

from headway.engine.errors import EngineError, RankLostError
from headway.engine.interfaces import LaunchingRunner, Runner
from headway.engine.plan_wire import PlanDecoder, PlanEncoder
from headway.engine.values import StepPlan, StepResult

HEAD = struct.Struct("<?qq8s")
"""Whether to launch only, results read, swaps complete up to this plan's step, digest of the last result."""

NOTHING = bytes(8)

NEWS_SECONDS = 2.0
"""From a broken connection to the word that a process has ended."""


class Messages(Protocol):
    """The way from rank 0 to the others."""

    def send(self, message: bytes) -> None:
        """To all others."""
        ...

    def receive(self) -> bytes:
        """The next one."""
        ...


@runtime_checkable
class SwappingRunner(Protocol):
    """A runner whose swaps go on beside its steps."""

    def await_copies(self, step: int) -> None:
        """Return when the swaps of plans up to this step are complete."""
        ...


class Lost(Protocol):
    """Says which rank is gone."""

    def __call__(self, *, wait_seconds: float = 0.0) -> str | None:
        """In words, None: nobody. Waits so long for the news, for others notice a death first."""
        ...


class RankedRunner:
    """Rank 0's runner, whose plans all ranks execute."""

    def __init__(self, runner: Runner, messages: Messages, lost: Lost) -> None:
        self._runner = runner
        self._messages = messages
        self._lost = lost
        self._encoder = PlanEncoder()
        self._results = 0
        self._digest = NOTHING
        self._copied_step = 0

    def __getattr__(self, name: str) -> Any:
        """Sizes and names are the same on all ranks."""
        return getattr(self._runner, name)

    def execute(self, plan: StepPlan) -> StepResult:
        """As ``Runner.execute``. RankLostError: a rank is gone, and nothing can be computed here again."""
        return self._read(self._told(False, plan, lambda: self._runner.execute(plan)))

    def _read(self, result: StepResult) -> StepResult:
        self._results += 1
        self._digest = digest_of(result)
        self._copied_step = max(self._copied_step, _copied_step(result))
        return result

    def _told(self, launches: bool, plan: StepPlan, run: Callable[[], Any]) -> Any:
        with_all = self._all()
        with_all(lambda: self._messages.send(self._message(launches, plan)))
        return with_all(run)

    def _all(self) -> Callable[[Callable[[], Any]], Any]:
        """Runs something that takes all ranks; RankLostError if it fails for another reason than the plan."""
        if (gone := self._lost()) is not None:
            raise RankLostError(gone)

        def run(work: Callable[[], Any]) -> Any:
            try:
                return work()
            except EngineError:
                raise  # the plan's fault: the others raise the same
            except Exception as error:
                told = self._lost(wait_seconds=NEWS_SECONDS)
                why = told or f"the processes of this model lost each other: {error}"
                raise RankLostError(why) from error

        return run

    def _message(self, launches: bool, plan: StepPlan) -> bytes:
        head = HEAD.pack(launches, self._results, self._copied_step, self._digest)
        return head + self._encoder.encode(plan)


class RankedLauncher(RankedRunner):
    """The same over a runner that can launch."""

    def launch(self, plan: StepPlan) -> None:
        """As ``LaunchingRunner.launch``."""
        self._told(True, plan, lambda: self._launcher.launch(plan))

    def collect(self) -> StepResult:
        """As ``LaunchingRunner.collect``."""
        return self._read(self._all()(self._launcher.collect))

    @property
    def _launcher(self) -> LaunchingRunner:
        return cast(LaunchingRunner, self._runner)


def ranked(runner: Runner, messages: Messages, lost: Lost) -> Runner:
    """Rank 0's runner around this rank's own."""
    kind = RankedLauncher if isinstance(runner, LaunchingRunner) else RankedRunner
    return cast(Runner, kind(runner, messages, lost))


class Follower:
    """Another rank: executes what rank 0 tells."""

    def __init__(self, runner: Runner, messages: Messages) -> None:
        self._runner = runner
        self._messages = messages
        self._decoder = PlanDecoder()
        self._results = 0
        self._digest = NOTHING

    def follow(self) -> None:
        """For ever, or until rank 0 is gone (RuntimeError) or has chosen other tokens (RankLostError)."""
        while True:
            self.obey(self._messages.receive())

    def obey(self, message: bytes) -> None:
        """One message."""
        launches, results, copied_step, digest = HEAD.unpack_from(message)
        plan = self._decoder.decode(message[HEAD.size :])
        while self._results < results:
            self._read(self._launcher.collect())
        if digest != self._digest:
            raise RankLostError(
                "a rank has chosen other tokens than rank 0: their devices compute differently"
            )
        if isinstance(self._runner, SwappingRunner):
            self._runner.await_copies(copied_step)
        try:
            if launches:
                self._launcher.launch(plan)
            else:
                self._read(self._runner.execute(plan))
        except EngineError:
            pass  # rank 0 raises the same, and decides what happens next

    @property
    def _launcher(self) -> LaunchingRunner:
        return cast(LaunchingRunner, self._runner)

    def _read(self, result: StepResult) -> None:
        self._results += 1
        self._digest = digest_of(result)


def digest_of(result: StepResult) -> bytes:
    """Eight bytes over the tokens that a step chose."""
    tokens = repr([(entry.key, entry.token_id) for entry in result.sampled])
    return hashlib.blake2b(tokens.encode(), digest_size=len(NOTHING)).digest()


def _copied_step(result: StepResult) -> int:
    return result.step if result.copied_step is None else result.copied_step
