"""Who takes part: honest people, idlers, cheats, liars, rings of them, people who die, and spammers."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdf_market.identity import Identity

JUDGING = frozenset({"audit_lottery", "audit_targeted", "audit_committee", "arbiter_commit"})
BISECTION = frozenset({"bisect_open", "state_offer"})
FALSE = "false@1"  # the path that liars agree on
GREY_EXCESS_PPB = 500_000


@dataclass(frozen=True)
class Death:
    """A person dies just before it would do something of a kind for the ``nth`` time."""

    before: str  # kind of action, or "bid"
    nth: int = 1
    back_ms: int | None = None  # how long it is away; None: for good
    loses_disk: bool = False  # the secrets of what it committed to are gone


@dataclass(frozen=True)
class Character:
    """How a person plays.  The default is honest and always there."""

    flavour: str = ""  # of its units (truth.py)
    lies: str = ""  # as a judge of strangers' units: accuse | doubt | slander
    ring: int = 0  # whoever has the same number vouches for each other; 0: none
    refuses: frozenset[str] = frozenset()  # kinds of actions that it never does
    false_states: bool = False  # names a state in a bisection that is not its own
    hides: bool = False  # serves its updates to nobody outside its ring
    stuffs: bool = False  # votes for an outcome that gives everything to itself
    price_ppm: int = 500_000  # of the reserve price
    capacity: int = 0  # units at a time, over all jobs; 0: no worker
    challenges: bool = False  # as a bystander: what is false, or, as a liar, what is right
    spams: bool = False
    lottery: bool = True
    deaths: tuple[Death, ...] = ()
    arrives_ms: int = 0
    is_reliable: bool = True  # its node follows the protocol of agreement
    only_posts: bool = False  # it is an owner, and does nothing else

    @property
    def is_honest(self) -> bool:
        """Whether it tells the truth whenever it says something."""
        return not (self.flavour or self.lies or self.ring or self.false_states or self.stuffs or self.hides)

    @property
    def is_steady(self) -> bool:
        """Whether it is honest and does all that it should when it should."""
        return self.is_honest and self.is_reliable and not self.refuses and not self.deaths


@dataclass
class Person:
    """A person with what it remembers; ``home`` is the node whose ledger it sees."""

    key: Identity
    character: Character
    home: int = 0
    asleep_until_ms: int | None = 0  # None: for good
    sent_ms: dict[tuple[str, str, int, int], int] = field(default_factory=dict)  # when it last tried something
    tickets: dict[tuple[str, int, int], str | None] = field(default_factory=dict)  # of audit lotteries
    counted: dict[str, int] = field(default_factory=dict)  # how often it did what it may die of
    noted: set[tuple[str, str, int, int]] = field(default_factory=set)  # secrets it holds
    lost: set[tuple[str, str, int, int]] = field(default_factory=set)
    died: set[Death] = field(default_factory=set)
    looks_ms: int = -1  # when it looks next; -1: when something happens

    @property
    def account(self) -> str:
        return self.key.account

    def is_awake(self, now_ms: int) -> bool:
        return self.asleep_until_ms is not None and self.asleep_until_ms <= now_ms

    def dies_of(self, kind: str, now_ms: int) -> bool:
        """Say whether this is where the person dies; it then sleeps."""
        for death in self.character.deaths:
            if death.before != kind or death in self.died:
                continue
            self.counted[kind] = self.counted.get(kind, 0) + 1
            if self.counted[kind] >= death.nth:
                self.died.add(death)
                self.asleep_until_ms = None if death.back_ms is None else now_ms + death.back_ms
                if death.loses_disk:
                    self.lost |= self.noted
                return True
        return False
